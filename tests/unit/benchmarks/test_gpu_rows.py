"""What a measured figure means: bars, verdicts, the exit code and the table."""

from __future__ import annotations

import json
import math

import pytest

from benchmarks.gpu import run
from benchmarks.gpu.device import Facts, numbered
from benchmarks.gpu.report import Report, table
from benchmarks.gpu.rows import Row, is_bad
from benchmarks.gpu.sizes import FULL, SMALL
from node.trainer.failures import TrainerFailure
from node.trainer.model import describe_model
from protocol.errors import InternalError

FAST = Row("speed", "ratio", 0.97, at_least=0.95)
SLOW = Row("speed", "ratio", 0.93, at_least=0.95)
LARGE = Row("adapter", "memory", 25.0, "GB", at_most=24.0)
LACKING = Row("loss curve", "in bf16", why_not="no bf16 in hardware", at_least=1.0)
BROKEN = Row("smoke", "all of it", error="RuntimeError: no kernel image")


def facts(device="cuda:0"):
    return Facts(
        device=device,
        device_name="Some | Device",
        memory_bytes=24 << 30,
        backend="CUDA 12.8",
        has_bf16=True,
        machine="Linux x86_64, 16 cores, 128 GiB",
        python="3.11.2",
        torch="2.9.0",
        transformers="5.1.0",
        commit="abc1234",
    )


@pytest.mark.parametrize(
    ("row", "on_accelerator", "on_processor"),
    [
        (FAST, "met", "measured"),
        (SLOW, "missed", "measured"),
        (LARGE, "missed", "measured"),
        (LACKING, "not run", "not run"),
        (BROKEN, "failed", "failed"),
        (Row("stalls", "a capture", 0.1), "measured", "measured"),
        (Row("speed", "ratio", math.nan, at_least=0.95), "missed", "measured"),
    ],
)
def test_bars_count_on_accelerators_only(row, on_accelerator, on_processor):
    assert row.verdict(is_accelerator=True) == on_accelerator
    assert row.verdict(is_accelerator=False) == on_processor


def test_a_missed_bar_or_a_failure_is_bad_and_what_a_device_cannot_say_is_not():
    assert not is_bad([FAST, LACKING], is_accelerator=True)
    assert is_bad([FAST, SLOW], is_accelerator=True)
    assert not is_bad([FAST, SLOW], is_accelerator=False)
    assert is_bad([BROKEN], is_accelerator=False)


def report(*rows, device="cuda:0"):
    return Report(facts=facts(device), date="2026-01-02", sizes="full", rows=list(rows))


def test_the_table_names_the_device_and_says_why_a_figure_is_missing():
    lines = table(report(FAST, LARGE, LACKING, BROKEN)).splitlines()
    assert lines[0] == "### Some | Device"
    assert "CUDA 12.8, 24 GiB" in lines[2]
    assert "commit abc1234, 2026-01-02" in lines[2]
    assert lines[-4:] == [
        "| speed | ratio | 0.97 | at least 0.95 | met |",
        "| adapter | memory | 25 GB | at most 24 | missed |",
        "| loss curve | in bf16 |  | at least 1 | not run: no bf16 in hardware |",
        "| smoke | all of it |  |  | failed: RuntimeError: no kernel image |",
    ]
    assert "No accelerator" not in "\n".join(lines)
    assert "No accelerator" in table(report(FAST, device="cpu"))


def test_a_report_is_written_twice(tmp_path):
    path = tmp_path / "report.json"
    report(SLOW).write(path)
    assert json.loads(path.read_text())["rows"][0]["value"] == 0.93
    assert path.with_suffix(".md").read_text() == table(report(SLOW)) + "\n"


@pytest.mark.parametrize(
    ("error", "why_not", "told"),
    [
        (TrainerFailure("oom", "too large"), "too little memory (too large)", ""),
        (RuntimeError("CUDA out of memory."), "too little memory (CUDA out of memory.)", ""),
        (InternalError("a bug"), "", "InternalError: a bug"),
    ],
)
def test_a_check_that_fails_fails_alone(monkeypatch, error, why_not, told):
    def fails(device, sizes):
        raise error

    monkeypatch.setitem(run.CHECKS, "speed", run.Check(fails))
    (row,) = run.run_here("speed", "cpu", SMALL)
    assert (row.why_not, row.error) == (why_not, told)


def test_the_exit_code_says_whether_a_bar_was_missed(monkeypatch, tmp_path):
    rows = {"speed": [FAST], "stalls": [SLOW]}
    monkeypatch.setattr(run, "run_apart", lambda name, device, sizes: rows[name])
    monkeypatch.setattr(run, "facts_of", facts)
    out = ["--device", "cuda", "--json", str(tmp_path / "report.json")]
    assert run.main([*out, "--only", "speed"]) == 0
    assert run.main([*out, "--only", "speed", "stalls"]) == 1
    assert json.loads((tmp_path / "report.json").read_text())["facts"]["device"] == "cuda:0"


@pytest.mark.parametrize("device", ["cpu", "mps", "cuda:1", "xpu:0"])
def test_only_a_device_without_its_number_gets_one(device):
    assert numbered(device) == device
    assert numbered("xpu") == "xpu:0"


@pytest.mark.parametrize(
    ("at", "parameters"), [(0, 596_049_920), (1, 1_235_814_400)], ids=["0.6 B", "1 B"]
)
def test_stalls_are_measured_at_the_sizes_that_are_told(at, parameters):
    model = FULL.stall_models[at]
    specs = describe_model(model.architecture, model.config).tensors
    assert sum(math.prod(one.shape) for one in specs) == parameters
