"""Which Shoal this is, as it was installed."""

from __future__ import annotations

from functools import cache
from typing import Final

DISTRIBUTION: Final = "shoal-train"
"""The name that package installers know; the command is `shoal`."""


@cache
def version() -> str:
    """The installed version; empty where Shoal runs from a folder that was never installed.

    Looked up once: that reads files, and a daemon says it in each status.
    """
    from importlib import metadata

    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return ""
