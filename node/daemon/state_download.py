"""Weights that a learner lacks: from its own disk, or from other hosts, by way of files.

What is on its way lies in files until everything is here, so that a daemon that is started again,
however it ended, goes on where it was. One that is told to stop keeps what it has.
"""

from __future__ import annotations

import logging
import time
from functools import partial
from typing import TYPE_CHECKING

from host.files.begun_weights import BOOKMARK, BegunWeights, forget_old
from host.files.rooms import Room
from host.runtime.checked_files import read_checked, write_checked
from node.machine import jobs
from node.machine.bookmark import Bookmark, decoded, encoded
from protocol.errors import CorruptState, MalformedPayload
from protocol.ids import Digest
from protocol.numerics.buffers import F32

if TYPE_CHECKING:
    from node.daemon.learner_daemon import LearnerDaemon

KEEP_S_MAX = 10.0
"""For a daemon that was told to stop: its owner waits, and a system that shuts down does not."""

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

    def read_bookmark(self) -> Bookmark | None:
        """What a former life of this daemon kept, unproven."""
        try:
            held = read_checked(self._files.folder / BOOKMARK)
            return decoded(held)
        except FileNotFoundError:
            return None
        except (OSError, CorruptState) as error:
            log.warning("what this daemon kept when it stopped cannot be read: %s", error)
            return None

    async def keep(self, bookmark: Bookmark | None) -> None:
        """Write the weights that are here, and what they are the weights of, for the next life.

        What takes longer than `KEEP_S_MAX` is left to the next life to fetch.
        """
        if bookmark is None:
            return
        bank, pool = self._daemon.bank, self._daemon.trainer.in_pool
        until_s = time.monotonic() + KEEP_S_MAX
        kept = 0
        for at, fragment in enumerate(bookmark.summary.fragments):
            held = bank.held(at)
            if held is None or held.state != fragment.state or time.monotonic() > until_s:
                continue
            state = held.state
            arrays = ((state.theta, held.theta), (state.momentum, held.momentum))
            if all([await pool(partial(self._files.keep, *array)) for array in arrays]):
                kept += 1
        if kept:
            content = encoded(bookmark)
            await pool(lambda: write_checked(self._files.folder / BOOKMARK, content))
            log.info(
                "kept %d of %d fragments for the next start",
                kept,
                len(self._daemon.layout.fragments),
            )

    async def run_job(self, job: jobs.FetchState) -> jobs.StateFetched:
        """Hold a fragment. Raises TransientError when nobody who can be reached has it."""
        daemon = self._daemon
        base = daemon.parts.base(job)
        sources: dict[bytes, int] = {}
        if base is not None:
            await self._install(job, *base)
        elif not await self._is_kept(job):
            sources = await self._of_hosts(job)
        daemon.fetcher.assemblies.forget(job.fragment)  # The bank gives it from now on.
        if min(daemon.bank.versions) >= 0:
            await daemon.trainer.in_pool(self._files.clear)
        return jobs.StateFetched(tuple(sources.items()))

    async def _is_kept(self, job: jobs.FetchState) -> bool:
        """Hold a fragment that a former life kept; whether there is one."""
        bookmark = self._daemon.machine.setup.bookmark
        # One that the machine did not accept may say anything.
        if bookmark is None or all(one.state != job.state for one in bookmark.summary.fragments):
            return False
        size_bytes = 4 * self._daemon.layout.fragments[job.fragment].numel
        theta = self._files.whole(job.state.theta, size_bytes)
        momentum = self._files.whole(job.state.momentum, size_bytes)
        if theta is None or momentum is None:
            return False
        try:
            await self._install(job, theta, momentum)
        except MalformedPayload as error:
            log.warning("what this daemon kept of its weights is damaged: %s", error)
            return False
        return True

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
