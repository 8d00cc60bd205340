"""Where a machine stands, as bytes and back: so that a tape need not begin with its host's start.

A machine is a graph of a few dozen kinds of objects, all of this project: dataclasses, messages,
enums, and containers of them. Bytes name their classes, and only classes of `protocol` and
`syncer_node` are ever made of them; nothing in them is called. What belongs to the host is not
among them: its signer and the genesis are put in by whoever reads.
"""

from __future__ import annotations

import importlib
import random
from collections import deque
from collections.abc import Iterator
from enum import Enum
from types import FunctionType, MethodType
from typing import Any, Final

import msgspec

from protocol.errors import MalformedMessage
from syncer_node.machine.setup import SyncerSetup
from syncer_node.machine.syncer import SyncerMachine

PACKAGES: Final = ("protocol.", "syncer_node.")
_PLAIN: Final = (type(None), bool, int, float, str, bytes)

Externals = dict[str, object]
"""What is not written but put in again, by name."""


def externals_of(setup: SyncerSetup) -> Externals:
    """What belongs to the host of a machine with this setup."""
    return {"signer": setup.signer, "verify": setup.verify, "genesis": setup.genesis}


def write_machine(machine: SyncerMachine, externals: Externals) -> bytes:
    """All that the machine knows. Raises TypeError for what cannot be written."""
    return msgspec.msgpack.encode(_Writer(externals).tell(machine))


def read_machine(encoded: bytes, externals: Externals) -> SyncerMachine:
    """A machine that goes on as the written one would. Raises MalformedMessage."""
    try:
        told = msgspec.msgpack.decode(encoded)
        machine = _Reader(externals).make(told)
    except MalformedMessage:
        raise
    except (msgspec.MsgspecError, RecursionError, *_MISREAD) as error:
        raise MalformedMessage(f"it is no machine's state: {error}") from error
    if not isinstance(machine, SyncerMachine):
        raise MalformedMessage("it is not the state of a syncer's machine")
    return machine


_MISREAD: Final = (TypeError, ValueError, LookupError, AttributeError, ImportError)


class _Writer:
    """Walks the graph; what is met again is named by its number."""

    def __init__(self, externals: Externals) -> None:
        self._external = {id(value): name for name, value in externals.items()}
        self._numbers: dict[int, int] = {}
        self._alive: list[object] = []
        """So that no number is given twice."""

    def tell(self, value: object) -> object:
        if type(value) in _PLAIN:
            return value
        if (name := self._external.get(id(value))) is not None:
            return ["external", name]
        match value:
            case tuple():
                return ["tuple", [self.tell(one) for one in value]]
            case Enum():
                return ["enum", _name(type(value)), value.name]
            case msgspec.Struct():
                return ["struct", _name(type(value)), msgspec.msgpack.encode(value)]
            case MethodType():
                return ["method", self.tell(value.__self__), value.__func__.__name__]
        if (number := self._numbers.get(id(value))) is not None:
            return ["again", number]
        self._numbers[id(value)] = len(self._alive)
        self._alive.append(value)
        return self._mutable(value)

    def _mutable(self, value: object) -> object:
        match value:
            case list():
                return ["list", [self.tell(one) for one in value]]
            case dict():
                return ["dict", [[self.tell(key), self.tell(one)] for key, one in value.items()]]
            case set():
                # In an order that does not depend on the process.
                return ["set", sorted(map(self.tell, value), key=msgspec.msgpack.encode)]
            case deque():
                return ["deque", value.maxlen, [self.tell(one) for one in value]]
            case random.Random():
                return ["random", self.tell(value.getstate())]
        kind = _name(type(value))
        return ["object", kind, {name: self.tell(one) for name, one in _attributes(value)}]


class _Reader:
    """Makes the graph again, in the order in which it was walked."""

    def __init__(self, externals: Externals) -> None:
        self._externals = externals
        self._made: list[object] = []

    def make(self, told: Any) -> Any:
        if not isinstance(told, list):
            return told
        kind, *rest = told
        match kind, rest:
            case "external", [name]:
                return self._externals[name]
            case "again", [number]:
                return self._made[number]
            case "tuple", [parts]:
                return tuple(self.make(one) for one in parts)
            case "enum", [name, member]:
                return _known(name, Enum)[member]
            case "struct", [name, encoded]:
                return msgspec.msgpack.decode(encoded, type=_known(name, msgspec.Struct))
            case "method", [owner, name]:
                return self._method(self.make(owner), name)
        return self._mutable(kind, rest)

    def _mutable(self, kind: str, rest: list[Any]) -> object:
        match kind, rest:
            case "list", [parts]:
                made: list[object] = self._keep([])
                made.extend(self.make(one) for one in parts)
                return made
            case "dict", [pairs]:
                table: dict[object, object] = self._keep({})
                for key, value in pairs:
                    table[self.make(key)] = self.make(value)
                return table
            case "set", [parts]:
                group: set[object] = self._keep(set())
                group.update(self.make(one) for one in parts)
                return group
            case "deque", [maxlen, parts]:
                queue: deque[object] = self._keep(deque(maxlen=maxlen))
                queue.extend(self.make(one) for one in parts)
                return queue
            case "random", [state]:
                chance = self._keep(random.Random(0))
                chance.setstate(self.make(state))
                return chance
            case "object", [name, attributes]:
                thing = self._keep(object.__new__(_known(name, object)))
                for attribute, value in attributes.items():
                    object.__setattr__(thing, attribute, self.make(value))
                return thing
        raise MalformedMessage(f"a state has no part of kind {kind!r}")

    def _keep(self, value: Any) -> Any:
        self._made.append(value)
        return value

    def _method(self, owner: object, name: str) -> MethodType:
        function = getattr(type(owner), name)
        if not isinstance(function, FunctionType) or not _is_ours(type(owner)):
            raise MalformedMessage(f"{type(owner).__name__} has no method {name!r}")
        return MethodType(function, owner)


def _attributes(value: object) -> Iterator[tuple[str, object]]:
    """What an object consists of, slots and all."""
    if not _is_ours(type(value)):
        raise TypeError(f"a {type(value).__name__} cannot be written")
    for base in type(value).__mro__:
        slots = base.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if hasattr(value, name):
                yield name, getattr(value, name)
    yield from getattr(value, "__dict__", {}).items()


def _is_ours(kind: type) -> bool:
    return f"{kind.__module__}.".startswith(PACKAGES)


def _name(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


def _known(name: str, base: type) -> Any:
    """The class of ours that is called so. Raises MalformedMessage."""
    module, _, word = name.partition(":")
    found = None
    if f"{module}.".startswith(PACKAGES):
        found = vars(importlib.import_module(module)).get(word)
    if not isinstance(found, type) or not issubclass(found, base) or found.__module__ != module:
        raise MalformedMessage(f"there is no {name} to be made")
    return found
