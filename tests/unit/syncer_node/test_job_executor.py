"""What arrives is checked while merges are computed: pushes have a deadline, merges have none."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace

from host.runtime.compute_pool import Cores
from syncer_node.daemon.job_executor import MERGES_AT_ONCE, JobExecutor
from syncer_node.machine.jobs import FetchPush, PushFetched
from tests.support.builders import ONE, push_header


class Delivered:
    """A transport that has every payload at once."""

    key = bytes(32)

    def __init__(self, payload):
        self._payload = payload

    async def fetch(self, peer, name, size):
        return self._payload


def test_a_push_is_checked_while_all_threads_for_merges_are_busy(tmp_path):
    kept = []
    unused = SimpleNamespace(close=lambda: None, shutdown=lambda **_: None, root=tmp_path)
    bank = SimpleNamespace(keep_push=lambda *push: kept.append(push))
    executor = JobExecutor(
        transport=Delivered(b"payload"),
        store=unused,
        bank=bank,
        disk=unused,
        disk_pool=unused,
        cores=Cores(1),
        project=bytes(32),
        kept_marks=set,
        other_syncers=list,
    )
    merged = threading.Event()
    for _ in range(MERGES_AT_ONCE + 1):
        executor.merge_pool.submit(merged.wait)
    try:
        job = FetchPush(ONE.key, 1, push_header(), left_s=5.0, is_proven=True)
        answer = asyncio.run(asyncio.wait_for(executor.run_job(job), 60.0))
    finally:
        merged.set()
        executor.close()
    assert isinstance(answer, PushFetched)
    assert len(kept) == 1
