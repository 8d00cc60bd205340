"""Hypothesis strategies for every message and record, derived from their types and bounds.

A field that is added to a message is covered without a change here.
"""

from __future__ import annotations

import typing
from typing import Any

import msgspec
from hypothesis import strategies as st
from msgspec import inspect

from protocol.log.records import Body, Record
from protocol.log.state import SwarmSummary
from protocol.messages import (
    LearnerMessage,
    Message,
    PushHeader,
    SyncerMessage,
    VoterMessage,
)
from protocol.project import Charter, Genesis

ITEMS_MAX = 3
"""Of a list or tuple: more find nothing new and cost much time."""


def values_of(kind: Any) -> st.SearchStrategy[Any]:
    """Valid values of a message, a record, or any type that occurs in them."""
    return _strategy(inspect.type_info(kind))


def _strategy(info: inspect.Type) -> st.SearchStrategy[Any]:
    match info:
        case inspect.StructType(cls=cls, fields=fields):
            return st.builds(cls, **{field.name: _strategy(field.type) for field in fields})
        case inspect.UnionType(types=types):
            return st.one_of([_strategy(one) for one in types])
        case inspect.Metadata(type=inner):
            return _strategy(inner)
        case inspect.VarTupleType(item_type=item, min_length=least):
            return _several(item, least or 0).map(tuple)
        case inspect.TupleType(item_types=items):
            return st.tuples(*map(_strategy, items))
        case inspect.ListType(item_type=item, min_length=least):
            return _several(item, least or 0)
        case inspect.DictType(key_type=key, value_type=value):
            return st.dictionaries(_strategy(key), _strategy(value), max_size=ITEMS_MAX)
    return _scalars(info)


def _scalars(info: inspect.Type) -> st.SearchStrategy[Any]:
    match info:
        case inspect.LiteralType(values=values):
            return st.sampled_from(sorted(values))
        case inspect.NoneType():
            return st.none()
        case inspect.BoolType():
            return st.booleans()
        case inspect.IntType(ge=low, le=high):
            # Only numbers that the wire carries; SwarmSummary states no bounds of its own.
            return st.integers(low if low is not None else 0, high if high is not None else 2**62)
        case inspect.FloatType():
            return _floats(info)
        case inspect.StrType(pattern=str(pattern)):
            return st.from_regex(pattern, fullmatch=True)
        case inspect.StrType(min_length=least, max_length=most):
            return st.text(min_size=least or 0, max_size=min(most or 8, 8))
        case inspect.BytesType(min_length=least, max_length=most):
            low = least or 0
            return st.binary(min_size=low, max_size=max(low, min(most or 40, 40)))
    raise AssertionError(f"no strategy for {info}")


def _several(item: inspect.Type, least: int) -> st.SearchStrategy[list[Any]]:
    return st.lists(_strategy(item), min_size=least, max_size=max(least, ITEMS_MAX))


def _floats(info: inspect.FloatType) -> st.SearchStrategy[float]:
    return st.floats(
        min_value=info.ge if info.ge is not None else info.gt,
        max_value=info.le if info.le is not None else info.lt,
        exclude_min=info.gt is not None,
        exclude_max=info.lt is not None,
        allow_nan=False,
        allow_infinity=False,
    )


def each_of(union: Any) -> list[type[msgspec.Struct]]:
    """The types of a union, such as all messages."""
    return list(typing.get_args(union))


messages = st.one_of([values_of(kind) for kind in each_of(Message)])
learner_messages = st.one_of([values_of(kind) for kind in each_of(LearnerMessage)])
syncer_messages = st.one_of([values_of(kind) for kind in each_of(SyncerMessage)])
voter_messages = st.one_of([values_of(kind) for kind in each_of(VoterMessage)])
bodies = st.one_of([values_of(kind) for kind in each_of(Body)])
records = values_of(Record)
push_headers = values_of(PushHeader)
documents = st.one_of(values_of(Genesis), values_of(Charter), values_of(SwarmSummary))
