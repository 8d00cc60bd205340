"""`shoal sim honest` as people meet it: rows, a table, a picture, clear errors."""

from __future__ import annotations

import json

import pytest

from shoal.__main__ import main

SMALL = [
    *("--set", "model.config.hidden_size=32", "--set", "model.config.intermediate_size=64"),
    *("--set", "model.config.num_hidden_layers=1", "--set", "data.sequence_tokens=32"),
]


def honest(tmp_path, *arguments):
    return main(["--home", str(tmp_path / "home"), "sim", "honest", *arguments])


@pytest.mark.slow
def test_each_mixture_is_trained_under_both_rules_and_nobody_is_refused(tmp_path, capsys):
    rows, picture = tmp_path / "rows.json", tmp_path / "rows.svg"
    asked = ["slow", "kind", "--steps", "12", "--seeds", "1", *SMALL, "--jobs", "1"]
    assert honest(tmp_path, *asked, "--json", str(rows), "--plot", str(picture)) == 0
    found = json.loads(rows.read_text())
    kinds = {(one["mixture"], one["trust"]) for one in found}
    assert kinds == {(name, trust) for name in ("slow", "kind") for trust in ("all", "earned")}
    assert all(one["pushes"] > 5 and one["refused"] == 0 for one in found)
    assert picture.read_bytes().startswith(b"<?xml")
    assert "to all" in capsys.readouterr().out


def test_an_unknown_mixture_is_named(tmp_path, capsys):
    assert honest(tmp_path, "strange") == 2
    assert "There is no mixture 'strange'." in capsys.readouterr().err
