"""The import path of child processes: they run the code that their parent runs."""

from __future__ import annotations

import os
from pathlib import Path


def python_path() -> str:
    """A value for `PYTHONPATH` that puts our packages first, then what the environment names.

    Together with the interpreter's `-P`, it keeps modules that happen to lie in the working
    directory out of a child.
    """
    ours = str(Path(__file__).resolve().parents[2])
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    # A child's own children get the same value, so that it says whether paths differ.
    return os.pathsep.join([ours, *(one for one in inherited if one and one != ours)])
