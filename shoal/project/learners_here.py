"""Learners as a person names them: by the name that status shows, or by how the key begins.

Names are chosen freely, so several keys may have one. Whoever fits is listed then, and nothing is
done.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from host.control import client
from host.files.home import Home
from host.files.signed_project import OpenedProject
from protocol import decoders
from protocol.errors import CorruptState, RemoteError, ShoalError, UserError
from protocol.ids import NodeKey, short
from protocol.log.accounts import printable
from protocol.project import Charter
from protocol.status import SyncerStatus
from shoal.common import daemons
from shoal.common.toml_tables import shown
from shoal.project.charters import KEY_DIGITS_MIN

if TYPE_CHECKING:
    from syncer_node.storage.ledger import Ledger

ANSWER_S = 10.0
LISTED_MAX = 16


@dataclass(frozen=True, slots=True)
class KnownLearner:
    """What this machine knows of a learner."""

    key: NodeKey
    name: str
    tokens: int = 0
    is_here: bool = False

    def __str__(self) -> str:
        state = "here now" if self.is_here else "not here now"
        return f"{printable(self.name)} {self.key.hex()[:16]}… ({self.tokens:,} tokens, {state})"


def ledger_here(home: Home, project: OpenedProject) -> Ledger | None:
    """What a syncer of this home counts for the project, running or not; None without any."""
    from syncer_node.storage.ledger import Ledger, ledger_of, read_state

    for daemon in daemons.fitting(home, "syncer", None):
        try:
            answer = client.call(daemon.socket, "ledger", ANSWER_S)
            found = decoders.convert(answer.get("ledger"), Ledger)
        except (ShoalError, msgspec.ValidationError):
            continue  # Its log is on the disk.
        if found.project == project.id.hex():
            return found
    for store in home.voter_stores(project.id):
        if not store.name.startswith("syncer-"):
            continue
        try:
            return ledger_of(project, read_state(store, project), (), 0.0)
        except (OSError, CorruptState, RemoteError):
            continue  # Another one's may be whole.
    return None


def known_learners(home: Home, project: OpenedProject) -> dict[NodeKey, KnownLearner]:
    """Learners that are here now, or that the log names."""
    found: dict[NodeKey, KnownLearner] = {}
    ledger = ledger_here(home, project)
    for row in ledger.contributors if ledger is not None else []:
        key = bytes.fromhex(row.key)
        found[key] = KnownLearner(key, row.name, row.tokens, row.is_here)
    statuses, _ = daemons.ask_all(daemons.fitting(home, "syncer", None))
    for status in statuses:
        if not isinstance(status, SyncerStatus) or status.project.id != project.id.hex():
            continue
        for peer in status.peers:
            key = bytes.fromhex(peer.key)
            tokens = found[key].tokens if key in found else 0
            is_here = peer.state not in ("gone", "left")
            found[key] = KnownLearner(key, peer.name, tokens, is_here)
    return found


def put_out_by(home: Home, project: OpenedProject, charter: Charter) -> list[KnownLearner]:
    """Learners that are here now and that this charter would not admit."""
    if charter.admission == "open":
        return []
    known = [one for one in known_learners(home, project).values() if one.is_here]
    admitted = set(charter.allowed)
    if charter.admission == "invite":
        ledger = ledger_here(home, project)
        brought = ledger.invites.values() if ledger is not None else ()
        admitted |= {bytes.fromhex(key) for keys in brought for key in keys}
    return [one for one in known if one.key not in admitted and one.key not in charter.banned]


def find_learner(text: str, known: Mapping[NodeKey, KnownLearner]) -> NodeKey:
    """The key that is meant: whole, by its first digits, or by the name that status shows.

    A whole key need not be known. UserError where nobody fits, or several do.
    """
    word = text.strip().rstrip("…")
    digits = word.lower()
    is_hex = all(char in "0123456789abcdef" for char in digits)
    if is_hex and len(digits) == 64:
        return bytes.fromhex(digits)
    is_prefix = is_hex and len(digits) >= KEY_DIGITS_MIN
    fitting = [
        one
        for one in known.values()
        if word == one.name or (is_prefix and one.key.hex().startswith(digits))
    ]
    if len(fitting) == 1:
        return fitting[0].key
    if fitting:
        raise UserError(
            f"{shown(text)} may be any of these: {listed(fitting)}. Name one by the first digits "
            "of its key."
        )
    if not known:
        raise UserError(
            f"{shown(text)} is not a whole key of 64 hex digits, and this machine knows no "
            "learners of the project by name. Run this where a syncer of it runs, or give the "
            "whole key: `shoal status --json` has it."
        )
    near = _nearest(word, known)
    others = f"Nearest: {listed(near)}" if near else f"Known are: {listed(list(known.values()))}"
    raise UserError(
        f"{shown(text)} is neither a name nor the first {KEY_DIGITS_MIN} digits or more of a key. "
        f"{others}."
    )


def _nearest(word: str, known: Mapping[NodeKey, KnownLearner]) -> list[KnownLearner]:
    """Whoever may have been meant by this name."""
    names = {one.name.casefold() for one in known.values()}
    close = difflib.get_close_matches(word.casefold(), sorted(names), n=3)
    return [one for one in known.values() if one.name.casefold() in close]


def listed(learners: list[KnownLearner]) -> str:
    """Some of them, those that are here first."""
    ordered = sorted(learners, key=lambda one: (not one.is_here, -one.tokens, one.key))
    more = f"; and {len(ordered) - LISTED_MAX} more" if len(ordered) > LISTED_MAX else ""
    return "; ".join(str(one) for one in ordered[:LISTED_MAX]) + more


def called(key: NodeKey, known: Mapping[NodeKey, KnownLearner]) -> str:
    """The key as people see it, with its name where that is known."""
    name = known[key].name if key in known else ""
    return f"{printable(name)} {short(key)}" if name and name != short(key) else short(key)
