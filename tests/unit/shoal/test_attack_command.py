"""`shoal sim attack` as people meet it: rows, a table, a picture, clear errors."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import pytest

from protocol.merge_rules import RULES, MergeRules
from protocol.project import OuterSpec
from shoal.__main__ import main
from shoal.sim.attack_grid import Cell, Defence, plan, with_quorum
from simulator.attack.attacks import ATTACKS
from simulator.attack.layers import LAYERS
from simulator.compare.setting import Setting
from tests.support.builders import project, rounds

STEPS = ["--steps", "12", "--seeds", "1"]
SMALL = [
    *("--set", "model.config.hidden_size=32", "--set", "model.config.intermediate_size=64"),
    *("--set", "model.config.num_hidden_layers=1", "--set", "data.sequence_tokens=32"),
]


def attack(tmp_path: Path, *arguments: str) -> int:
    return main(["--home", str(tmp_path / "home"), "sim", "attack", *arguments])


@pytest.mark.slow
def test_every_run_is_a_row_and_compared_with_the_one_without_liars(tmp_path, capsys):
    rows, picture = tmp_path / "rows.json", tmp_path / "rows.svg"
    asked = ["flip-10", *STEPS, *SMALL, "--jobs", "1", "--json", str(rows), "--plot", str(picture)]
    assert attack(tmp_path, *asked) == 0
    found = {(one["attack"], one["trust"]): one for one in json.loads(rows.read_text())}
    assert set(found) == {(a, t) for a in ("nobody", "flip-10") for t in ("all", "earned")}
    for (name, trust), one in found.items():
        quiet = found["nobody", trust]
        assert one["ratio"] == pytest.approx(one["eval_loss"] / quiet["eval_loss"])
        assert (one["liar_share"] > 0.3) == (name != "nobody" and trust == "all")
        assert (one["learners"], one["liars"], one["quorum"]) == (4, 1, "set")
        assert (one["suspended_after"], one["honest_suspended"]) == (None, 0), "so soon"
    assert picture.read_bytes().startswith(b"<?xml")
    told = capsys.readouterr().out
    assert "1 of 4 learners lie" in told
    assert "never" in told
    assert "Above 1.01 of the loss without liars" in told


@pytest.mark.slow
def test_processes_give_the_rows_that_one_gives(tmp_path):
    texts = []
    for jobs in ("1", "2"):
        rows = tmp_path / f"rows-{jobs}.json"
        asked = ["noise-1", *STEPS, *SMALL, "--trust", "earned", "--quorum", "one,all"]
        assert attack(tmp_path, *asked, "--jobs", jobs, "--json", str(rows)) == 0
        texts.append(rows.read_text())
    assert texts[0] == texts[1]
    pushes = {one["quorum"]: one["pushes_per_merge"] for one in json.loads(texts[0])}
    assert pushes["one"] < pushes["all"]


def test_the_grid_has_a_run_without_liars_for_each_of_the_others():
    cells = plan(
        ["flip-1", "ipm"],
        [Defence("all"), Defence("earned"), Defence("earned", "clipping")],
        learners=[4, 8],
        liars=lambda count: count // 4,
        quorums=["one", "all"],
        seeds=[5, 6],
        steps=10,
    )
    assert len(cells) == len(set(cells)) == 3 * 3 * 2 * 2 * 2
    assert all(cell.quiet in cells for cell in cells)
    assert {(cell.setting.learners, cell.liars, cell.honest) for cell in cells} == {
        (4, 1, 3),
        (8, 2, 6),
    }


@pytest.mark.parametrize(
    ("quorum", "needed"), [("one", 1), ("half", 4), ("all", 8)], ids=lambda one: str(one)
)
def test_a_quorum_is_exactly_that_many(quorum, needed):
    charter = project(rounds(quorum=3)).charter
    assert with_quorum(charter, "set", 8, present=8) == charter
    spec = with_quorum(charter, quorum, 8, present=8).rounds
    assert (spec.quorum, spec.grace_safety, spec.pace_share) == (needed, 0.0, 0.0)
    without_liars = with_quorum(charter, quorum, 8, present=6).rounds
    assert without_liars.quorum == min(needed, 6)


@pytest.mark.parametrize("layer", LAYERS)
def test_each_layer_can_be_left_out_by_itself(layer):
    outer = OuterSpec(0.7, 0.5, 3.0, probes_frac=0.5)
    charter = project(rounds(), outer=outer).charter

    def made(defence):
        return defence.charter(charter), defence.rules

    whole, bare = made(Defence("earned")), made(Defence("earned", layer))
    assert whole[0].outer.trust == "earned"
    assert whole[1] == RULES
    assert sum(one != other for one, other in zip(whole, bare, strict=True)) == 1
    assert bare not in [made(Defence("earned", one)) for one in LAYERS if one != layer]


def test_every_number_of_the_merge_is_a_layer_or_part_of_one():
    names = [one.name for one in fields(MergeRules)]
    changed = {
        name
        for layer in LAYERS.values()
        for name in names
        if getattr(layer.rules, name) != getattr(RULES, name)
    }
    assert changed == set(names)


def test_a_cell_says_what_it_is():
    cell = Cell("ipm", Defence("earned", "clipping"), "all", 1, Setting(seed=3))
    assert str(cell) == "ipm, trust earned - clipping, 4 learners, quorum all, seed 3"


def test_attacks_and_layers_are_listed(tmp_path, capsys):
    assert attack(tmp_path, "--list") == 0
    told = capsys.readouterr().out
    assert all(name in told for name in (*ATTACKS, *LAYERS))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["dance"], "There is no attack 'dance'. There are: honest, flip-1,"),
        (["flip-1", "--learners", "2", "--liars", "2"], "somebody must be honest"),
        (["flip-1", "--learners", "4,none"], "--learners none: give numbers from 2 to 64"),
        (["flip-1", "--without", "hope"], "There is no layer 'hope'. There are: trust,"),
        (["flip-1", "--quorum", "two"], "it is one of set, one, half, all"),
    ],
)
def test_what_cannot_be_tried_is_said(tmp_path, capsys, arguments, says):
    assert attack(tmp_path, *arguments) == 2
    assert says in capsys.readouterr().err
