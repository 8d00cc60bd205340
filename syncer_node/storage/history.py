"""How a run went, over time: read off the log on the disk of a syncer.

The log has every merge and every measurement with the leader's clock. Records that were forgotten
live on in the summary before the log: what was measured then is here without a time.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from msgspec import Struct

from host.files.signed_project import OpenedProject, newest_of
from protocol.ids import short
from protocol.log.records import FragmentMerged, Record, SeatTaken
from protocol.log.state import SwarmState
from syncer_node.storage.recovery import refold_all
from syncer_node.storage.voter_files import VoterFiles

SAMPLES_MAX = 2048
"""Samples of a whole run at most; half as many at least, once it has so many merges."""

SHOWN_MAX = 8
"""Learners that have a curve of their own: those that gave most."""


class Sample(Struct, frozen=True):
    """What the log counted up to one merge; every number only grows but `tokens`."""

    at_s: float
    """Unix seconds, by the leader's clock."""
    global_step: int
    tokens: int
    """Progress of the run; less than before where tokens were taken back."""
    tokens_merged: int
    merges: int
    """Since the first record of this log."""
    pushes: int
    """In these merges."""
    by_learner: dict[bytes, int]
    """Tokens of each, the mean over fragments."""


class Measurement(Struct, frozen=True):
    """One point of the held-out curve."""

    global_step: int
    tokens: int
    loss: float
    is_agreed: bool
    """Whether two learners measured it and agree."""


class History(Struct, kw_only=True):
    """A run from the first record of this log to its last."""

    project: str
    project_name: str
    log_index: int
    samples: list[Sample]
    measured: list[Measurement]
    best: Measurement | None
    elections_s: list[float]
    """When a leader took the seat, but for the first."""
    learners: list[tuple[bytes, str]]
    """Keys and names of those that gave most, the largest first; at most `SHOWN_MAX`."""


class _Sampling:
    """Samples at equal numbers of merges, thinned as the run grows."""

    def __init__(self) -> None:
        self.samples: list[Sample] = []
        self.elections_s: list[float] = []
        self._merges = self._pushes = 0
        self._stride = 1
        self._now_s = 0.0

    def see(self, record: Record, state: SwarmState) -> None:
        """Takes the next record into account; state: that follows it."""
        # A new leader's clock may be behind: time does not run backwards in a picture.
        self._now_s = max(self._now_s, record.at_s)
        if isinstance(record.body, SeatTaken):
            self.elections_s.append(self._now_s)
        elif isinstance(record.body, FragmentMerged):
            self._merges += 1
            self._pushes += len(record.body.contributions)
            if self._merges % self._stride == 0:
                self._take(state)

    def close(self, state: SwarmState) -> None:
        """The last merge is a sample in any case."""
        if self._merges % self._stride:
            self._take(state)

    def _take(self, state: SwarmState) -> None:
        fragments = max(1, len(state.fragments))
        given = {key: account.tokens // fragments for key, account in state.accounts.items()}
        counts = (self._merges, self._pushes, given)
        progress = (state.global_step, state.tokens, state.tokens_merged)
        self.samples.append(Sample(self._now_s, *progress, *counts))
        if len(self.samples) >= SAMPLES_MAX:
            self.samples = self.samples[1::2]
            self._stride *= 2


def read_history(root: Path, project: OpenedProject) -> History:
    """The history of the log in this store, up to its last proven record. CorruptState if it is
    damaged. Only reads."""
    with contextlib.closing(VoterFiles(root)) as voter:
        last = voter.proven(newest_of(project, voter.charter()).charter)
        state = SwarmState.restore(voter.floor.summary, project.genesis.data.block_sequences)
        sampling = _Sampling()
        stored = voter.between(state.index, last)
        for record in refold_all(state, stored, log=f"the log in {root}"):
            sampling.see(record, state)
        sampling.close(state)
    return _history(project, state, sampling)


def _history(project: OpenedProject, state: SwarmState, sampling: _Sampling) -> History:
    accounts = state.accounts
    ordered = sorted(accounts, key=lambda key: (-accounts[key].tokens, key))
    given = [key for key in ordered if accounts[key].tokens]
    points = {
        one.checkpoint: Measurement(one.global_step, one.tokens, one.loss, one.is_agreed)
        for one in state.curve
    }
    return History(
        project=project.id.hex(),
        project_name=project.genesis.name,
        log_index=state.index,
        samples=sampling.samples,
        measured=list(points.values()),
        best=None if state.best is None else points[state.best.checkpoint],
        elections_s=sampling.elections_s[1:],
        learners=[(key, accounts[key].name or short(key)) for key in given[:SHOWN_MAX]],
    )
