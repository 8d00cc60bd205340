"""Merged payloads of other learners in virtual time: the daemon's rule, with virtual IO."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from node.download.payload_donors import Giving, PayloadDonors, PayloadHunt
from node.machine.jobs import Advance
from simulator.hosts.moments import Answer

if TYPE_CHECKING:
    from simulator.hosts.learner import SimLearner


class SimPayloads:
    """All transfers of one life of a learner."""

    def __init__(self, host: SimLearner) -> None:
        self._host, self._donors = host, PayloadDonors(host.key)
        link = host.world.wires.links.get(host.key)
        rate = host.world.network.bytes_per_s if link is None else link.up_bytes_per_s
        self._giving = Giving(rate)

    def fetch(self, job: Advance, answer: Answer) -> None:
        """Answers once; from the syncer where no donor sends it."""
        here, now_s = self._host.learner.context.state.leases.learners, self._host.world.now_s
        hunt = self._donors.hunt(job.merged.payload, here, now_s)
        if hunt is None:
            self._host.fetch_of_syncer(job, answer)
        else:
            _Fetch(self._host, self._donors, hunt, job, answer).look()

    def may_give(self, digest: bytes) -> bool:
        """Whether this host sends a payload to another learner now."""
        payload, world = self._host.blob_store.get(digest), self._host.world
        if payload is None:
            return False
        return self._giving.may_give(world.carried_bytes(len(payload)), world.now_s)


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
            self._donors.ended(self._hunt, now_s)
            self._host.fetch_of_syncer(self._job, self._answer)
            return
        for key in self._hunt.asks(now_s):
            self._ask(key)
        self._looks += 1
        self._world.at(self._hunt.deadline_s(now_s), partial(self._look_if, self._looks))

    def _look_if(self, number: int) -> None:
        if number == self._looks:
            self.look()

    def _ask(self, key: bytes) -> None:
        merged, world = self._job.merged, self._world
        is_here = self._host.reach(key) is not None
        if is_here and self._host.may_be_given(key, merged.payload):
            delay_s = world.transfer_s(key, self._host.key, merged.payload_bytes)
            world.after(delay_s, partial(self._came, key))
        else:
            failed = partial(self._failed, key, is_waiting=is_here)
            world.after(2 * world.delay_s(), failed)

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
