"""Which containers of a daemon's parts know many of some keys."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

from simulator.scenarios.soak import NOT_OURS

CONTAINERS = (dict, set, frozenset, list, tuple, deque)


def knowing(root: Any, name: str, keys: set[bytes], least: int) -> set[str]:
    """Paths from `root` to the containers in which at least so many of these keys stand."""
    found, seen, waiting = set(), set(), [(root, name)]
    while waiting:
        one, path = waiting.pop()
        kind = type(one)
        if id(one) in seen or isinstance(one, NOT_OURS) or kind.__module__.startswith("simulator."):
            continue
        seen.add(id(one))
        if isinstance(one, CONTAINERS) and sum(_is_of(keys, part) for part in one) >= least:
            found.add(path)
        waiting += _parts(one, path)
    return found


def _is_of(keys: set[bytes], part: Any) -> bool:
    """Whether this is one of the keys, or a tuple with one, as a session's."""
    return any(isinstance(one, bytes) and one in keys for one in (part, *_inside(part)))


def _inside(part: Any) -> tuple[Any, ...]:
    return part if isinstance(part, tuple) else ()


def _parts(one: Any, path: str) -> Iterator[tuple[Any, str]]:
    if isinstance(one, dict):
        yield from ((part, f"{path}[]") for part in one.values())
    elif isinstance(one, CONTAINERS):
        yield from ((part, f"{path}[]") for part in one)
    else:
        slots = [slot for kind in type(one).__mro__ for slot in getattr(kind, "__slots__", ())]
        for slot in (*vars(one), *slots) if hasattr(one, "__dict__") else slots:
            if hasattr(one, slot):
                yield getattr(one, slot), f"{path}.{slot}"
