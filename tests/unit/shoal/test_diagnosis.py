"""`shoal doctor`: what it concludes, and how it says so. The trials themselves are in tests/net."""

from __future__ import annotations

import json

import msgspec
import pytest

from host.files.home import Home
from node.daemon.swarm_trial_facts import NamedHost, SwarmAnswer
from node.trainer.tools.trial_facts import TrialAnswer
from protocol.errors import UserError
from protocol.numerics.codecs import payload_bytes
from shoal.__main__ import main
from shoal.common import settings_file
from shoal.doctor import command, diagnosis, findings, probes, requirements
from shoal.doctor.diagnosis import GIB
from shoal.doctor.findings import Finding
from shoal.doctor.requirements import Needs
from tests.support.builders import layout, project
from tests.support.daemon_double import LINK

NEEDS = Needs(
    parameters=1_000_000,
    step_tokens=2_000,
    local_steps=10,
    payload_bytes_up=520_000,
    payload_bytes_down=520_000,
    fragment_bytes_max=65_000,
    pull_timeout_s=65.0,
    token_budget=10_000_000_000,
)
TRIAL = TrialAnswer(
    torch="2", device="cpu", parameters=1, sequences=8, tokens_per_s=2_000.0, memory_bytes=GIB
)
SWARM = SwarmAnswer(
    engine_s=0.5,
    addresses=["/ip4/192.168.0.7/tcp/4100/p2p/x"],
    hosts=[NamedHost(address="a", path="direct", rtt_s=0.02), NamedHost(address="b")],
    genesis=b"g",
    down_bytes_per_s=1e6,
)


def changed(value, **changes):
    return msgspec.structs.replace(value, **changes)


def bandwidth(trial=TRIAL, swarm=SWARM, needs=NEEDS, up_max=None, down_max=None) -> Finding:
    return requirements.bandwidth(trial, swarm, needs, up_max=up_max, down_max=down_max)


def test_the_needs_are_those_of_genesis_and_charter():
    tiny = project()
    needs = requirements.needs_of(tiny.genesis, tiny.charter)
    codec = tiny.charter.rounds.up_codec
    numels = [one.numel for one in layout().fragments]
    assert needs.payload_bytes_up == sum(payload_bytes(codec, numel) for numel in numels)
    assert needs.fragment_bytes_max == max(payload_bytes(codec, numel) for numel in numels)
    assert needs.local_steps == tiny.charter.rounds.local_steps


def test_bandwidth_is_bytes_of_all_fragments_per_cycle():
    found = bandwidth()
    assert found.figures["needs_up"] == pytest.approx(520_000 / 10.0)
    assert found.verdict == "good"


def test_a_slow_machine_must_still_deliver_a_fragment_in_time():
    found = bandwidth(changed(TRIAL, tokens_per_s=1.0))
    assert found.figures["needs_up"] == pytest.approx(1_000.0), "65 kB within 65 s"


@pytest.mark.parametrize(
    ("swarm", "limits", "verdict", "words"),
    [
        (changed(SWARM, down_bytes_per_s=51_000.0), {}, "trouble", "too slow for this project"),
        (changed(SWARM, down_bytes_per_s=53_000.0), {}, "good", "came from its hosts"),
        (changed(SWARM, down_bytes_per_s=0.0), {}, "unknown", "no syncer was asked"),
        (None, {}, "unknown", "no syncer was asked"),
        (SWARM, {"up_max": 50_000}, "trouble", "limits.up_bytes_per_s allows 48.8 KiB/s"),
        (SWARM, {"down_max": 50_000}, "trouble", "limits.down_bytes_per_s allows"),
        (SWARM, {"up_max": 60_000, "down_max": 60_000}, "good", ""),
    ],
)
def test_a_line_is_judged_by_what_came_and_by_the_owners_limits(swarm, limits, verdict, words):
    found = bandwidth(swarm=swarm, **limits)
    assert (found.verdict, words in found.says) == (verdict, True)


@pytest.mark.parametrize(
    ("tokens_per_s", "verdict"), [(2_000.0, "good"), (5.0, "care"), (0.2, "trouble")]
)
def test_pace_is_trouble_when_work_would_be_a_day_old(tokens_per_s, verdict):
    found = requirements.pace(changed(TRIAL, tokens_per_s=tokens_per_s), NEEDS)
    assert found.verdict == verdict
    assert found.figures["cycle_s"] == pytest.approx(20_000 / tokens_per_s, rel=0.01)


