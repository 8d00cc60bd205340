"""Weights that a learner lacks: from a part of a snapshot, or from other hosts, by way of files.

What is on its way lies in files until everything is here, so that a daemon that is started again,
however it ended, goes on where it was.
"""

from __future__ import annotations

import logging
import time
from functools import partial
from typing import TYPE_CHECKING

from host.files.begun_weights import BegunWeights, forget_old
from host.files.rooms import F32, Room
from node.machine import jobs
from protocol.errors import MalformedPayload
from protocol.ids import Digest

if TYPE_CHECKING:
    from node.daemon.learner_daemon import LearnerDaemon

log = logging.getLogger("shoal.node")


class StateDownload:
    """Brings whole fragments into the bank."""

    def __init__(self, daemon: LearnerDaemon) -> None:
        self._daemon = daemon
        options = daemon.options
        self._files = BegunWeights(
            options.home.begun_weights(options.link.project, options.instance),
            lambda: daemon.owner_limits.disk_room(),
        )
        daemon.pool.submit(forget_old, self._files.folder.parent.parent, time.time())

    def room(self, root: Digest, size_bytes: int) -> Room:
        """Where an array gathers."""
        return self._files.open(root, size_bytes)

    async def run_job(self, job: jobs.FetchState) -> jobs.StateFetched:
        """Hold a fragment. Raises TransientError when nobody who can be reached has it."""
        daemon = self._daemon
        base = daemon.parts.base(job)
        sources: dict[bytes, int] = {}
        if base is None:
            sources = await self._of_hosts(job)
        else:
            await self._install(job, *base)
        daemon.fetcher.assemblies.forget(job.fragment)  # The bank gives it from now on.
        if all(daemon.bank.version(at) >= 0 for at in range(len(daemon.layout.fragments))):
            await daemon.trainer.in_pool(self._files.clear)
        return jobs.StateFetched(tuple(sources.items()))

    async def _of_hosts(self, job: jobs.FetchState) -> dict[bytes, int]:
        """From other learners, and from the syncer only what none of them has; who sent how many
        bytes."""
        daemon = self._daemon
        states = [fragment.state for fragment in daemon.machine.context.state.fragments]
        self._files.keep_only({root for one in states for root in (one.theta, one.momentum)})
        assembly = await daemon.fetcher.fetch(job, daemon.layout.fragments[job.fragment].numel)
        try:
            await self._install(job, *assembly.arrays())
        except MalformedPayload:
            # A file that the disk, or somebody, changed after it was checked: fetched anew.
            daemon.fetcher.assemblies.forget(job.fragment)
            self._files.remove((job.state.theta, job.state.momentum))
            raise
        if assembly.kept_bytes:
            percent = 100 * assembly.kept_bytes // assembly.total_bytes
            log.info("fragment %d: %d %% of it was here from before", job.fragment, percent)
        return assembly.sources

    async def _install(self, job: jobs.FetchState, theta: F32, momentum: F32) -> None:
        install = partial(
            self._daemon.bank.install, job.fragment, job.version, job.state, theta, momentum
        )
        await self._daemon.trainer.in_pool(install)
