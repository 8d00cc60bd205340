"""Optimizer state between simulated learners: the daemon's port, with virtual time for the network.

What a donor offers lies on its shelf, so it is gone when the donor crashes or withdraws it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from node.machine import jobs
from node.machine.moments import check_moments, steps_of
from protocol.errors import MalformedPayload
from protocol.machine import Failed, Job
from protocol.numerics.codecs import F32
from protocol.numerics.outer import digest
from simulator.stand_ins.tiny import TinyTrainer

if TYPE_CHECKING:
    from simulator.hosts.learner import SimLearner

Answer = Callable[[object], None]


@dataclass(slots=True)
class SimMoments:
    """Both directions of one learner."""

    host: SimLearner
    stall_s: float = 0.0
    """How much longer a transfer from here takes than its bytes explain."""
    held: list[F32] = field(default_factory=list)
    installed: list[F32] = field(default_factory=list)
    """What the present trainer was given."""
    offered: list[bytes] = field(default_factory=list)
    _open: list[Answer] = field(default_factory=list)

    def run_job(self, job: Job, answer: Answer) -> None:
        host = self.host
        match job:
            case jobs.FindDonors():
                keys = tuple(host.reachable())
                host.world.after(2 * host.world.delay_s(), lambda: answer(jobs.DonorsFound(keys)))
            case jobs.FetchMoments():
                self._fetch(job, answer)
            case jobs.CaptureMoments():
                once = self._once(answer)
                host.command(lambda trainer: once(self._capture(trainer)), once)
            case jobs.InstallMoments():
                once = self._once(answer)
                host.command(lambda trainer: once(self._install(trainer)), once)

    def act(self, action: object) -> None:
        match action:
            case jobs.ForgetMoments():
                self.held = []
            case jobs.WithdrawMoments():
                self.withdraw()

    def trainer_lost(self) -> None:
        """Commands that it had not carried out are answered all the same."""
        opened, self._open = self._open, []
        self.installed = []
        for answer in opened:
            answer(Failed("the trainer ended"))

    def withdraw(self) -> None:
        for name in self.offered:
            self.host.blob_store.drop(name)
        self.offered = []

    def _once(self, answer: Answer) -> Answer:
        def once(result: object) -> None:
            if once in self._open:
                self._open.remove(once)
                answer(result)

        self._open.append(once)
        return once

    def _capture(self, trainer: TinyTrainer) -> object:
        self.withdraw()
        for values in trainer.moments:
            blob = values.tobytes()
            self.offered.append(digest(blob))
            self.host.blob_store.put(self.offered[-1], blob)
        return jobs.MomentsCaptured(tuple(self.offered))

    def _fetch(self, job: jobs.FetchMoments, answer: Answer) -> None:
        host, world = self.host, self.host.world
        self.held = []
        size = sum(values.nbytes for values in host.trainer.moments) if host.trainer else 8192
        delay_s = world.transfer_s(job.donor, host.key, size) + host.stall_of(job.donor)
        world.after(delay_s, lambda: answer(self._arrive(job)))

    def _arrive(self, job: jobs.FetchMoments) -> object:
        host = self.host
        donor = host.reach(job.donor)
        if donor is None:
            return Failed("unreachable")
        blobs = [donor.get(name) for name in job.blobs]
        arrays = [np.frombuffer(bytes(blob), np.float32) for blob in blobs if blob is not None]
        if len(arrays) != len(host.layout.fragments):
            return Failed("not held")
        try:
            for fragment, values in zip(host.layout.fragments, arrays, strict=True):
                check_moments(fragment, values, host.tiny.charter.inner)
        except MalformedPayload as error:
            return Failed(str(error))
        self.held = arrays
        return jobs.MomentsFetched()

    def _install(self, trainer: TinyTrainer) -> object:
        held, self.held = self.held, []
        if not held:
            return Failed("the moments are gone")
        trainer.moments = [values.copy() for values in held]
        self.installed = held
        return jobs.MomentsInstalled(steps_of(self.host.layout, held))
