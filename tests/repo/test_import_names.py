"""Our packages have plain names, so it must be certain that they are ours."""

from __future__ import annotations

import importlib
from pathlib import Path

from shoal.__main__ import PACKAGES


def test_the_packages_lie_side_by_side_and_say_whose_they_are():
    packages = [importlib.import_module(name) for name in PACKAGES]
    assert {package.__project__ for package in packages} == {"shoal"}
    assert len({Path(package.__file__).parent.parent for package in packages}) == 1
