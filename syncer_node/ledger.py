"""The syncer's ledger: who gave how much, and what of it did not count, and why.

What counted comes from the log, exactly and to the end of time, whoever led. Names and what did not
count are this host's own notes from when it led; they are kept beside its store.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from msgspec import Struct

from node.host.durable import write_atomically
from protocol.errors import CorruptState
from protocol.ids import short
from protocol.state import Account, SwarmState
from protocol.status import ContributorRow
from protocol.trace import Fact, PeerMisbehaved, PushSettled, SessionClosed, SessionOpened

FILE_NAME = "ledger.json"
SAVE_EVERY_S = 10.0
KINDS_MAX = 32
"""Different reasons noted for one contributor; further ones are counted as `other`."""

GUESTS_MAX = 1024
"""Noted hosts of which nothing was ever merged; the one longest unheard of is forgotten."""

SHOWN_MAX = 64
"""Contributors in one status."""

NAME_CHARS_MAX = 64
OTHER = "other"
COUNTED = ("merged", "clipped")


class StoredLedger(Struct, kw_only=True):
    """The file: everything at one moment."""

    project: str
    project_name: str
    log_index: int
    """Last record that is counted."""
    at_s: float
    """When it was written: Unix seconds."""
    contributors: list[ContributorRow]


@dataclass(slots=True)
class Note:
    """What this host knows of a contributor besides the log."""

    name: str
    seen_at_s: float
    is_here: bool = False
    not_counted: dict[str, int] = field(default_factory=dict)


class Ledger:
    """Notes of facts as they are told, and the table of them with the log's accounts."""

    def __init__(self) -> None:
        self.notes: dict[bytes, Note] = {}
        self.changes = 0
        """Grows with every note."""

    def tell(self, fact: Fact, at_s: float, accounts: dict[bytes, Account]) -> None:
        """Note a fact. at_s: wall clock."""
        match fact:
            case SessionOpened(peer, name, _):
                note = self._note(peer, at_s, accounts)
                note.name, note.is_here = printable(name), True
            case SessionClosed(peer):
                self._note(peer, at_s, accounts).is_here = False
            case PushSettled(learner=learner, outcome=outcome, reason=reason):
                if outcome not in COUNTED:
                    kind = f"{outcome}: {reason}" if reason else outcome
                    self._count(learner, kind, at_s, accounts)
            case PeerMisbehaved(peer, reason, _):
                if peer in self.notes:
                    self._count(peer, f"fault: {reason}", at_s, accounts)

    def away(self) -> None:
        """This host leads no more: whoever was here is somewhere else."""
        for note in self.notes.values():
            note.is_here = False

    def rows(self, state: SwarmState) -> list[ContributorRow]:
        """All contributors and guests, those with most tokens first."""
        fragments = max(1, len(state.fragments))
        keys = state.accounts.keys() | self.notes.keys()
        found = [self._row(key, state.accounts.get(key), fragments) for key in keys]
        found.sort(key=lambda row: (-row.tokens, -row.merges, row.key))
        return found

    def restore(self, rows: list[ContributorRow]) -> None:
        """Go on with the notes of a former life; its totals are the log's again."""
        for row in rows:
            if row.seen_at_s > 0.0:
                note = Note(row.name, row.seen_at_s, not_counted=dict(row.not_counted))
                self.notes[bytes.fromhex(row.key)] = note

    def _row(self, key: bytes, account: Account | None, fragments: int) -> ContributorRow:
        account, note = account or Account(), self.notes.get(key)
        return ContributorRow(
            key=key.hex(),
            name=note.name if note else short(key),
            tokens=account.tokens // fragments,
            merges=account.merges,
            clipped=account.clipped,
            not_counted=dict(note.not_counted) if note else {},
            seen_at_s=note.seen_at_s if note else 0.0,
            is_here=note.is_here if note else False,
        )

    def _count(self, key: bytes, kind: str, at_s: float, accounts: dict[bytes, Account]) -> None:
        counts = self._note(key, at_s, accounts).not_counted
        kind = printable(kind)
        if kind not in counts and len(counts) >= KINDS_MAX:
            kind = OTHER
        counts[kind] = counts.get(kind, 0) + 1

    def _note(self, key: bytes, at_s: float, accounts: dict[bytes, Account]) -> Note:
        self.changes += 1
        note = self.notes.get(key)
        if note is None:
            note = self.notes[key] = Note(short(key), at_s)
            guests = [one for one in self.notes if one not in accounts and one != key]
            if len(guests) >= GUESTS_MAX:
                del self.notes[min(guests, key=lambda one: self.notes[one].seen_at_s)]
        note.seen_at_s = at_s
        return note


def printable(text: str) -> str:
    """A stranger's text without anything that could move a cursor, and not long."""
    return "".join(char if char.isprintable() else "?" for char in text[:NAME_CHARS_MAX])


def read_ledger(path: Path) -> StoredLedger:
    """The ledger in this file. Raises OSError, or CorruptState where it is damaged."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=StoredLedger)
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
        raise CorruptState(f"{path} is not a ledger: {str(error)[:160]}") from error


def write_ledger(path: Path, ledger: StoredLedger) -> None:
    """Keep it durably, in one piece. TransientError where the disk does not take it."""
    write_atomically(path, msgspec.json.format(msgspec.json.encode(ledger), indent=1) + b"\n")
