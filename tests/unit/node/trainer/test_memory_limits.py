"""Ceilings on the trainer's memory: the share handed to torch, and the kernel's limit."""

from __future__ import annotations

import re
import resource
import subprocess
import sys
from types import SimpleNamespace

import psutil
import pytest
import torch

from host.runtime import stand_ins
from node.trainer.failures import TrainerFailure
from node.trainer.memory_limits import CONTEXT_BYTES, limit_device_memory, limit_host_memory

GIB = 2**30


class Library:
    """torch.cuda or torch.xpu with one device of this size."""

    def __init__(self, size):
        self.size, self.asked = size, []

    def get_device_properties(self, device):
        return SimpleNamespace(total_memory=self.size)

    def set_per_process_memory_fraction(self, frac, device):
        self.asked.append((frac, device))


@pytest.mark.parametrize("kind", ["cuda", "xpu"])
def test_torch_gets_the_owners_share_less_what_the_driver_takes(monkeypatch, kind):
    library = Library(8 << 30)
    monkeypatch.setattr(torch, kind, library)
    device = torch.device(kind, 0)
    limit_device_memory(device, 1.0)
    assert library.asked == []
    limit_device_memory(device, 0.5)
    ((frac, asked),) = library.asked
    assert asked == device
    assert frac * library.size == pytest.approx(0.5 * library.size - CONTEXT_BYTES)
    with pytest.raises(
        TrainerFailure, match=r"gpu_memory_percent leaves nothing of 8\.0 GiB"
    ) as told:
        limit_device_memory(device, 0.05)
    assert told.value.kind == "memory"


def test_the_processor_has_no_share_of_its_own(monkeypatch):
    libraries = {kind: Library(8 << 30) for kind in ("cuda", "xpu")}
    for kind, library in libraries.items():
        monkeypatch.setattr(torch, kind, library)
    limit_device_memory(torch.device("cpu"), 0.1)
    assert [library.asked for library in libraries.values()] == [[], []]


def test_too_little_room_is_refused_before_the_first_step():
    with pytest.raises(TrainerFailure, match=r"limits\.ram_bytes_max leaves it 0\.00 GiB") as told:
        limit_host_memory(1 << 20)
    assert told.value.kind == "memory"


def test_a_refusal_says_what_would_be_enough():
    held = psutil.Process().memory_info().rss
    with pytest.raises(TrainerFailure, match="shoal config set") as told:
        limit_host_memory(held // 2, ceiling=held // 2 + 2 * GIB, step_bytes=GIB)
    enough = float(re.search(r"at least ([0-9.]+) GiB", str(told.value))[1])
    needed = held / GIB + 3.0
    assert needed - 0.05 <= enough <= needed + 0.15
    assert f"shoal config set limits.ram_bytes_max '{enough:.1f} GiB'" in str(told.value)


def test_without_the_kernels_account_nothing_is_limited(monkeypatch):
    monkeypatch.setenv(stand_ins.VARIABLE, "process-status")
    before = resource.getrlimit(resource.RLIMIT_DATA)
    limit_host_memory(1)
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


GROWING = """
import psutil
import torch
from node.trainer.memory_limits import limit_host_memory
from node.trainer.failures import failure_of
limit_host_memory(psutil.Process().memory_info().rss + (256 << 20))
kept = [torch.ones(16 << 20)]  # 64 MiB
try:
    while len(kept) < 32:
        kept.append(torch.ones(16 << 20))
except RuntimeError as error:
    print(len(kept), failure_of(error).kind)
"""


def test_the_kernel_refuses_more_and_it_is_told_as_out_of_memory():
    done = subprocess.run(
        [sys.executable, "-c", GROWING], capture_output=True, text=True, check=True
    )
    kept, kind = done.stdout.split()
    assert kind == "oom"
    assert 2 <= int(kept) <= 4
