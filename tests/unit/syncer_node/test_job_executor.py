"""What arrives is checked while merges are computed: pushes have a deadline, merges have none."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace

import pytest
from blake3 import blake3

from host.runtime.compute_pool import Cores
from syncer_node.daemon.job_executor import MERGES_AT_ONCE, JobExecutor
from syncer_node.machine.jobs import FetchPush, PushFetched, PushRefused
from tests.support.builders import ONE, push_header

PAYLOAD = b"payload"


class Delivered:
    """A transport that has every payload at once."""

    key = bytes(32)

    def __init__(self, payload):
        self._payload = payload

    async def fetch(self, peer, name, size, *, into, is_checked):
        assert not is_checked, "that is done on the thread for it"
        into[:] = self._payload
        return into


@pytest.fixture
def kept():
    return []


@pytest.fixture
def executor(tmp_path, kept):
    unused = SimpleNamespace(close=lambda: None, shutdown=lambda **_: None, root=tmp_path)
    made = JobExecutor(
        transport=Delivered(PAYLOAD),
        store=unused,
        bank=SimpleNamespace(keep_push=lambda *push: kept.append(push)),
        disk=unused,
        disk_pool=unused,
        cores=Cores(1),
        project=bytes(32),
        kept_marks=set,
        other_syncers=list,
    )
    yield made
    made.close()


def fetch(executor, signed):
    """What becomes of a push whose payload has this digest."""
    header = push_header(digest=signed, payload_bytes=len(PAYLOAD))
    job = FetchPush(ONE.key, 1, header, left_s=5.0, is_proven=True)
    return asyncio.run(asyncio.wait_for(executor.run_job(job), 60.0))


def test_a_push_is_checked_while_all_threads_for_merges_are_busy(executor, kept):
    merged = threading.Event()
    for _ in range(MERGES_AT_ONCE + 1):
        executor.merge_pool.submit(merged.wait)
    try:
        assert isinstance(fetch(executor, blake3(PAYLOAD).digest()), PushFetched)
    finally:
        merged.set()
    assert len(kept) == 1


def test_bytes_other_than_signed_are_refused(executor, kept):
    answer = fetch(executor, blake3(b"another").digest())
    assert isinstance(answer, PushRefused)
    assert answer.reason == "malformed-payload"
    assert kept == []
