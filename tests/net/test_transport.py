"""Two or three real hosts on loopback: what the engine does, and what we made of its traps."""

from __future__ import annotations

import asyncio
import contextlib
import glob
import os
import signal
import socket
import stat
import time

import psutil
import pytest

from host import addresses
from host.files import keystore
from host.network import streams
from host.transport import BLOB_PROTOCOL, CONTROL_PROTOCOL
from protocol import limits
from protocol.errors import (
    LimitExceeded,
    MalformedMessage,
    PeerUnreachable,
    TransientError,
    TransportLost,
    UserError,
)
from tests.net.hosts import TOPICS, Host, echo, run, swarm

pytestmark = pytest.mark.net


@pytest.mark.parametrize("chosen", [None, "3"])
def test_an_engine_uses_one_processor_unless_the_environment_says_otherwise(
    tmp_path, monkeypatch, chosen
):
    if chosen is None:
        monkeypatch.delenv("GOMAXPROCS", raising=False)
    else:
        monkeypatch.setenv("GOMAXPROCS", chosen)

    async def main():
        async with swarm(tmp_path, 1) as (one,):
            said = psutil.Process(one.engine_pid).environ()["GOMAXPROCS"]
            assert said == (chosen or "1")

    run(main())


# Identity and control streams


def test_both_ends_see_each_others_signing_key(tmp_path):
    async def main():
        async with swarm(tmp_path, 2) as (one, two):
            seen = asyncio.get_running_loop().create_future()

            async def handler(stream):
                seen.set_result(stream.peer)

            one.transport.serve_control(handler)
            stream = await two.transport.open_control(one.identity.key)
            assert await seen == two.identity.key == two.transport.key
            assert stream.peer == one.identity.key
            text = one.transport.addresses()[0]
            assert text.endswith(f"/tcp/{one.transport.port}/p2p/{keystore.peer_id(stream.peer)}")
            assert not any("tcp/0" in address for address in one.transport.addresses())

    run(main())


def test_a_control_stream_carries_frames_both_ways_in_order(tmp_path):
    async def main():
        async with swarm(tmp_path, 2) as (one, two):
            one.transport.serve_control(echo)
            stream = await two.transport.open_control(one.identity.key)
            frames = [
                b"",
                b"x",
                os.urandom(limits.FRAME_BYTES_MAX),
                *(b"%d" % n for n in range(500)),
            ]
            for frame in frames:
                stream.send(frame)
            assert [await stream.recv() for _ in frames] == frames
            assert two.transport.traffic.up_bytes > limits.FRAME_BYTES_MAX
            counted = two.transport.traffic_by_peer[one.identity.key]
            assert counted.down_bytes > limits.FRAME_BYTES_MAX

    run(main())


def test_what_is_queued_before_close_still_arrives_and_then_the_stream_ends(tmp_path):
    async def main():
        async with swarm(tmp_path, 2) as (one, two):

            async def talk(stream):
                for number in range(100):
                    stream.send(b"%d" % number)

            one.transport.serve_control(talk)
            stream = await two.transport.open_control(one.identity.key)
            assert [await stream.recv() for _ in range(100)] == [b"%d" % n for n in range(100)]
            with pytest.raises(PeerUnreachable, match="closed the control stream"):
                await stream.recv()
            with pytest.raises(PeerUnreachable):
                stream.send(b"too late")

    run(main())


def test_a_cancelled_receive_loses_nothing(tmp_path):
    async def main():
        async with swarm(tmp_path, 2) as (one, two):
            one.transport.serve_control(echo)
            stream = await two.transport.open_control(one.identity.key)
            for _ in range(3):
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.02):
                        await stream.recv()
            stream.send(b"still in step")
            assert await stream.recv() == b"still in step"

    run(main())


