"""The one connection to the network engine on which all table calls depend."""

from __future__ import annotations

import asyncio
from uuid import UUID, uuid4

import pytest
from hivemind.proto import p2pd_pb2

from host.network.engine import _Awaited
from tests.net.hosts import TOPICS, run, swarm

pytestmark = pytest.mark.net


def control(host):
    return host.transport._engine._p2p._client.control


def test_a_call_that_was_cancelled_awaits_no_answer():
    async def main():
        calls = _Awaited()
        calls["waiting"], calls["cancelled"] = asyncio.Future(), asyncio.Future()
        calls["cancelled"].cancel()
        assert "waiting" in calls
        assert "cancelled" not in calls
        assert "unknown" not in calls
        assert calls.pop("cancelled").cancelled()

    asyncio.run(main())


def answer_to(call: UUID) -> bytes:
    """What the engine sends when the other host has answered, with its length before it."""
    said = p2pd_pb2.PersistentConnectionResponse(
        callId=call.bytes, callUnaryResponse=p2pd_pb2.CallUnaryResponse(response=b"late")
    ).SerializeToString()
    return bytes([len(said)]) + said


def test_an_answer_to_a_cancelled_call_does_not_end_all_calls(tmp_path):
    async def main():
        async with swarm(tmp_path, 1) as (one,):
            cancelled, waiting = uuid4(), uuid4()
            calls = control(one)._pending_calls
            calls[cancelled], calls[waiting] = asyncio.Future(), asyncio.Future()
            calls[cancelled].cancel()
            reader = asyncio.StreamReader()
            reader.feed_data(answer_to(cancelled) + answer_to(waiting))
            reader.feed_eof()
            await control(one)._read_from_persistent_conn(reader)
            assert calls.pop(waiting).result() == b"late"
            del calls[cancelled]

    run(main())


def test_an_engine_that_no_longer_listens_to_us_is_replaced(tmp_path):
    async def main():
        async with swarm(tmp_path, 2) as (one, two):
            two.states.clear()
            control(two)._read_task.cancel()
            state = await two.until(lambda state: not state.is_up)
            assert "connection to the network engine broke" in state.reason
            await two.until(lambda state: state.is_up)
            await two.transport.announce(TOPICS[0], b"back", 60.0)
            found = await one.transport.lookup(TOPICS[0])
            assert found[two.identity.key] == b"back"

    run(main(), timeout_s=40.0)
