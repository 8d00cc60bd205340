"""Models of clusters: against the paper's figures, and what must hold for any cluster."""

from __future__ import annotations

import csv
import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from shoal.__main__ import main
from simulator.scale import bandwidth, heterogeneous, published, scavenge
from simulator.scale.failures import FITTED, time_with_quorum
from simulator.scale.goodput import RIGID, Effort, cells, misfit

BRIEF = Effort(samples=16, failures=60)


def table(chips, learners, mtbi_s=published.MTBI_S, costs=FITTED, effort=BRIEF, **more):
    return cells(chips, learners, mtbi_s=mtbi_s, costs=costs, seed=3, effort=effort, **more)


def test_table_one_is_reproduced():
    rows = table(published.CHIPS, published.LEARNERS, effort=Effort(samples=32, failures=150))
    assert len(rows) == 30
    rmse, worst = misfit(rows)
    assert rmse <= 1.5
    assert worst <= 3.5
    assert all(round(100 * row.uptime) == 100 for row in rows if row.learners >= 4)


def test_same_seed_same_rows():
    assert table([1000], [2], 1e6) == table([1000], [2], 1e6)


@given(chips=some.integers(1, 10**7), learners=some.integers(1, 20), days=some.floats(0.5, 5000))
@settings(max_examples=15, deadline=None)
def test_shares_are_shares(chips, learners, days):
    tiny = Effort(samples=4, failures=10)
    for row in table([chips], [learners], days * 86_400, effort=tiny):
        assert 0 <= row.goodput <= 1
        assert 0 <= row.uptime <= 1
        assert row.goodput <= row.uptime + 1e-9 or row.learners > 1


def test_better_chips_and_more_learners_help():
    by_days = [table([10_000], [1], days * 86_400)[1].goodput for days in (1, 5, 25, 125)]
    assert by_days == sorted(by_days)
    ups = [row.uptime for row in table([600_000], [1, 2, 4, 8])[1:]]
    assert ups == sorted(ups)


def test_a_checkpoint_far_back_costs_rigid_training_only():
    near, far = (
        table([1000], [1], 1e6, replace(FITTED, checkpoint_s=every)) for every in (0.0, 500.0)
    )
    assert far[0].method == RIGID
    assert far[0].goodput < near[0].goodput
    assert far[1] == near[1]


def test_quorum_counts_learners_at_the_same_time():
    begin, end = np.array([[0.0, 1.0], [5.0, 9.0]]), np.array([[4.0, 3.0], [6.0, 9.0]])
    assert time_with_quorum(begin, end, 1) == 5.0
    assert time_with_quorum(begin, end, 2) == 2.0


def test_bandwidth_as_printed():
    rows = bandwidth.needs(bandwidth.Link(), ["bf16", "int4"], [0.9])
    known = [(row.gbps, row.paper_gbps) for row in rows if row.paper_gbps is not None]
    assert [f"{ours:.3g}" for ours, _ in known[:1]] == ["104"]
    assert [float(f"{ours:.2g}") for ours, _ in known[1:]] == [1.7, 0.43]


def test_the_figure_of_eight_data_centres_follows_from_the_one_it_is_printed_with():
    printed = published.BANDWIDTH_OF_EIGHT_GBPS[1]
    assert bandwidth.predicted_of_eight() == pytest.approx(printed, abs=0.02)


def test_a_fragment_has_to_come_within_the_overlap_and_as_often_as_it_is_merged():
    need = [
        bandwidth.required_gbps(bandwidth.DECOUPLED, link, 16.0, 0.9)
        for link in (
            bandwidth.Link(1e9),
            bandwidth.Link(1e9, overlap=4),
            bandwidth.Link(1e9, sync_every=48, overlap=4),
            bandwidth.Link(1e9, sync_every=48, overlap=1),
        )
    ]
    assert need[0] == need[1] == pytest.approx(16 / 24)
    assert need[2] == pytest.approx(need[0] / 2)
    assert need[3] == need[0]


def test_heterogeneous_as_printed():
    rows = heterogeneous.settings(heterogeneous.Mix(), seed=1)
    assert [round(100 * row.goodput) for row in rows] == [84, 100, 100]
    assert rows[1].merged < rows[2].merged


def test_scavenge_near_the_paper():
    for row in scavenge.speedups(scavenge.Borrowing(), published.SCAVENGE):
        assert row.dp == pytest.approx(row.paper_dp, abs=0.02)
        assert row.decoupled == pytest.approx(row.paper_decoupled, abs=0.0051)


@pytest.mark.parametrize("verb", ["bandwidth", "heterogeneous", "scavenge"])
def test_files_hold_the_same_rows(verb, tmp_path, capsys):
    files = [tmp_path / "rows.json", tmp_path / "rows.csv"]
    assert main(["sim", verb, "--json", str(files[0]), "--csv", str(files[1])]) == 0
    rows = json.loads(files[0].read_text())
    lines = list(csv.DictReader(files[1].open()))
    assert [list(row) for row in rows] == [list(line) for line in lines]
    assert all(len(line) <= 80 for line in capsys.readouterr().out.splitlines()[:-2])


def test_a_picture_is_drawn(tmp_path):
    pytest.importorskip("matplotlib")
    assert main(["sim", "scavenge", "--plot", str(tmp_path / "rows.png")]) == 0
    assert (tmp_path / "rows.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "wrong",
    [
        ["goodput", "--chips", "0"],
        ["goodput", "--mtbi-days", "-1"],
        ["goodput", "--mtbi-days", "nan"],
        ["bandwidth", "--utilisation", "1.5"],
        ["bandwidth", "--codecs", "int3"],
        ["heterogeneous", "--seed", "-1"],
        ["scavenge", "--share", "2"],
        ["scavenge", "--json", "/nowhere/at/all.json"],
    ],
)
def test_wrong_input_is_named(wrong, capsys):
    assert main(["sim", *wrong]) == 2
    assert "error:" in capsys.readouterr().err