def test_writing_to_a_peer_that_has_gone_is_an_error_of_ours(tmp_path):
    async def main():
        async with swarm(tmp_path, 2) as (one, two):

            async def leave(stream):
                stream.abort("gone")

            one.transport.serve_control(leave)
            stream = await two.transport.open_control(one.identity.key)
            await asyncio.sleep(0.1)

            async def talk():
                for _ in range(100):
                    stream.send(b"hello?")
                    await asyncio.sleep(0.01)

            with pytest.raises(PeerUnreachable):
                await talk()
            with pytest.raises(PeerUnreachable):
                await stream.recv()
            await two.transport.lookup(TOPICS[0])  # the transport itself is well

    run(main())


def test_an_oversize_frame_is_refused_before_it_is_read(tmp_path):
    async def main():
        async with swarm(tmp_path, 2) as (one, two):

            async def shout(stream):
                await stream._wire.write((1 << 30).to_bytes(4, "big"), timeout_s=5)
                await asyncio.sleep(5)

            one.transport.serve_control(shout)
            stream = await two.transport.open_control(one.identity.key)
            with pytest.raises(LimitExceeded):
                await stream.recv()
            assert stream.closed_reason is not None

    run(main())


@pytest.mark.parametrize("part", [b"\0\0", b"\0\0\0\x0aonly", b"\0\0\0\x0a"])
def test_a_stream_that_ends_inside_a_frame_is_an_error(tmp_path, part):
    async def main():
        async with swarm(tmp_path, 2) as (one, two):

            async def stop_short(stream):
                await stream._wire.write(part, timeout_s=5)

            one.transport.serve_control(stop_short)
            stream = await two.transport.open_control(one.identity.key)
            with pytest.raises(MalformedMessage, match="truncated"):
                await stream.recv()

    run(main())


def test_a_peer_that_does_not_read_costs_bounded_memory(tmp_path):
    async def main():
        async with swarm(tmp_path, 2) as (one, two):

            async def sleep(stream):
                await asyncio.sleep(30)

            one.transport.serve_control(sleep)
            stream = await two.transport.open_control(one.identity.key)
            frame = bytes(limits.FRAME_BYTES_MAX)

            async def flood():
                for _ in range(1000):
                    stream.send(frame)
                    assert stream._outbox_bytes <= limits.OUTBOX_BYTES_MAX
                    await asyncio.sleep(0)

            with pytest.raises(PeerUnreachable, match="does not read"):
                await flood()
            with pytest.raises(PeerUnreachable, match="does not read"):
                await stream.recv()

    run(main())


def test_more_control_streams_than_allowed_are_told_so(tmp_path):
    async def main():
        async with swarm(tmp_path, 2) as (one, two):
            with pytest.raises(TransientError, match="as many control streams"):
                await two.transport.open_control(one.identity.key)  # no handler yet
            one.transport.serve_control(echo)
            key = one.identity.key
            held = [
                await two.transport.open_control(key)
                for _ in range(streams.CONTROL_STREAMS_PER_PEER_MAX)
            ]
            with pytest.raises(TransientError, match="as many control streams"):
                await two.transport.open_control(key)
            held[0].close()
            await asyncio.sleep(0.2)
            await two.transport.open_control(key)

    run(main())


def test_a_flood_of_streams_is_cut_off(tmp_path, monkeypatch):
    monkeypatch.setattr("host.stream_server.INCOMING_PER_PEER_MAX", 6)

    async def main():
        async with swarm(tmp_path, 2) as (one, two):
            one.transport.serve_control(echo)
            engine, key = two.transport._engine, one.identity.key
            silent = [await engine.dial(key, CONTROL_PROTOCOL, ()) for _ in range(6)]
            for wire in silent:
                await wire.write(b"S", timeout_s=5)  # a stream exists for the peer once it is used
            await asyncio.sleep(0.2)
            with pytest.raises(PeerUnreachable):
                await two.transport.open_control(key)
            for wire in silent:
                wire.abort("enough")
            await asyncio.sleep(0.3)
            await two.transport.open_control(key)

    run(main())


def test_an_unknown_host_is_unreachable(tmp_path):
    async def main():
        async with swarm(tmp_path, 1) as (one,):
            stranger = keystore.load_or_create(tmp_path / "stranger").key
            with pytest.raises(PeerUnreachable, match="dialling host"):
                await one.transport.open_control(stranger)

    run(main())


