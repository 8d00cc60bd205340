"""Merged payloads of other learners in virtual time: the daemon's rule, with virtual IO."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from host.bulk.giving import Giving
from node.download.payload_donors import REFUSED_S, PayloadDonors, PayloadHunt
from node.machine.jobs import Advance
from protocol.machine import Failed
from simulator.hosts.moments import Answer

if TYPE_CHECKING:
    from simulator.hosts.learner import SimLearner


NEWS_S = 1.0
"""Something of a payload comes so often."""


REFUSED: Final = Failed("its line is behind")
"""What a syncer's no comes to."""


class SimPayloads:
    """All transfers of one life of a learner."""

    def __init__(self, host: SimLearner) -> None:
        self._host, self._donors = host, PayloadDonors(host.key)
        self._giving = Giving(host.world.wires.up_bytes_per_s(host.key))

    def fetch(self, job: Advance, answer: Answer) -> None:
        """Answers once; from the syncer where no donor sends it."""
        here, now_s = self._host.learner.context.state.leases.learners, self._host.world.now_s
        hunt = self._donors.hunt(job.merged.payload, here, now_s, job.merged.copies)
        answer_once = partial(self._answered, job, answer, now_s + REFUSED_S, 0)
        if hunt is None:
            self._host.fetch_of_syncer(job, answer_once)
        else:
            _Fetch(self._host, self._donors, hunt, job, answer_once).look()

    def _answered(
        self, job: Advance, answer: Answer, until_s: float, refusals: int, result: object
    ) -> None:
        """Looks on among learners where the syncer said no."""
        now_s = self._host.world.now_s
        if result is not REFUSED or now_s > until_s:
            answer(result)
            return
        here = self._host.learner.context.state.leases.learners
        hunt = self._donors.again(job.merged.payload, here, now_s, refusals + 1)
        again = partial(self._answered, job, answer, until_s, refusals + 1)
        _Fetch(self._host, self._donors, hunt, job, again).look()

    def may_give(self, to: bytes, digest: bytes) -> bool:
        """Whether this host sends a payload to another learner now."""
        payload, world = self._host.blob_store.get(digest), self._host.world
        if payload is None:
            return False
        size = world.carried_bytes(len(payload))
        return self._giving.may_give(to, digest, size, world.now_s)


class _Fetch:
    """One payload."""

    def __init__(
        self,
        host: SimLearner,
        donors: PayloadDonors,
        hunt: PayloadHunt,
        job: Advance,
        answer: Answer,
    ) -> None:
        self._host, self._world, self._life = host, host.world, host.life
        self._donors, self._hunt, self._job, self._answer = donors, hunt, job, answer
        self._is_over = False
        self._looks = 0

    def look(self) -> None:
        """Asks whoever is due, and comes again when somebody is."""
        if self._is_over or self._host.life != self._life:
            return
        now_s = self._world.now_s
        if self._hunt.is_over(now_s):
            self._is_over = True
            self._hunt.end(now_s)
            self._host.fetch_of_syncer(self._job, self._of_syncer)
            return
        for key in self._hunt.asks(now_s):
            self._ask(key)
        self._looks += 1
        self._world.at(self._hunt.deadline_s(now_s), partial(self._look_if, self._looks))

    def _of_syncer(self, result: object) -> None:
        if result is REFUSED or not isinstance(result, Failed):
            self._donors.answered(self._hunt, self._world.now_s)
        self._answer(result)

    def _look_if(self, number: int) -> None:
        if number == self._looks:
            self.look()

    def _ask(self, key: bytes) -> None:
        merged, world = self._job.merged, self._world
        is_here = self._host.meets(key)
        if is_here and self._host.may_be_given(key, merged.payload):
            delay_s = world.transfer_s(key, self._host.key, merged.payload_bytes)
            world.after(delay_s, partial(self._came, key))
            self._hear_of(key, world.now_s, delay_s)
        else:
            failed = partial(self._failed, key, is_waiting=is_here)
            world.after(2 * world.delay_s(), failed)

    def _hear_of(self, key: bytes, begun_s: float, took_s: float) -> None:
        """Transfers that share a line all go on, if slowly: some of each comes all the time."""
        now_s = self._world.now_s
        if self._is_over or now_s >= begun_s + took_s:
            return
        if now_s > begun_s:
            self._hunt.heard(key, now_s, (now_s - begun_s) / took_s)
        self._world.after(NEWS_S, partial(self._hear_of, key, begun_s, took_s))

    def _failed(self, key: bytes, *, is_waiting: bool) -> None:
        self._hunt.failed(key, self._world.now_s, is_waiting=is_waiting)
        self.look()

    def _came(self, key: bytes) -> None:
        if self._is_over or self._host.life != self._life:
            return
        advanced = self._host.advance_with(self._job, key)
        if advanced is None:
            self._failed(key, is_waiting=False)
            return
        self._is_over = True
        self._donors.held(self._hunt, self._world.now_s)
        self._answer(advanced)
