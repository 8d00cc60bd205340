"""The device under test: what it is called, what it holds, and when it is done."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.metadata
import os
import platform
import resource
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch

from host.runtime.process_status import status_bytes
from node.trainer.loop import free_device_memory

ROOT = Path(__file__).parents[2]
CLEAR_REFS = Path("/proc/self/clear_refs")
M_MMAP_THRESHOLD = -3
"""What mallopt calls the size from which on an allocation is a mapping of its own."""

MAPPED_FROM_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Facts:
    """What a report names."""

    device: str
    """As torch calls it."""
    device_name: str
    memory_bytes: int
    """Of the device; of the machine, where that is the processor."""
    backend: str
    has_bf16: bool
    """In hardware."""
    machine: str
    python: str
    torch: str
    transformers: str
    commit: str

    @property
    def is_accelerator(self) -> bool:
        return self.device != "cpu"


def numbered(device: str) -> str:
    """The same device with its number, which torch wants for some of its calls: cuda:0 for cuda."""
    kind = torch.device(device).type
    return f"{device}:0" if device == kind and kind in ("cuda", "xpu") else device


def facts_of(device: str) -> Facts:
    """Those of this device, and of the machine around it."""
    kind = torch.device(device).type
    name, memory = platform.processor() or platform.machine(), int(psutil.virtual_memory().total)
    backend, has_bf16 = "", False
    if kind == "cuda":
        found = torch.cuda.get_device_properties(device)
        name, memory = found.name, int(found.total_memory)
        backend = f"ROCm {torch.version.hip}" if torch.version.hip else f"CUDA {torch.version.cuda}"
        has_bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
    elif kind == "xpu":
        card = torch.xpu.get_device_properties(device)
        name, memory, backend, has_bf16 = card.name, int(card.total_memory), "XPU", True
    elif kind == "mps":
        name, backend = "Apple GPU", "Metal"
    return Facts(
        device=device,
        device_name=name,
        memory_bytes=memory,
        backend=backend,
        has_bf16=has_bf16,
        machine=f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores,"
        f" {psutil.virtual_memory().total / 2**30:.0f} GiB",
        python=platform.python_version(),
        torch=str(torch.__version__),
        transformers=importlib.metadata.version("transformers"),
        commit=_commit(),
    )


def _commit() -> str:
    """Of the sources; with a plus where they were changed since. Empty outside of a repository."""
    words = ("git", "describe", "--always", "--abbrev=10", "--dirty=+", "--exclude=*")
    try:
        said = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return ""
    return said.strip()


def library_of(device: torch.device) -> Any:
    """Torch's module for this kind; None for the processor."""
    return {"cuda": torch.cuda, "xpu": torch.xpu, "mps": torch.mps}.get(device.type)


def return_what_is_freed(device: torch.device) -> None:
    """Makes this process give the memory of a freed tensor back to the system at once.

    Otherwise the C library keeps some of it, and how much differs from run to run; tensors that
    fit into it are in no count of memory and under no bound. For the processor only, and only
    where the C library can do so.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    if device.type == "cpu" and mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, MAPPED_FROM_BYTES)


class Unbounded(Exception):
    """The memory of this device cannot be bounded."""


class PeakMemory:
    """The most memory that the device, or this process, held since `begin`."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._counts = device.type in ("cuda", "xpu")
        self._before = 0

    def begin(self) -> None:
        """From now on the most is looked for."""
        free_device_memory(self._device)
        if self._counts:
            library_of(self._device).reset_peak_memory_stats(self._device)
            return
        with contextlib.suppress(OSError):  # Then the peak since the start counts.
            CLEAR_REFS.write_text("5")
        self._before = status_bytes("VmRSS") or 0

    def bytes(self) -> int:
        """Of the device what tensors took in all; of the processor what came on top."""
        if self._counts:
            return int(library_of(self._device).max_memory_allocated(self._device))
        return max(0, (status_bytes("VmHWM") or 0) - self._before)

    def held(self) -> int:
        """Taken by tensors at this moment, in the same count; 0 on the processor."""
        if self._counts:
            return int(library_of(self._device).memory_allocated(self._device))
        return 0


@contextlib.contextmanager
def squeezed(device: torch.device, room_bytes: int) -> Iterator[None]:
    """Inside, no more than so many bytes can be had beside what is held.

    Unbounded where that cannot be had.
    """
    free_device_memory(device)
    if device.type == "cpu":
        asked = status_bytes("VmData")
        if asked is None:
            raise Unbounded("this system does not say how much memory was asked for")
        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (asked + room_bytes, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
        return
    if device.type not in ("cuda", "xpu"):
        raise Unbounded(f"torch does not bound the memory of {device.type} by the byte")
    library = library_of(device)
    total = int(library.get_device_properties(device).total_memory)
    held = int(library.memory_reserved(device))
    library.set_per_process_memory_fraction(min(1.0, (held + room_bytes) / total), device)
    try:
        yield
    finally:
        library.set_per_process_memory_fraction(1.0, device)
