"""Where the banks of a test keep their arrays: in memory, or in files."""

from __future__ import annotations

from host.files.mapped_arrays import MappedArrays, in_memory

PLACES = ("memory", "files")


class Place:
    """Of the test that runs."""

    keep = staticmethod(in_memory)


def use(place, folder, monkeypatch):
    """Until the test ends; files, however small, lie in `folder`."""
    if place == "files":
        monkeypatch.setattr(Place, "keep", MappedArrays(folder, least_bytes=1).keep)
    return place
