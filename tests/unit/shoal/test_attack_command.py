"""`shoal sim attack` as people meet it: rows, a table, clear errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shoal.__main__ import main

STEPS = ["--steps", "12", "--seeds", "1"]
SMALL = [
    *("--set", "model.config.hidden_size=32", "--set", "model.config.intermediate_size=64"),
    *("--set", "model.config.num_hidden_layers=1", "--set", "data.sequence_tokens=32"),
]


def attack(tmp_path: Path, *arguments: str) -> int:
    return main(["--home", str(tmp_path / "home"), "sim", "attack", *arguments])


def test_every_run_is_a_row_and_compared_with_the_one_without_liars(tmp_path, capsys):
    rows = tmp_path / "rows.json"
    assert attack(tmp_path, "flip-10", *STEPS, *SMALL, "--json", str(rows)) == 0
    found = {(one["attack"], one["trust"]): one for one in json.loads(rows.read_text())}
    assert set(found) == {(a, t) for a in ("nobody", "flip-10") for t in ("all", "earned")}
    for (name, trust), one in found.items():
        quiet = found["nobody", trust]
        assert one["ratio"] == pytest.approx(one["eval_loss"] / quiet["eval_loss"])
        assert (one["liar_share"] > 0.3) == (name != "nobody" and trust == "all")
    told = capsys.readouterr().out
    assert "1 of 4 learners lie" in told
    assert "never" in told


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["dance"], "There is no attack 'dance'. There are: flip-1, flip-10,"),
        (["flip-1", "--learners", "2", "--liars", "2"], "somebody must be honest"),
    ],
)
def test_what_cannot_be_tried_is_said(tmp_path, capsys, arguments, says):
    assert attack(tmp_path, *arguments) == 2
    assert says in capsys.readouterr().err
