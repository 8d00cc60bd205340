"""Probes by simulated learners: the daemon's port, with virtual time for its work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from node.machine import jobs
from protocol.errors import MalformedPayload
from protocol.numerics.codecs import F32, decode

if TYPE_CHECKING:
    from simulator.hosts.learner import SimLearner

MEASURE_S = 1.0
Answer = Callable[[object], None]


@dataclass(slots=True)
class SimProber:
    """One learner's."""

    host: SimLearner
    _wish: int = 0
    """Grows with every probe and with every `forget`: what came before is not waited for."""

    def run_job(self, job: jobs.ProbePush, answer: Answer) -> None:
        host, world = self.host, self.host.world
        self._wish += 1
        wish = self._wish

        def measure() -> None:
            fetched = self._fetched(job) if wish == self._wish else "nobody waits for it any more"
            if isinstance(fetched, str):
                answer(jobs.NotProbed("no payload", fetched))
            else:
                host.in_this_life(MEASURE_S, lambda: answer(self._measured(job, fetched)))

        # A length that is not that of the payload is noticed before anything of it is sent.
        delay_s = 2 * world.delay_s()
        if not isinstance(self._fetched(job), str):
            delay_s = world.transfer_s(job.holder or job.leader, host.key, job.payload_bytes)
        host.in_this_life(delay_s, measure)

    def forget(self) -> None:
        """Fetch nothing for it any more."""
        self._wish += 1

    def _fetched(self, job: jobs.ProbePush) -> F32 | str:
        """The displacement, or why there is none."""
        shelf = self.host.reach(job.holder or job.leader)
        payload = shelf.get(job.payload) if shelf is not None else None
        if payload is None or len(payload) != job.payload_bytes:
            return "it is not held any more"
        try:
            return decode(job.codec, payload, self.host.layout.fragments[job.fragment].numel)
        except MalformedPayload as error:
            return str(error)

    def _measured(self, job: jobs.ProbePush, displacement: F32) -> object:
        host = self.host
        if host.trainer is None:
            return jobs.NotProbed("failed", "the trainer ended")
        pushed = host.bank.pushed(job.fragment, displacement)
        own, other = host.backend.gains(pushed, job.fragment, job.own, job.other)
        return jobs.PushProbed(own, other, MEASURE_S)
