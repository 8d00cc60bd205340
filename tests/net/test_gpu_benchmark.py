"""`make gpu` on the processor: the same checks and the same code, with tiny models."""

from __future__ import annotations

import functools
import json

import pytest
import torch

from benchmarks.gpu import run

pytestmark = [pytest.mark.net, pytest.mark.slow, pytest.mark.timeout(600)]

MAY_BE_NOT_RUN = {"in bf16", "with the base in 4 bits"}
"""Rows of which a processor says that it cannot."""


def test_every_check_runs_on_the_processor_and_nothing_fails(tmp_path, capsys, monkeypatch):
    # Its graphs are taken; to build machine code of them takes a processor a minute.
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
    out = tmp_path / "report.json"
    code = run.main(["--device", "cpu", "--sizes", "small", "--json", str(out)])
    captured = capsys.readouterr()
    printed = captured.out
    report = json.loads(out.read_bytes())
    assert [row for row in report["rows"] if row["error"]] == []
    assert code == 0
    for name in run.CHECKS:
        rows = [row for row in report["rows"] if row["check"] == name]
        assert any(row["value"] is not None for row in rows), name
        missing = {row["what"] for row in rows if row["value"] is None}
        assert missing <= MAY_BE_NOT_RUN, name
    assert report["facts"]["device"] == "cpu"
    assert report["facts"]["commit"]
    assert out.with_suffix(".md").read_text() == printed
    assert "No accelerator" in printed
    by_what = {row["what"]: row["value"] for row in report["rows"]}
    assert by_what["fragments come back as delivered, to within"] == 0.0
    assert by_what["micro-batch, 8 before memory ran out"] < 8
    assert by_what["distance over noise"] < 3.0  # In f32 the curves are the same.
    assert by_what["merges meanwhile"] > 0