# Bad days


def test_a_killed_engine_fails_everything_in_flight_and_is_rebuilt(tmp_path):
    async def main():
        async with swarm(tmp_path, 2) as (one, two):
            one.transport.serve_control(echo)
            two.transport.serve_control(echo)
            key, port = one.identity.key, two.transport.port

            async def hang(wire):
                await asyncio.sleep(30)

            one.transport._serving[BLOB_PROTOCOL] = hang
            stream = await two.transport.open_control(key)
            pending = [
                asyncio.ensure_future(stream.recv()),
                asyncio.ensure_future(two.transport.fetch(key, bytes(32), 1_000_000)),
            ]
            await asyncio.sleep(0.2)
            killed_s = time.monotonic()
            os.kill(two.engine_pid, signal.SIGKILL)
            outcomes = await asyncio.gather(*pending, return_exceptions=True)
            assert time.monotonic() - killed_s < 2.0
            assert [type(outcome) for outcome in outcomes] == [TransportLost, TransportLost]
            with pytest.raises(TransportLost):
                await two.transport.lookup(TOPICS[0])
            two.states.clear()
            await two.until(lambda state: state.is_up)
            assert two.transport.port == port
            again = await two.transport.open_control(key)
            again.send(b"alive")
            assert await again.recv() == b"alive"
            back = await one.transport.open_control(two.identity.key)
            back.send(b"handlers survive")
            assert await back.recv() == b"handlers survive"
            await two.transport.announce(TOPICS[0], b"new", 60.0)
            assert two.identity.key in await one.transport.lookup(TOPICS[0])

    run(main())


def test_the_first_host_of_a_swarm_is_found_again_after_its_engine_was_killed(tmp_path):
    async def main():
        async with swarm(tmp_path, 2) as (one, two):
            one.transport.serve_control(echo)
            old = await two.transport.open_control(one.identity.key)
            os.kill(one.engine_pid, signal.SIGKILL)
            with pytest.raises(PeerUnreachable):
                await old.recv()
            await one.until(lambda state: not state.is_up)
            one.states.clear()
            await one.until(lambda state: state.is_up)
            for _ in range(40):
                with contextlib.suppress(TransientError):
                    again = await two.transport.open_control(one.identity.key)
                    break
                await asyncio.sleep(0.25)
            again.send(b"found")
            assert await again.recv() == b"found"
            await two.transport.announce(TOPICS[0], b"two", 60.0)
            assert await one.transport.lookup(TOPICS[0]) == {two.identity.key: b"two"}

    run(main())


def freeze(pid):
    os.kill(pid, signal.SIGSTOP)
    os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)  # the signal takes a moment to arrive


def test_a_frozen_engine_is_noticed(tmp_path, monkeypatch):
    monkeypatch.setattr("host.network.engine.PROBE_EVERY_S", 0.2)
    monkeypatch.setattr("host.network.engine.ENGINE_CALL_S", 0.5)

    async def main():
        async with swarm(tmp_path, 2) as (one, two):
            pid = two.engine_pid
            freeze(pid)
            with pytest.raises(TransportLost):
                await two.transport.open_control(one.identity.key)
            two.states.clear()
            await two.until(lambda state: state.is_up)
            assert two.engine_pid != pid
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)

    run(main())


def test_a_busy_port_is_refused_in_words(tmp_path):
    async def main():
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
            host = Host(tmp_path, "late", bootstrap=[], port=port)
            with pytest.raises(UserError, match=f"port {port} is in use by another program"):
                await host.transport.start()
            await host.transport.close()

    run(main())


