"""The HTTP port: what it answers, to whom, and that it can neither hang nor be hung."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import time
from typing import get_args

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from host.control.http import Monitor
from host.control.metrics import metrics_of
from host.control.server import ControlServer
from host.options import MonitorAt
from protocol.errors import UserError
from protocol.messages import LearnerState
from protocol.status import (
    GuestStatus,
    LimitRow,
    PeerRow,
    SeatStatus,
    SyncerStatus,
    VoterRow,
    WitnessStatus,
)
from shoal.common.choices import monitor_at
from tests.support.daemon_double import STATUS

HERE = MonitorAt("127.0.0.1", 0)


def told(status) -> dict:
    return msgspec.to_builtins(status)


def served(ask, *, status=STATUS, monitor_place=HERE):
    """What `ask(port)` returns, on a thread, while a daemon answers on its loop."""

    async def main():
        async def answer() -> dict:
            return told(status)

        monitor = Monitor(monitor_place, answer)
        monitor.start()
        try:
            return await asyncio.to_thread(ask, monitor.port)
        finally:
            await monitor.close()

    return asyncio.run(main())


def get(path: str, *, method: str = "GET", headers: dict[str, str] | None = None):
    """A question; returns (status, body) of the answer."""

    def ask(port: int) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request(method, path, headers=headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()

    return ask


def values(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_metrics_are_what_prometheus_reads():
    code, text = served(get("/metrics"))
    assert code == 200
    found = values(text)
    assert found["shoal_uptime_seconds", ()] == 65.0
    assert found["shoal_committed_tokens_total", ()] == 41.0
    assert found["shoal_learner_state", (("state", "training"),)] == 1.0
    assert found["shoal_learner_state", (("state", "starved"),)] == 0.0
    (labels,) = [dict(labels) for name, labels in found if name == "shoal_info"]
    assert (labels["role"], labels["project"]) == ("learner", "tiny")
    assert any(name == "shoal_process_resident_memory_bytes" for name, _ in found)


def test_metrics_have_every_state_of_a_learner():
    """A state that is missing while it is not the present one has gaps in its series."""
    found = {
        sample.labels["state"]
        for family in metrics_of(told(STATUS))
        for sample in family.samples
        if family.name == "shoal_learner_state"
    }
    assert found == {*get_args(LearnerState), "adrift", "ended"}
    assert "finishing" in found


def test_the_status_is_that_of_the_control_socket():
    code, text = served(get("/api/v1/status"))
    assert (code, json.loads(text)) == (200, told(STATUS))


def test_health_says_how_things_are():
    code, text = served(get("/healthz"))
    assert code == 200
    assert json.loads(text) == {"status": "ok", "says": STATUS.sentence}


@pytest.mark.parametrize("path", ["/healthz", "/metrics", "/api/v1/status"])
def test_a_loop_that_hangs_is_unwell_and_soon_said(path, monkeypatch):
    monkeypatch.setattr("host.control.http.ANSWER_S", 0.2)

    async def main():
        async def never() -> dict:
            await asyncio.sleep(60)
            raise AssertionError

        monitor = Monitor(HERE, never)
        monitor.start()
        answer = await asyncio.to_thread(get(path), monitor.port)
        await monitor.close()
        return answer

    code, text = asyncio.run(main())
    assert code == 503
    assert "did not answer" in text


@pytest.mark.parametrize(
    ("path", "method", "headers", "code"),
    [
        ("/", "GET", {}, 404),
        ("/api/v1/stop", "GET", {}, 404),
        ("/metrics", "POST", {}, 405),
        ("/metrics", "GET", {"Host": "evil.example:9464"}, 403),
        ("/metrics", "GET", {"Host": "localhost"}, 200),
        ("/metrics", "GET", {"Host": "127.0.0.1:9464"}, 200),
        ("/metrics", "GET", {"Host": "[::1]:9464"}, 200),
        ("/metrics", "HEAD", {}, 200),
    ],
)
def test_nothing_else_is_answered(path, method, headers, code):
    assert served(get(path, method=method, headers=headers))[0] == code


def test_an_exposed_port_may_be_named():
    """In a network of containers a scraper knows others by name."""
    everywhere = MonitorAt("0.0.0.0", 0)
    answer = served(get("/healthz", headers={"Host": "learner:9464"}), monitor_place=everywhere)
    assert answer[0] == 200


def test_a_client_that_says_nothing_does_not_keep_others_out(monkeypatch):
    monkeypatch.setattr("host.control.http._Handler.timeout", 0.2)

    def ask(port: int) -> float:
        with socket.create_connection(("127.0.0.1", port)):
            started = time.monotonic()
            assert get("/healthz")(port)[0] == 200
            return time.monotonic() - started

    assert served(ask) < 30.0


def test_a_port_in_use_is_told_and_leaves_no_socket_behind(tmp_path):
    async def main():
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            other.listen()
            path = tmp_path / "run" / "learner.sock"
            place = MonitorAt("127.0.0.1", other.getsockname()[1])
            server = ControlServer(path, {"status": lambda _: {}}, monitor=place)
            with pytest.raises(UserError, match="Choose another with --monitor"):
                await server.start()
            assert not path.exists()

    asyncio.run(main())


def test_the_control_server_brings_it_along(tmp_path):
    async def main():
        handlers = {"status": lambda _: {"status": told(STATUS)}}
        server = ControlServer(tmp_path / "run" / "learner.sock", handlers, monitor=HERE)
        await server.start()
        answer = await asyncio.to_thread(get("/healthz"), server._monitor.port)
        await server.close()
        assert answer[0] == 200

    asyncio.run(main())


def samples(status) -> dict[tuple[str, tuple[str, ...]], float]:
    return {
        (sample.name, tuple(sample.labels.values())): sample.value
        for metric in metrics_of(told(status))
        for sample in metric.samples
    }


def test_a_syncers_learners_have_a_series_each():
    peer = PeerRow(
        key="ab" * 32,
        name="ada",
        device="cpu",
        state="training",
        heard_s=0.5,
        tokens_per_s=100.0,
        merges=7,
    )
    seat = SeatStatus(
        role="leading",
        epoch=0,
        term=3,
        leader="s",
        standbys=1,
        voters=[
            VoterRow(key="s", role="syncer", priority=1, is_self=True),
            VoterRow(key="w", role="witness", priority=0),
        ],
    )
    status = SyncerStatus(
        key="s",
        name="syncer",
        pid=1,
        version="0",
        uptime_s=1.0,
        phase="training",
        sentence="",
        join_link="",
        project=STATUS.project,
        swarm=STATUS.swarm,
        network=STATUS.network,
        peers=[peer],
        outcomes={"merged": 5},
        seat=seat,
    )
    found = samples(status)
    assert found["shoal_learner_tokens_per_second", ("ada", "abababab")] == 100.0
    assert found["shoal_learner_merges_total", ("ada", "abababab")] == 7.0
    assert found["shoal_learners", ("training",)] == 1.0
    assert found["shoal_push_outcomes_total", ("merged",)] == 5.0
    assert found["shoal_is_leader", ()] == 1.0
    assert (found["shoal_voters", ()], found["shoal_voters_here", ()]) == (2.0, 1.0)


def test_a_witness_has_the_election():
    seat = SeatStatus(role="following", epoch=0, term=3, leader="", leaderless_s=4.0)
    status = WitnessStatus(
        key="w",
        name="w",
        pid=1,
        version="0",
        uptime_s=1.0,
        sentence="",
        project=STATUS.project,
        seat=seat,
        log_index=9,
        stored_from=1,
        network=STATUS.network,
    )
    found = samples(status)
    assert found["shoal_leaderless_seconds", ()] == 4.0
    assert found["shoal_is_leader", ()] == 0.0


def test_limits_are_shown_with_what_is_taken():
    row = LimitRow(key="limits.cpu_percent", words="", unit="percent", ceiling=50.0, used=49.0)
    found = samples(msgspec.structs.replace(STATUS, guest=GuestStatus(limits=[row])))
    assert found["shoal_limit", ("limits.cpu_percent", "percent")] == 50.0
    assert found["shoal_limit_used", ("limits.cpu_percent", "percent")] == 49.0


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("9464", MonitorAt("127.0.0.1", 9464)),
        ("192.0.2.7:9464", MonitorAt("192.0.2.7", 9464)),
        ("[::1]:9464", MonitorAt("::1", 9464)),
    ],
)
def test_a_place_is_a_port_or_an_address_and_a_port(text, place):
    assert monitor_at(text) == place


@pytest.mark.parametrize("text", ["", "web", "example.org:80", "70000", "1.2.3.4:", "-1"])
def test_another_place_is_refused(text):
    with pytest.raises(UserError, match="is not an address for the monitor"):
        monitor_at(text)
