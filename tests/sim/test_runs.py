"""Runs as the command line has them: links, speeds, churn, scenario files, the same trace."""

from __future__ import annotations

import hashlib
import os
import random
import re
import statistics
import subprocess
import sys

import pytest

from protocol.errors import UserError
from shoal.sim import run_command
from simulator.checkers.ledger import Violation
from simulator.replay.replay import replay
from simulator.scenarios import runs, scenarios, sweeps
from simulator.scenarios.swarm import build_swarm
from simulator.virtual.network import AccessLink, Network, NetworkModel
from simulator.virtual.nodes import ChurnModel, Speed, SpeedModel
from tests.support.choices import first, spread

A, B, C = b"a" * 32, b"b" * 32, b"c" * 32
CALM = NetworkModel(latency_s=0.1, jitter_s=0.0, bytes_per_s=1000.0)


def network(model=CALM, **links):
    return Network(model, random.Random(1), {key: link for key, link in links.items()})


def silent(text, is_routine):
    pass


# Links.


def test_transfers_share_a_link_by_queueing():
    net = network()
    alone = net.transfer_s(A, B, 1000, 0.0)
    assert alone == pytest.approx(0.1 + 1.0 + 0.1)
    assert net.transfer_s(A, C, 1000, 0.0) == pytest.approx(alone + 1.0)
    assert net.transfer_s(C, B, 1000, 0.0) == pytest.approx(alone + 1.0)


def test_control_messages_do_not_wait_for_bulk():
    net = network()
    net.transfer_s(A, B, 1_000_000, 0.0)
    assert net.message_s(A, B, 10, 5.0) == pytest.approx(5.0 + 0.1 + 0.01)


def test_the_slower_end_of_a_transfer_sets_its_pace():
    net = network()
    net.links[B] = AccessLink(1000.0, 100.0, latency_s=0.3)
    assert net.transfer_s(A, B, 1000, 0.0) == pytest.approx(0.4 + 10.0 + 0.4)


def test_loss_delays_messages_and_breaks_streams_in_the_end():
    lossy = network(NetworkModel(0.1, 0.0, 1e6, loss=0.3))
    arrivals = [lossy.message_s(A, B, 10, 0.0) for _ in range(20_000)]
    broken = [one for one in arrivals if one is None]
    late = [one for one in arrivals if one is not None and one > 0.3]
    assert 0.25 < (len(late) + len(broken)) / len(arrivals) < 0.35
    assert 0 < len(broken) < 30


def test_nothing_arrives_over_a_clogged_link_until_it_is_free():
    net = network()
    net.clogged_until_s[frozenset((A, B))] = 7.0
    assert net.message_s(A, B, 0, 1.0) == pytest.approx(7.1)
    assert net.message_s(A, C, 0, 1.0) == pytest.approx(1.1)
    assert 1.0 + net.transfer_s(B, A, 100, 1.0) > 7.0


# Hosts.


def test_steps_vary_around_a_mean_that_varies_between_hosts():
    model = SpeedModel(2.0, spread=0.5, jitter=0.3)
    hosts = [Speed(model, random.Random(seed)) for seed in range(400)]
    means = [host.mean_s for host in hosts]
    assert statistics.median(means) == pytest.approx(2.0, rel=0.15)
    steps = [hosts[0].step_s(0.0) for _ in range(4000)]
    assert statistics.mean(steps) == pytest.approx(hosts[0].mean_s, rel=0.03)


def test_stragglers_are_slow_for_a_time():
    model = SpeedModel(1.0, jitter=0.0, stragglers_per_h=60.0, straggler_factor=5.0)
    speed = Speed(model, random.Random(3))
    steps = [speed.step_s(float(now)) for now in range(0, 7200, 2)]
    assert set(steps) == {1.0, 5.0}
    assert 0.2 < steps.count(5.0) / len(steps) < 0.8


def test_churn_keeps_its_rates():
    model = ChurnModel(crashes_per_h=6.0, leaves_per_h=3.0, repair_s=1.0)
    found = model.events(random.Random(4), 100 * 3600.0)
    kinds = [kind for _, kind, _ in found]
    assert kinds.count("crash") == pytest.approx(600, rel=0.15)
    assert kinds.count("leave") == pytest.approx(300, rel=0.2)
    assert [at for at, _, _ in found] == sorted(at for at, _, _ in found)


def test_a_swarm_on_clocks_that_drift_merges_on():
    swarm = build_swarm(1, syncers=3)
    for number, host in enumerate(swarm.world.hosts.values()):
        host.clock_rate = 1.0 + 0.01 * (number % 3 - 1)
    swarm.world.run(60.0)
    swarm.check()
    assert swarm.merges > 30


# Scenarios.


@pytest.mark.slow
@pytest.mark.parametrize("name", spread(2, [n for n in scenarios.BUILT_IN if n != "hour"]))
def test_a_built_in_scenario_holds(name):
    outcome = runs.run(scenarios.find(name, 1), 1, until_s=200.0, line=silent)
    assert outcome.violation == ""
    assert outcome.swarm.merges > 10