def test_a_free_port_that_somebody_else_gets_first_is_given_up_for_another(tmp_path, monkeypatch):
    async def main():
        with socket.create_server(("127.0.0.1", 0)) as listener:
            taken = listener.getsockname()[1]
            found = iter([taken])
            choose = addresses.kept_port
            monkeypatch.setattr(
                addresses, "kept_port", lambda *at, **how: next(found, None) or choose(*at, **how)
            )
            host = Host(tmp_path, "late", bootstrap=[])
            await host.transport.start()
            assert host.transport.port not in (0, taken)
            await host.transport.close()

    run(main())


def test_an_unreachable_bootstrap_is_named_and_tried_again(tmp_path):
    async def main():
        async with swarm(tmp_path, 1) as (one,):
            dead = one.transport.addresses()
            port = one.transport.port
            await one.transport.close()
            host = Host(tmp_path, "joiner", bootstrap=dead)
            with pytest.raises(PeerUnreachable, match=dead[0]):
                await host.transport.start()
            attempts, failed = [], asyncio.Event()

            def note(why, pause_s):
                attempts.append((why, pause_s))
                failed.set()

            revived = Host(tmp_path, "host0", bootstrap=[], port=port)
            try:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(host.transport.start_with_retry(note))
                    await failed.wait()
                    await revived.transport.start()
                assert dead[0] in attempts[0][0]
                assert 0.5 < attempts[0][1] < 1.5
                assert [state.is_up for state in host.states] == [True]
            finally:
                await host.transport.close()
                await revived.transport.close()

    run(main())


def test_a_wrong_clock_is_named(tmp_path, monkeypatch):
    async def main():
        async with swarm(tmp_path, 1) as (one,):
            late = Host(tmp_path, "late", bootstrap=one.transport.addresses())
            module = "hivemind.dht.protocol.MAX_DHT_TIME_DISCREPANCY_SECONDS"
            monkeypatch.setattr(module, -1)  # the same as a peer whose clock is that far off
            with pytest.raises(TransientError, match="set it with NTP"):
                await late.transport.start()
            await late.transport.close()

    run(main())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "host:4100",
        "/ip4/127.0.0.1/tcp/1",
        "/ip4/127.0.0.1/udp/1/quic-v1/p2p/{id}",
        "/ip4/1.2.3/tcp/1/p2p/{id}",
        "/ip4/127.0.0.1/tcp/0/p2p/{id}",
        "/ip4/127.0.0.1/tcp/1/p2p/Qm",
    ],
)
def test_addresses_that_cannot_work_are_refused_at_once(tmp_path, text):
    other = keystore.load_or_create(tmp_path / "other").key
    with pytest.raises(UserError, match="address"):
        Host(tmp_path, "one", bootstrap=[text.format(id=keystore.peer_id(other))])


def test_closing_is_quick_and_leaves_nothing(tmp_path):
    async def main():
        async with swarm(tmp_path, 2) as (one, two):
            mine = one.engine_sockets | two.engine_sockets
            assert len(mine) == 4
            assert mine <= set(glob.glob("/tmp/hivemind-*.sock"))
            assert {stat.S_IMODE(os.stat(name).st_mode) & 0o077 for name in mine} == {0}
            one.transport.serve_control(echo)
            stream = await two.transport.open_control(one.identity.key)
            await one.transport.announce(TOPICS[0], b"here", 60.0)
            pids = [one.engine_pid, two.engine_pid]
            for host in (one, two):
                started_s = time.monotonic()
                await host.transport.close()
                assert time.monotonic() - started_s < 1.5
            with pytest.raises(TransientError):
                await stream.recv()
            with pytest.raises(TransportLost, match="shutting down"):
                await two.transport.lookup(TOPICS[0])
            for pid in pids:
                with pytest.raises(ProcessLookupError):
                    os.kill(pid, 0)
            assert not mine & set(glob.glob("/tmp/hivemind-*.sock"))

    run(main())


def test_closing_after_the_engine_was_killed_does_not_hang(tmp_path):
    async def main():
        async with swarm(tmp_path, 1) as (one,):
            os.kill(one.engine_pid, signal.SIGKILL)
            started_s = time.monotonic()
            await one.transport.close()
            assert time.monotonic() - started_s < 3.0

    run(main())
