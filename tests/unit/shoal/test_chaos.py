"""What a fault is said to have cost; `shoal demo --chaos` itself starts a real swarm."""

from __future__ import annotations

import dataclasses
import subprocess
import tomllib
import typing

import msgspec
import psutil
import pytest
from rich.console import Console

from protocol.errors import UserError
from shoal.__main__ import main
from shoal.chaos import command
from shoal.chaos.faults import disk_full
from shoal.chaos.observations import (
    LeaderSeen,
    LossSeen,
    MergeSeen,
    Recording,
    StepSeen,
    Window,
    figures,
    goodput,
    leaderless,
    longest_gap,
    median_step_s,
)
from shoal.chaos.project import EVALUATOR, LEARNERS, SETTINGS, SYNCERS
from shoal.chaos.report import Losses, Outcome, as_json, compare, reasons, sentences, table
from shoal.chaos.scenarios import NAMES, SCENARIOS, STORM
from shoal.chaos.storm import BLOWS, TARGETS, damageable
from shoal.cli import demo
from shoal.local_swarm.swarm import LocalSwarm
from shoal.project import project_file

WINDOW = Window(began_s=0.0, struck_s=10.0, ended_s=14.0, well_s=16.0, closed_s=18.0)


def steps(*, until_s: float = 20.0, every_s: float = 0.5, share: float = 0.98) -> list[StepSeen]:
    """A learner that makes a step every half second, at work for `share` of the time."""
    count = int(until_s / every_s)
    return [
        StepSeen(at * every_s, at, at * every_s * share, at * every_s, 7) for at in range(count + 1)
    ]


def recording(**fields) -> Recording:
    record = Recording(
        steps={"kestrel": steps()},
        leaders=[LeaderSeen(0.0, "s0", 1), LeaderSeen(10.2, "", 0), LeaderSeen(14.1, "s1", 2)],
        merges=[MergeSeen(float(at), 1, at) for at in range(11)],
        losses=[LossSeen(4, 3.0), LossSeen(8, 2.5), LossSeen(12, 2.4)],
    )
    record.merges += [MergeSeen(15.0, 2, 11), MergeSeen(16.0, 2, 12), MergeSeen(17.0, 2, 13)]
    return dataclasses.replace(record, **fields)


def outcome(record: Recording | None = None, window: Window = WINDOW, **fields) -> Outcome:
    found = figures(record or recording(), window, ("kestrel",))
    values = {"losses": Losses(11, 14, 0, 0), "needs_takeover": True, **fields}
    return Outcome("kill-leader", "the leader is killed", found, **values)


# --------------------------------------------------------------------------------- the arithmetic


@pytest.mark.parametrize(
    ("moments", "longest"),
    [
        ([], 10.0),
        ([1.0, 2.0, 9.0], 7.0),
        ([-4.0, 5.0], 9.0),  # It began before the window and counts whole.
        ([1.0, 4.0, 30.0], 6.0),  # It lasts beyond the window and counts until its end.
    ],
)
def test_the_longest_gap(moments, longest):
    assert longest_gap(moments, 0.0, 10.0) == pytest.approx(longest)


def test_stretches_without_a_leader_are_told_apart():
    seen = [
        LeaderSeen(0, "a", 1),
        LeaderSeen(2, "", 0),
        LeaderSeen(5, "b", 2),
        LeaderSeen(7, "", 0),
    ]
    assert leaderless(seen, 0.0, 10.0) == [3.0, 3.0]
    assert leaderless(seen, 3.0, 6.0) == [2.0]
    assert leaderless(seen, 5.5, 6.5) == []
    assert leaderless(seen, 8.0, 9.0) == [1.0]


def test_goodput_is_of_the_window_and_not_of_the_whole_life():
    idle = [*steps(until_s=10.0), StepSeen(14.0, 21, 9.8 + 2.0, 14.0, 7)]
    assert goodput(idle, 0.0, 10.0) == pytest.approx(0.98)
    assert goodput(idle, 10.0, 14.0) == pytest.approx(0.5)
    assert goodput(idle, 11.0, 14.0) is None


def test_time_without_a_trainer_is_no_good_time():
    seen = [*steps(until_s=10.0), StepSeen(20.0, 1, 0.5, 0.5, 8)]
    assert goodput(seen, 0.0, 20.0) == pytest.approx(0.49)


def test_the_median_step_is_told_from_looks_that_missed_some():
    seen = [StepSeen(at, round(at * 10), at, at, 7) for at in (0.0, 0.1, 0.5, 0.8)]
    assert median_step_s(seen, 0.0, 1.0) == pytest.approx(0.1)
    assert median_step_s(seen[:1], 0.0, 1.0) == 0.0


