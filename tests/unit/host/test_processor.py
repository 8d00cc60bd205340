"""What Linux tells of the processor, and in what numbers passes are computed on it."""

from __future__ import annotations

import pytest

from host.runtime import processor
from node.trainer import loop

TOLD = "processor\t: 0\nmodel name\t: Quick: 9\nflags\t\t: fpu sse2 {}\n\nprocessor\t: 1\n"


@pytest.fixture
def become(tmp_path, monkeypatch):
    """Makes this machine's processor one that has these flags."""

    def become(flags):
        (tmp_path / "cpuinfo").write_text(TOLD.format(flags))
        monkeypatch.setattr(processor, "CPU_INFO", tmp_path / "cpuinfo")

    return become


@pytest.mark.parametrize(
    ("flags", "has_bf16"),
    [
        ("avx512f avx512_bf16 avx512_vnni", True),
        ("amx_bf16", True),
        ("avx2 avx512f avx512_vnni", False),
        ("avx512_bf16s", False),
        ("", False),
    ],
)
def test_it_says_by_its_flags_whether_it_has_bf16(become, flags, has_bf16):
    become(flags)
    assert processor.has_bf16() is has_bf16
    assert processor.model_name() == "Quick: 9"


def test_where_nobody_tells_it_has_neither_name_nor_bf16(tmp_path, monkeypatch):
    monkeypatch.setattr(processor, "CPU_INFO", tmp_path / "missing")
    assert processor.model_name() == ""
    assert not processor.has_bf16()


def test_small_models_stay_in_f32(become):
    become("avx512_bf16")
    assert not loop.is_in_bf16("cpu", loop.BF16_PARAMETERS_MIN - 1)
    assert loop.is_in_bf16("cpu", loop.BF16_PARAMETERS_MIN)
    become("avx2")
    assert not loop.is_in_bf16("cpu", loop.BF16_PARAMETERS_MIN)


@pytest.mark.parametrize(("kind", "is_in_bf16"), [("xpu", True), ("xla", True), ("mps", False)])
def test_other_devices_are_asked_by_kind(kind, is_in_bf16):
    assert loop.is_in_bf16(kind, 1) is is_in_bf16
