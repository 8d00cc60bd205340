"""Chats as people keep them: .jsonl files with one on a line, .json files with one or a list, and
.parquet files with one in a row.

A chat is `{"messages": [{"role": ..., "content": ...}, ...]}`, as most libraries write it, or
ShareGPT's `{"conversations": [{"from": ..., "value": ...}, ...]}`; other keys are ignored. What
cannot be used is left out and told with its place. Light: it imports no model and no tokenizer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from node.trainer.text.table_files import JSON_SUFFIXES, PARQUET, rows
from protocol.errors import UserError

CHAT_SUFFIXES: Final = JSON_SUFFIXES | {PARQUET}
KEYS: Final = ("messages", "conversations")
"""One of these holds the turns."""
ANSWERING: Final = "assistant"
CHAT_CHARS_MAX: Final = 1 << 20
"""Of all its messages together."""
TURNS_MAX: Final = 1024
ROLE_CHARS_MAX: Final = 64
TOLD_MAX: Final = 5
"""Places that are named of those left out."""

_ROLES: Final = {"human": "user", "gpt": ANSWERING, "bing": ANSWERING, "chatgpt": ANSWERING}
"""ShareGPT's words."""

Turns = list[dict[str, str]]


class Chat(NamedTuple):
    """One conversation."""

    place: str
    """File and line, for people."""
    turns: Turns
    """Each with `role` and `content`."""

    @property
    def identity(self) -> str:
        """The same text for the same conversation, wherever it stands."""
        return json.dumps([[one["role"], one["content"]] for one in self.turns])


class LeftOut(Exception):
    """Why a chat cannot be used, in words."""


class Tally:
    """Counts chats or texts, and remembers the first of those that are left out."""

    def __init__(self, noun: str = "chats") -> None:
        self._noun = noun
        self.used = 0
        self.left_out = 0
        self._told: list[str] = []

    def leave_out(self, place: str, why: object) -> None:
        """Notes one that cannot be used."""
        self.left_out += 1
        if len(self._told) < TOLD_MAX:
            self._told.append(f"{place}: {why}")

    @property
    def words(self) -> tuple[str, ...]:
        """What was left out, in one sentence; nothing if all could be used."""
        if not self.left_out:
            return ()
        more = self.left_out - len(self._told)
        named = "; ".join(self._told) + (f"; and {more:,} more" if more else "")
        of = f"{self.left_out:,} of {self.used + self.left_out:,} {self._noun}"
        return (f"{of} left out: {named}",)

    def require_some(self, location: str) -> None:
        """UserError if not one can be used."""
        if not self.used:
            said = self.words[0] if self.left_out else "there is none"
            raise UserError(
                f"No chat in {location} can be used ({said}). A line of a .jsonl file is one chat:"
                ' {"messages": [{"role": "user", "content": "..."}, {"role": "assistant",'
                ' "content": "..."}]}'
            )


def read_chats(files: Iterable[Path], tally: Tally) -> Iterator[Chat]:
    """The chats in these files, in order. What is no chat is counted in `tally`.

    OSError or ValueError if a file cannot be read.
    """
    for path in files:
        yield from _chats(rows(path, KEYS), tally)


def chats_of(rows: Iterable[tuple[str, object]], tally: Tally) -> Iterator[Chat]:
    """The same of rows that are read already, each with its place."""
    yield from _chats(((place, partial(_same, row)) for place, row in rows), tally)


def _same(row: object) -> object:
    return row


def _chats(found: Iterable[tuple[str, Callable[[], object]]], tally: Tally) -> Iterator[Chat]:
    for place, read in found:
        try:
            turns = _turns(read())
        except (LeftOut, ValueError, RecursionError) as error:
            tally.leave_out(place, error)
        else:
            yield Chat(place, turns)


def _turns(said: object) -> Turns:
    """The messages of a chat. LeftOut if it is none."""
    if not isinstance(said, dict):
        raise LeftOut("is no object with messages")
    for key, who, what in (("messages", "role", "content"), ("conversations", "from", "value")):
        found = said.get(key)
        if isinstance(found, list):
            turns = [_turn(at, one, who, what) for at, one in enumerate(found, 1)]
            break
    else:
        raise LeftOut("has no list of messages")
    if len(turns) > TURNS_MAX or sum(len(one["content"]) for one in turns) > CHAT_CHARS_MAX:
        raise LeftOut(f"has over {TURNS_MAX:,} messages or {CHAT_CHARS_MAX:,} characters")
    answers = [at for at, one in enumerate(turns) if one["role"] == ANSWERING]
    if not any(at and turns[at]["content"].strip() for at in answers):
        raise LeftOut(f"has no answer of the role {ANSWERING} to anything")
    return turns


def _turn(number: int, said: object, who: str, what: str) -> dict[str, str]:
    if not isinstance(said, Mapping):
        raise LeftOut(f"message {number} is no object")
    role, content = said.get(who), said.get(what)
    if not isinstance(role, str) or not 0 < len(role) <= ROLE_CHARS_MAX:
        raise LeftOut(f"message {number} has no {who}")
    if not isinstance(content, str):
        raise LeftOut(f"message {number} has no text in {what}")
    return {"role": _ROLES.get(role, role) if who == "from" else role, "content": content}
