"""The ledger: who gave how much, what of it did not count, and why. Read off the folded log.

Nothing is kept for it: every syncer that has the log has the ledger, exactly, after any restart and
whoever leads. Without a running syncer it is folded from the log on the disk.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from pathlib import Path

from msgspec import Struct, field

from host.files.signed_project import OpenedProject, newest_of
from protocol.errors import CorruptState
from protocol.ids import short
from protocol.log.account_book import place
from protocol.log.accounts import Account
from protocol.log.records import record_hash
from protocol.log.state import SwarmState, SwarmSummary
from protocol.status import ContributorRow
from syncer_node.storage.recovery import refold
from syncer_node.storage.store import checkpoints_in, read_meta
from syncer_node.storage.voter_files import VoterFiles

SHOWN_MAX = 64
"""Contributors in one status, besides those who are here."""


class Ledger(Struct, kw_only=True):
    """Everything that the log up to one record counts."""

    project: str
    project_name: str
    epoch: int
    log_index: int
    """Last record that is counted."""
    head: str
    """Hash of that record: two ledgers with the same one are the same."""
    at_s: float
    """When it was read off: Unix seconds."""
    fragments: int
    merges: int
    """Pushes merged, of all contributors."""
    fragment_tokens: int
    """Tokens merged into every fragment, added up."""
    refused: int
    """Pushes that did not count."""
    contributors: list[ContributorRow]
    """Those with most tokens first."""
    invites: dict[str, list[str]] = field(default_factory=dict)
    """The keys that each invite brought, first come first."""


def row(key: bytes, account: Account, fragments: int, *, is_here: bool) -> ContributorRow:
    """One account for people and programs."""
    return ContributorRow(
        key=key.hex(),
        name=account.name or short(key),
        tokens=account.tokens // max(1, fragments),
        fragment_tokens=account.tokens,
        merges=account.merges,
        clipped=account.clipped,
        refused=dict(account.refused),
        merged_at_s=account.merged_at_s,
        is_here=is_here,
        first_at_s=account.first_at_s,
    )


def leading_rows(state: SwarmState, here: Collection[bytes]) -> list[ContributorRow]:
    """Those that gave most, and all who are here and gave anything; most tokens first."""
    chosen = dict(state.accounts.leading(SHOWN_MAX))
    chosen |= {key: state.accounts[key] for key in here if key in state.accounts}
    fragments = len(state.fragments)
    ordered = sorted(chosen.items(), key=place)
    return [row(key, account, fragments, is_here=key in here) for key, account in ordered]


def ledger_of(
    project: OpenedProject, state: SwarmState, here: Collection[bytes], at_s: float
) -> Ledger:
    """The ledger of a folded log. here: who is connected; at_s: wall clock."""
    fragments, accounts = len(state.fragments), state.accounts
    return Ledger(
        project=project.id.hex(),
        project_name=project.genesis.name,
        epoch=state.epoch,
        log_index=state.index,
        head=state.head.hex(),
        at_s=at_s,
        fragments=fragments,
        merges=accounts.merges,
        fragment_tokens=accounts.tokens,
        refused=sum(one.refusals for one in accounts.values()),
        contributors=[
            row(key, account, fragments, is_here=key in here)
            for key, account in sorted(accounts.items(), key=place)
        ],
        invites={one.invite.hex(): [key.hex() for key in one.learners] for one in state.invites()},
    )


def read_state(root: Path, project: OpenedProject) -> SwarmState:
    """The log in this store folded up to its last proven record. CorruptState if it is damaged.

    Only reads. From the newest checkpoint on, if there is one that fits the log.
    """
    with contextlib.closing(VoterFiles(root)) as voter:
        charter = newest_of(project, voter.charter()).charter
        last = voter.proven(charter)
        summary = _checkpoint(root, voter, last) or voter.floor.summary
        state = SwarmState.restore(summary, project.genesis.data.block_sequences)
        refold(state, voter.between(state.index, last), log=f"the log in {root}")
        return state


def _checkpoint(root: Path, voter: VoterFiles, last: int) -> SwarmSummary | None:
    """The state at the newest checkpoint that is of this very log."""
    for index in checkpoints_in(root):
        if not voter.floor.index < index <= last:
            continue
        try:
            _, summary = read_meta(root / "checkpoints" / str(index))
        except CorruptState:
            continue  # Half written or damaged: an older one does, or the whole log.
        if summary is not None and summary.head == record_hash(voter.record(index)):
            return summary
    return None