@pytest.mark.parametrize(
    ("trial", "available", "verdict"),
    [
        (TRIAL, 2 * GIB, "good"),
        (TRIAL, GIB, "trouble"),  # the daemon's 12 bytes per parameter come on top
        (changed(TRIAL, device="cuda:0", device_bytes=2 * GIB), GIB, "good"),
        (changed(TRIAL, device="cuda:0", device_bytes=GIB // 2), 8 * GIB, "trouble"),
        (changed(TRIAL, device="cuda:0", device_bytes=2 * GIB), 1 << 20, "trouble"),
        (changed(TRIAL, is_out_of_memory=True), 8 * GIB, "trouble"),
        (None, 20_000_000, "trouble"),
    ],
)
def test_the_model_must_fit_the_device_and_the_daemon_the_memory(trial, available, verdict):
    assert requirements.fit(trial, NEEDS, available).verdict == verdict


@pytest.mark.parametrize(
    ("trial", "present", "verdict", "words"),
    [
        (None, [], "unknown", "--quick"),
        (TRIAL, [], "good", "uses the CPU"),
        (TRIAL, ["NVIDIA H200"], "care", "there is NVIDIA H200, but this PyTorch"),
        (TrialAnswer(trouble="CUDA error"), [], "trouble", "CUDA error"),
        (
            changed(TRIAL, device="cuda:0", device_name="NVIDIA H200", backend="CUDA 12.8"),
            ["NVIDIA H200"],
            "good",
            "cuda:0: NVIDIA H200, CUDA 12.8, f32",
        ),
    ],
)
def test_an_idle_accelerator_is_told(trial, present, verdict, words):
    found = diagnosis.accelerator(trial, present)
    assert (found.verdict, words in found.says) == (verdict, True)


def reached(how, could_dial):
    return changed(SWARM, reach=how, could_dial=could_dial, tried_to_dial=3, port=4321)


@pytest.mark.parametrize("how", ["relayed", "outward"])
def test_a_nat_comes_with_its_remedy(how):
    found = diagnosis.reach(reached(how, 0))
    assert "orward TCP port 4321" in found.remedy
    assert "--port 4321" in found.remedy


def test_a_host_that_others_dial_needs_no_remedy():
    assert diagnosis.reach(reached("direct", 3)).remedy == ""


@pytest.mark.parametrize(
    ("swarm", "verdict", "words"),
    [
        (SWARM, "good", "1 of 2 hosts of the link answer directly, 20 ms"),
        (changed(SWARM, hosts=[NamedHost(address="a", path="relayed")]), "care", "through relays"),
        (reached("direct", 2), "good", "direct; 1 of 2 hosts of the link answer directly, 20 ms; "),
        (reached("direct", 2), "good", "2 of 3 that tried could reach port 4321 here"),
        (reached("relayed", 0), "care", "relayed; "),
        (reached("relayed", 0), "care", "0 of 3 that tried could reach port 4321 here, others"),
        (reached("outward", 0), "care", "not from outside; "),
        (changed(SWARM, genesis=b"", trouble="none answers"), "trouble", "not at all: none"),
        (changed(SWARM, hosts=[]), "unknown", "no swarm was asked"),
        (changed(SWARM, addresses=["/ip4/8.8.8.8/tcp/1/p2p/x"]), "good", "dial /ip4/8.8.8.8/tcp/1"),
        (None, "unknown", "--quick"),
    ],
)
def test_reach_says_how_and_whether_from_outside(swarm, verdict, words):
    found = diagnosis.reach(swarm)
    assert (found.verdict, words in found.says) == (verdict, True)


def test_reach_says_what_the_router_did():
    words = "Its router (192.168.1.1) forwards TCP port 4200 (PCP)."
    found = diagnosis.reach(changed(reached("direct", 3), router=words))
    assert found.says.endswith("; its router (192.168.1.1) forwards TCP port 4200 (PCP)")


@pytest.mark.parametrize(
    ("swarm", "kept", "error_s", "verdict"),
    [
        (SWARM, False, 16.0, "good"),
        (changed(SWARM, is_clock_off=True, genesis=b""), True, 0.01, "trouble"),
        (None, True, 0.05, "good"),
        (None, True, 5.0, "care"),
        (None, False, 16.0, "unknown"),
        (None, None, None, "unknown"),
    ],
)
def test_the_swarm_knows_better_about_the_clock_than_the_system(swarm, kept, error_s, verdict):
    assert diagnosis.clock(swarm, kept, error_s).verdict == verdict


def test_an_engine_without_a_swarm_still_runs():
    away = SwarmAnswer(trouble="none answers", is_swarm_away=True)
    assert diagnosis.engine(away).verdict == "good"
    assert diagnosis.engine(SwarmAnswer(trouble="no such file")).verdict == "trouble"


@pytest.mark.parametrize(
    ("free", "verdict"), [(GIB // 2, "trouble"), (GIB, "care"), (10 * GIB, "good")]
)
def test_disks_are_judged_by_what_is_free(free, verdict):
    assert diagnosis.disk(free, "/x").verdict == verdict


def test_every_trouble_has_a_remedy():
    troubles = [
        diagnosis.python((3, 11), "3.11", ""),
        diagnosis.accelerator(TrialAnswer(trouble="x"), []),
        diagnosis.engine(SwarmAnswer(trouble="x")),
        diagnosis.clock(changed(SWARM, is_clock_off=True), True, 0.0),
        diagnosis.reach(changed(SWARM, genesis=b"", trouble="x")),
        diagnosis.disk(0, "/x"),
        diagnosis.speed(TrialAnswer(trouble="x"), "y"),
        requirements.fit(None, NEEDS, 0),
        requirements.pace(changed(TRIAL, tokens_per_s=0.1), NEEDS),
        bandwidth(swarm=changed(SWARM, down_bytes_per_s=1.0)),
    ]
    assert {one.verdict for one in troubles} == {"trouble"}
    assert all(one.remedy for one in troubles)


def test_a_finding_takes_80_characters_at_most():
    found = Finding(topic="reach", verdict="trouble", says="word " * 40, remedy="do " * 60)
    lines = command.shown(found, has_colour=False)
    assert max(map(len, lines)) <= 80
    assert "TROUBLE" in lines[0]
    assert sum("> " in line for line in lines) == 1


@pytest.fixture
def home(tmp_path, monkeypatch) -> Home:
    monkeypatch.setenv("SHOAL_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return Home()


@pytest.fixture
def trials(monkeypatch) -> dict[str, object]:
    """What the trials answer, and what they were asked."""
    told: dict[str, object] = {"swarm": changed(SWARM, genesis=b""), "training": TRIAL}

    def swarm(link: str, *, port: int, map_port: bool | None) -> object:
        told["link"], told["map_port"] = link, map_port
        return told["swarm"]

    def training(wish: object) -> object:
        told["wish"] = wish
        return told["training"]

    monkeypatch.setattr(probes, "try_swarm", swarm)
    monkeypatch.setattr(probes, "try_training", training)
    return told


def test_the_verb_prints_one_screen_and_fails_only_for_trouble(home, trials, capsys):
    assert main(["doctor"]) == 1, "the swarm was named, and did not answer"
    trials["swarm"] = changed(SWARM, hosts=[], genesis=b"")
    capsys.readouterr()
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    assert not home.root.exists(), "looking leaves nothing behind"


def test_json_has_verdict_topics_and_figures(home, trials, capsys):
    trials["swarm"] = changed(SWARM, hosts=[], genesis=b"")
    assert main(["doctor", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    topics = {one["topic"]: one for one in told["findings"]}
    assert told["verdict"] in ("good", "care")
    assert topics["speed"]["figures"]["tokens_per_s"] == 2_000.0
    wanted = {"python", "disk", "memory", "port", "engine", "clock", "reach", "accelerator"}
    assert wanted <= topics.keys()


def test_a_link_is_handed_to_the_trial_and_its_silence_is_trouble(home, trials, capsys):
    assert main(["doctor", LINK]) == 1
    assert trials["link"] == LINK
    out = capsys.readouterr().out
    assert "tiny cannot be checked" in out
    assert "cannot take part in tiny yet: reach" in out


def test_quick_tries_nothing(home, trials, capsys):
    assert main(["doctor", "--quick"]) == 0
    assert "link" not in trials
    assert "wish" not in trials


def test_what_is_no_project_is_refused(home, trials, capsys):
    assert main(["doctor", "harbour"]) == 2
    assert "neither a join link" in capsys.readouterr().err
    assert main(["doctor", LINK[:-4]]) == 2


def test_a_model_beyond_all_memory_is_not_even_tried(home, trials, monkeypatch):
    tiny = project()
    named = probes.Named("tiny", "", tiny.genesis, tiny.charter)
    monkeypatch.setattr(probes, "most_memory", lambda available: 10)
    settings = settings_file.load(environ={}).values
    found = command.examine(
        home, named, settings, port=4100, is_quick=False, tell=lambda text: None
    )
    told = {one.topic: one for one in found}
    assert "wish" not in trials
    assert told["fit"].figures["parameters"] == sum(t.numel for t in tiny.genesis.model.tensors)


def test_a_trial_that_dies_or_hangs_is_told(monkeypatch):
    monkeypatch.setattr(probes.sys, "executable", "/bin/false")
    assert "code 1" in probes.try_swarm("", port=0).trouble
    killed = probes._killed(TrialAnswer)
    assert killed.is_out_of_memory


def test_a_trial_that_had_no_time_on_a_busy_machine_says_nothing_about_it(monkeypatch):
    monkeypatch.setattr(probes.os, "getloadavg", lambda: (9.0, 9.0, 9.0))
    monkeypatch.setattr(probes.os, "cpu_count", lambda: 2)
    monkeypatch.setattr(probes, "SWARM_S", 0.2)
    swarm = probes.try_swarm("", port=0)
    words = "machine busy (load 9.0 on 2 cores)"
    assert (swarm.busy, swarm.trouble) == (words, "it did not finish within 0.2 s")
    trial = TrialAnswer(trouble=swarm.trouble, busy=words)
    told = [diagnosis.engine(swarm), diagnosis.reach(swarm), diagnosis.accelerator(trial, [])]
    for one in (*told, diagnosis.speed(trial, "a model")):
        assert (one.verdict, one.says) == ("unknown", f"not measured: {words}")
    monkeypatch.setattr(probes.os, "getloadavg", lambda: (2.0, 2.0, 2.0))
    assert diagnosis.engine(probes.try_swarm("", port=0)).verdict == "trouble"


def test_a_swarm_that_is_away_is_trouble_on_a_busy_machine_too():
    away = changed(SWARM, genesis=b"", trouble="x", is_swarm_away=True, busy="machine busy")
    assert diagnosis.reach(away).verdict == "trouble"
    slow = changed(SWARM, genesis=b"", trouble="x", busy="machine busy")
    assert diagnosis.reach(slow).verdict == "unknown"


def test_the_kernel_is_asked_about_the_clock():
    kept, error_s = probes.kept_clock()
    assert kept in (True, False)
    assert error_s is not None
    assert error_s >= 0


def test_limits_bound_the_memory():
    available, total, bound = probes.memory(1 << 20)
    assert available == 1 << 20
    assert total > available
    assert "limits.ram_bytes_max" in bound


def test_a_container_bounds_it_too(tmp_path, monkeypatch):
    (tmp_path / "max").write_text(f"{2 * GIB}\n")
    (tmp_path / "current").write_text(f"{GIB}\n")
    places = ((str(tmp_path / "max"), str(tmp_path / "current")),)
    monkeypatch.setattr(probes, "CONTROL_GROUPS", places)
    available, total, bound = probes.memory(None)
    assert (available <= GIB, total) == (True, 2 * GIB)
    assert "this container" in bound
    (tmp_path / "max").write_text("max\n")
    assert probes.memory(None)[2] == ""


def test_a_port_in_use_is_told_unless_by_our_own(home):
    import socket

    with socket.socket() as other:
        other.bind(("0.0.0.0", 0))
        other.listen()
        assert "in use" in command._port_trouble(home, other.getsockname()[1])


def test_a_sample_is_found_by_its_name_alone():
    from host.bulk import speed_probe

    assert speed_probe.find(bytes(32)) is None
    found = speed_probe.find(speed_probe.name())
    assert found is not None
    assert len(found) == speed_probe.SAMPLE_BYTES


def test_amounts_and_durations_are_short():
    assert findings.amount(1536) == "1.5 KiB"
    assert findings.duration(0.21) == "0.21 s"
    assert findings.duration(600) == "10 min"
    assert findings.duration(86_400 * 3) == "3 days"


def test_a_broken_name_raises_a_user_error(home):
    with pytest.raises(UserError):
        probes.named_project("absent.shoal", home)