@pytest.mark.parametrize("tensors", ["tiny", "provenance"])
def test_a_model_may_be_cut_into_as_many_fragments_as_the_paper_cuts_it(tmp_path, tensors):
    path = tmp_path / "mine.toml"
    path.write_text(
        f'tensors = "{tensors}"\nuntil_s = 60\n[rounds]\nfragments = 24\nlocal_steps = 24\n'
        "[speed]\nstep_s = 0.25\n"
    )
    outcome = runs.run(scenarios.find(str(path), 1), 1, until_s=60.0, line=silent)
    assert outcome.violation == ""
    assert {one.fragment for one in outcome.swarm.ledger.merges} == set(range(24))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[rounds]\nquorum = 0\n", ["line 2, rounds.quorum", ">= 1"]),
        ("until_s = 9\n[rounds]\nquorom = 2\n", ["line 3, rounds.quorom", "unknown field"]),
        ("[hosts]\nlearners 3\n", ["line 2", "not TOML"]),
        ('[faults]\nkinds = ["kill-everybody"]\n', ["line 2, faults.kinds", "kill-everybody"]),
    ],
)
def test_a_bad_file_is_named_with_line_and_key(tmp_path, text, said):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(UserError) as caught:
        scenarios.find(str(path), 1)
    assert str(path) in str(caught.value)
    for words in said:
        assert words in str(caught.value)


def test_what_is_no_scenario_is_named_with_what_is():
    with pytest.raises(UserError, match=r"nowhere.*calm"):
        scenarios.find("nowhere", 1)
    with pytest.raises(UserError, match=r"gone\.toml cannot be read"):
        scenarios.find("gone.toml", 1)


def test_a_swarm_that_stands_still_is_found(monkeypatch):
    monkeypatch.setattr("syncer_node.machine.rounds.Rounds.look", lambda *_, **__: None)
    outcome = runs.run(scenarios.find("failover", 1), 1, until_s=60.0, line=silent)
    assert "merges are missing" in outcome.violation


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_drawn_swarms_hold(seed):
    result = sweeps.run_one(("swarm", seed))
    assert result.violation == ""
    assert result.replay == f"shoal sim run swarm --seed {seed}"


# The same trace.


def trace_of(tmp_path, number, hash_seed, *arguments):
    path = tmp_path / f"{number}.txt"
    command = [sys.executable, "-m", "shoal", "sim", "run", *arguments, "--trace", str(path)]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    subprocess.run([*command, "--quiet"], env=environment, check=True, capture_output=True)
    return hashlib.sha256(path.read_bytes()).hexdigest(), path.read_text()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "seed"), [("swarm", "4"), ("voters", "3"), ("swarm", "8")])
def test_the_same_seed_gives_the_same_trace_byte_for_byte(tmp_path, name, seed):
    arguments = (name, "--seed", seed, "--until", "60s")
    one, text = trace_of(tmp_path, 1, "1", *arguments)
    other, _ = trace_of(tmp_path, 2, "271828", *arguments)
    assert one == other
    assert len(text.splitlines()) > 200


def test_a_run_of_voters_is_told_like_any_other(capsys, tmp_path):
    path = tmp_path / "voters.txt"
    assert run_command.run("voters", seed=3, until="30s", trace=path) == 0
    told, whole = capsys.readouterr().out, path.read_text()
    assert re.search(r"^ +\d+\.\d{3}  syncer-\d +leading in term \d+: with", told, re.M)
    assert "  (fault)      every fault is over" in told
    assert "records certified in" in told
    assert "committed" not in told
    assert re.search(r"  witness-0 +record 1 \(SeatTaken\) committed", whole)


def test_what_voters_broke_is_in_their_trace(capsys, monkeypatch):
    def broken(self):
        raise Violation("twice")

    monkeypatch.setattr("simulator.council.faults.Unrest.heal", broken)
    assert run_command.run("voters", seed=3, until="5s") == 1
    told = capsys.readouterr().out
    assert "     5.000  (checker)    twice" in told
    assert "Seed 3: twice\nReplay: shoal sim run voters --seed 3 --until 5s" in told


@pytest.mark.parametrize("name", first(1, ["failover", "provenance"]))
def test_a_run_on_tape_is_replayed_to_the_same(capsys, tmp_path, name):
    tape = tmp_path / "tapes"
    how = {"until": "60s", "quiet": True}
    assert run_command.run(name, seed=2, tape=tape, **how) == 0
    assert f"Run them again: shoal replay {tape}" in capsys.readouterr().out
    whole = replay(tape, tmp_path)
    assert len(whole.rounds) > 10
    assert whole.audited == whole.rounds.keys()
    # Sets of local steps are merged in their own way: there is nothing to merge again.
    assert whole.merged == (whole.rounds.keys() if name == "failover" else set())
    assert len(whole.retrained) >= (len(whole.rounds) - 4 if name == "failover" else 0)
    with pytest.raises(UserError, match="is not empty"):
        run_command.run(name, seed=2, tape=tape, **how)


def test_voters_alone_keep_no_tape(tmp_path):
    how = {"until": "5s", "quiet": True}
    with pytest.raises(UserError, match="Leave --tape out"):
        run_command.run("voters", seed=2, tape=tmp_path / "tapes", **how)
