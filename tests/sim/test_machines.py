"""Clusters by the machines themselves, beside the models of them and the paper's figures."""

from __future__ import annotations

import numpy as np
import pytest

from shoal.__main__ import main
from simulator.scale import bandwidth, heterogeneous, machines, published, scavenge
from simulator.scale.failures import FITTED, Lives
from simulator.scale.goodput import Effort, cells

SEED = 4


def lives(*intervals: tuple[float, float, float]) -> Lives:
    """Of one learner: begin, end and work of each."""
    begin, end, work = np.array(intervals).T[:, :, None]
    return Lives(begin, end, work)


def test_a_local_step_ends_once_the_chips_that_are_there_have_done_it():
    # All of it for 10 s, nothing for 5 s, half of it for 10 s.
    speed = machines.FailingSpeed(2.0, lives((0, 10, 10), (15, 25, 5), (30, 40, 10)), 0)
    assert speed.step_s(0.0) == pytest.approx(2.0)
    assert speed.step_s(8.0) == pytest.approx(2.0)
    # One second before the stop, and the other at half speed behind it.
    assert speed.step_s(9.0) == pytest.approx(1.0 + 5.0 + 2.0)
    assert speed.step_s(12.0) == pytest.approx(3.0 + 4.0)
    # Nothing that was drawn says what is later.
    assert speed.step_s(100.0) == 2.0


@pytest.mark.slow
@pytest.mark.parametrize("learners", [2, 8])
def test_failing_clusters_do_what_the_model_says(learners):
    chips, steps = 2_400_000, 2400 // learners
    found = machines.failing(
        chips, learners, mtbi_s=published.MTBI_S, costs=FITTED, seed=SEED, steps=steps
    )
    (_, model) = cells(
        [chips],
        [learners],
        mtbi_s=published.MTBI_S,
        costs=FITTED,
        seed=SEED,
        effort=Effort(samples=32, failures=150),
    )
    assert found.goodput == pytest.approx(model.goodput, abs=0.06)
    assert 0.6 < found.kept < 1.0


@pytest.mark.slow
def test_grace_takes_in_whom_a_merge_of_the_first_would_leave_out():
    mix = heterogeneous.Mix()
    steps_s = [1.0] * mix.fast + [1.0 + mix.gap] * mix.slow
    first, grace, everybody = (
        machines.mixed(steps_s, mix.variance, quorum=quorum, grace=share, seed=SEED)
        for quorum, share in ((1, 0.0), (1, mix.grace), (len(steps_s), 0.0))
    )
    assert first.merged < 0.7 < grace.merged < 0.95 < everybody.merged
    assert first.kept < grace.kept < everybody.kept
    assert first.merge_steps < grace.merge_steps < everybody.merge_steps
    assert min(first.goodput, grace.goodput, everybody.goodput) > 0.97


@pytest.mark.slow
def test_a_link_twice_as_fast_as_the_formula_says_carries_a_merge_for_each_local_step():
    link = bandwidth.Link()
    needed = bandwidth.required_gbps(
        bandwidth.DECOUPLED, link, bandwidth.CODEC_BITS["int4"], utilisation=0.9
    )
    half, one, two = (
        machines.on_links(link, codec="int4", gbps=factor * needed, seed=SEED)
        for factor in (0.5, 1.0, 2.0)
    )
    assert half.pace < 0.5 < one.pace < 0.85 < two.pace
    assert min(half.goodput, one.goodput, two.goodput) > 0.97


@pytest.mark.slow
def test_borrowed_learners_shorten_the_run_as_arithmetic_says():
    lent = scavenge.Borrowing()
    alone_s, more_s = (
        machines.borrowed(machines.BASE_LEARNERS, more, lent.share, seed=SEED, steps=800)
        for more in (0, machines.BASE_LEARNERS)
    )
    (row,) = scavenge.speedups(lent, [1.0])
    assert more_s / alone_s == pytest.approx(row.decoupled, abs=0.03)


@pytest.mark.slow
def test_what_the_machines_did_stands_beside_the_model(capsys, tmp_path):
    asked = ["--chips", "600000", "--learners", "1", "16", "--machines"]
    assert main(["sim", "goodput", *asked, "--json", str(tmp_path / "rows.json")]) == 0
    told = capsys.readouterr()
    assert "running 16 learners on 600,000 chips" in told.err
    tables = told.out.split("Goodput, % ")
    assert [table.partition(")")[0] for table in tables[1:]] == [
        "(model / paper",
        "(machines / paper",
    ]
    assert "M=16" in tables[2]
    assert "elastic" not in tables[2].partition("Uptime")[0]
    assert '"machines_goodput": 0.9' in (tmp_path / "rows.json").read_text()
