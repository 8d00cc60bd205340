"""Which Shoal this is, as it was installed."""

from __future__ import annotations

from typing import Final

DISTRIBUTION: Final = "shoal-train"
"""The name that package installers know; the command is `shoal`."""


def version() -> str:
    """The installed version; empty where Shoal runs from a folder that was never installed."""
    from importlib import metadata

    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return ""