def test_figures_of_a_leader_that_is_followed_by_another():
    found = figures(recording(), WINDOW, ("kestrel",))
    assert found.leaderless_s == found.leaderless_longest_s == pytest.approx(3.9)
    assert found.terms == 1
    assert found.merging_pause_s == pytest.approx(5.0)
    assert found.merging_pause_before_s == pytest.approx(1.0)
    assert found.step_pause_s == found.step_pause_before_s == pytest.approx(0.5)
    assert (found.step_pause_of, found.step_median_s) == ("kestrel", pytest.approx(0.5))
    assert found.goodput_kept == pytest.approx(1.0)
    assert (found.loss_before, found.loss_after) == (2.5, 2.4)
    assert (found.well_after_s, found.well_after_end_s) == (6.0, 2.0)


def test_a_learner_that_is_never_heard_of_has_no_goodput():
    assert figures(recording(steps={}), WINDOW, ("kestrel",)).goodput_kept == 0.0


# ------------------------------------------------------------------------------- what is recorded


def test_only_changes_are_kept():
    record = Recording()
    for at_s in (0.0, 1.0, 2.0):
        record.see_step("kestrel", StepSeen(at_s, 5, 1.0, 1.0, 7))
        record.see_leader(LeaderSeen(at_s, "s0", 1))
        record.see_merges(MergeSeen(at_s, 1, 9))
    assert (len(record.steps["kestrel"]), len(record.leaders), len(record.merges)) == (1, 1, 1)
    record.see_step("kestrel", StepSeen(3.0, 5, 0.1, 0.1, 8))
    assert len(record.steps["kestrel"]) == 2


def test_a_later_leader_with_fewer_merges_is_noticed():
    record = Recording()
    record.see_merges(MergeSeen(0.0, 1, 9))
    record.see_merges(MergeSeen(1.0, 2, 9))
    assert record.steps_back == 0
    record.see_merges(MergeSeen(2.0, 3, 8))
    assert record.steps_back == 1


def test_a_loss_that_is_gone_at_a_later_leader_is_noticed():
    record = Recording()
    record.see_curve([(0, 0, 5.0), (24, 1, 4.0)])
    record.see_curve([(0, 0, 5.0)])  # Not applied there yet.
    record.see_curve([(0, 0, 5.0), (24, 1, 4.0), (48, 2, 3.0)])
    assert (record.losses_gone, len(record.losses)) == (0, 3)
    record.see_curve([(0, 0, 5.0), (24, 1, 4.2), (48, 2, 3.0)])
    assert record.losses_gone == 1


def test_records_are_compared_one_by_one():
    before = {1: (b"a", False), 2: (b"b", True), 3: (b"c", True)}
    whole = {**before, 4: (b"d", True)}
    assert compare(before, [(0, whole), (0, whole)]) == Losses(2, 3, 0, 0)
    assert compare(before, [(0, whole), (2, {3: (b"c", True)})]) == Losses(2, 3, 0, 0)
    assert compare(before, [(0, whole), (0, {**whole, 3: (b"x", True)})]) == Losses(2, 3, 1, 1)
    assert compare(before, [(0, {2: (b"b", True)}), (0, whole)]) == Losses(2, 3, 1, 2)


# ------------------------------------------------------------------------------------ the verdict


def test_a_scenario_that_went_well_passes():
    good = outcome()
    assert reasons(good) == []
    ((line, is_passed),) = sentences([good])
    assert is_passed
    assert line.startswith("PASSED  kill-leader: 1 new term, 3.9 s without a leader; all 11 merges")


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (
            outcome(losses=Losses(11, 14, 2, 3)),
            "3 certified records (2 merges) from before the fault missing",
        ),
        (outcome(losses=Losses(0, 3, 0, 0)), "nothing had been merged before the fault"),
        (outcome(steps_back=1), "a later leader had fewer merges"),
        (outcome(losses_gone=1), "held-out losses that were known are missing"),
        (outcome(recording(leaders=[LeaderSeen(0.0, "s0", 1)])), "no other syncer was elected"),
        (
            outcome(window=dataclasses.replace(WINDOW, well_s=None), trouble="nobody leads"),
            "it did not recover in time: nobody leads",
        ),
        (
            outcome(recording(steps={"kestrel": steps(until_s=11.0)})),
            "kestrel made no local step for 7.0 s",
        ),
        (outcome(recording(steps={})), "goodput fell to 0 %"),
        (
            outcome(recording(losses=[LossSeen(8, 2.5), LossSeen(12, 2.8)])),
            "the held-out loss rose from 2.500 to 2.800",
        ),
        (
            outcome(recording(losses=[LossSeen(8, 2.5), LossSeen(12, float("nan"))])),
            "the held-out loss rose",
        ),
    ],
)
def test_a_scenario_fails_with_its_reason(bad, reason):
    assert any(reason in said for said in reasons(bad)), reasons(bad)
    ((line, is_passed),) = sentences([bad])
    assert not is_passed
    assert line.startswith("FAILED  kill-leader: ")


def test_goodput_is_compared_with_that_of_before():
    slower = [*steps(until_s=10.0)]
    slower += [StepSeen(10 + t, 20 + t, 9.8 + 0.94 * t, 10 + t, 7) for t in range(1, 9)]
    (reason,) = reasons(outcome(recording(steps={"kestrel": slower})))
    assert reason == "goodput fell to 95 % of what it was; 97 % must be kept"


@pytest.mark.parametrize("width", [80, 120])
def test_the_table_fits_a_terminal(width):
    console = Console(width=width, record=True, force_terminal=False, file=open("/dev/null", "w"))  # noqa: SIM115
    slow = outcome(window=dataclasses.replace(WINDOW, well_s=131.0), steps_back=1)
    console.print(table([outcome(), dataclasses.replace(slow, name="flapping-node")]))
    text = console.export_text()
    for figure in ("kill-leader", "3.9 s", "5.0 s", "0.5 s", "100.0 %", "2.50 → 2.40", "121 s"):
        assert figure in text
    assert "PASSED" in text
    assert "FAILED" in text
    assert "…" not in text


def test_the_file_for_programs():
    made = as_json([outcome(), outcome(steps_back=1)], version="0.1.0", wall_s=61.23)
    read = msgspec.json.decode(msgspec.json.encode(made))
    assert (read["passed"], read["wall_s"]) == (False, 61.2)
    first, second = read["scenarios"]
    assert (first["passed"], first["merges_lost"], first["merges"]) == (True, 0, 11)
    assert second["reasons"] == ["a later leader had fewer merges than the one before it"]


# -------------------------------------------------------------------------------- scenarios, verb


def test_the_project_has_three_voters_that_run_here(tmp_path):
    swarm = LocalSwarm(tmp_path)
    swarm.write_project("shoal-chaos", SETTINGS, dict.fromkeys(SYNCERS, "syncer"))
    voters = tomllib.loads(swarm.project.read_text())["voters"]
    assert [voter["priority"] for voter in voters] == [50, 40, 30]
    assert len(project_file.read_file(swarm.project).voters) == len(SYNCERS)


def test_the_learner_that_measures_is_never_touched():
    assert all(EVALUATOR in scenario.survivors for scenario in SCENARIOS)
    assert all(set(scenario.survivors) <= set(LEARNERS) for scenario in SCENARIOS)


def test_the_verb_offers_every_scenario(capsys):
    assert set(typing.get_args(demo.Chaos)) == {*NAMES, STORM, command.ALL}
    assert main(["demo", "--help"]) == 0
    said = capsys.readouterr().out
    assert all(name in said for name in NAMES)


def test_a_storm_spares_the_learner_that_measures():
    (scenario,) = command.chosen(STORM, 7)
    assert "seed 7" in scenario.what
    assert scenario.survivors == (EVALUATOR,)
    assert EVALUATOR not in TARGETS
    assert all(EVALUATOR not in blow.targets for blow in BLOWS)


def test_a_storm_damages_tensors_and_the_log_but_no_ballot(tmp_path):
    kept = ["payloads/0-1-ab", "checkpoints/12/theta.safetensors", "log", "log.certificates"]
    left = ["ballot", "charter", "floor", "checkpoints/best"]
    for name in (*kept, *left, "checkpoints/12/empty"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"" if name.endswith("empty") else b"x")
    assert {str(path.relative_to(tmp_path)) for path in damageable(tmp_path)} == set(kept)


def test_a_full_disk_is_full_only_inside():
    child = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    process = psutil.Process(child.pid)
    before = process.rlimit(psutil.RLIMIT_FSIZE)
    with disk_full(process):
        assert process.rlimit(psutil.RLIMIT_FSIZE)[0] == 1
    assert process.rlimit(psutil.RLIMIT_FSIZE) == before
    child.communicate()
    with pytest.raises(psutil.NoSuchProcess), disk_full(process):
        raise AssertionError


@pytest.mark.parametrize(
    "arguments",
    [
        ["--chaos", "earthquake"],
        ["--chaos", "partition", "--report", "x.json"],
        ["--json", "x.json"],
        ["--chaos", "partition", "--json", "/nowhere/x.json"],
    ],
)
def test_wrong_input_starts_nothing(arguments, capsys, monkeypatch):
    monkeypatch.setattr(command, "ChaosSwarm", pytest.fail)
    assert main(["demo", *arguments]) == 2
    assert capsys.readouterr().err


def test_a_scenario_that_does_not_exist():
    with pytest.raises(UserError, match=r"no scenario 'fire'. There are kill-leader"):
        command.chosen("fire")
