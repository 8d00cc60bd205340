"""What accelerators say about themselves: NVIDIA by its management library, AMD by the kernel.

Shoal reads; it never sets anything. A reading that a device does not give is None, and a kind of
device that cannot be asked is named as absent.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final

AMD_VENDOR: Final = "0x1002"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceReading:
    """One device at one moment."""

    device: str
    """As torch calls it: `cpu`, `cuda:0`; AMD's too, for its torch calls them so."""
    model: str
    temperature_c: float | None = None
    busy_frac: float | None = None
    """By whomever."""
    memory_used_bytes: int | None = None
    memory_bytes: int | None = None


class Nvidia:
    """NVIDIA's devices; none where the library or the driver is missing."""

    def __init__(self, library: Any = None, environ: Mapping[str, str] = os.environ) -> None:
        """library: what `import pynvml` gives."""
        self.absence = ""
        self._handles: list[Any] = []
        try:
            self._library = library = library or import_module("pynvml")
            library.nvmlInit()
            count = library.nvmlDeviceGetCount()
            every = [library.nvmlDeviceGetHandleByIndex(at) for at in range(count)]
        except ImportError:
            self.absence = "NVIDIA: the Python package nvidia-ml-py is not installed"
            return
        except library.NVMLError as error:
            self.absence = f"NVIDIA: {error}"
            return
        self._handles = [every[at] for at in _visible(environ, count)]

    def read(self) -> list[DeviceReading]:
        """Every device that this process may use."""
        return [self._read(at, handle) for at, handle in enumerate(self._handles)]

    def _read(self, at: int, handle: Any) -> DeviceReading:
        nvml = self._library
        memory = self._ask(nvml.nvmlDeviceGetMemoryInfo, handle)
        use = self._ask(nvml.nvmlDeviceGetUtilizationRates, handle)
        heat = self._ask(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU)
        name = self._ask(nvml.nvmlDeviceGetName, handle)
        return DeviceReading(
            device=f"cuda:{at}",
            model=name.decode() if isinstance(name, bytes) else name or "NVIDIA",
            temperature_c=None if heat is None else float(heat),
            busy_frac=None if use is None else use.gpu / 100.0,
            memory_used_bytes=None if memory is None else int(memory.used),
            memory_bytes=None if memory is None else int(memory.total),
        )

    def _ask(self, question: Any, *of: Any) -> Any:
        try:
            return question(*of)
        except self._library.NVMLError:
            return None  # Not every card answers everything.


def _visible(environ: Mapping[str, str], count: int) -> list[int]:
    """The driver's numbers of the devices in the order in which torch counts them."""
    text = environ.get("CUDA_VISIBLE_DEVICES")
    named = [part.strip() for part in text.split(",")] if text is not None else None
    if named is None or not all(part.isdigit() for part in named if part):
        return list(range(count))  # Names of devices cannot be matched: all are shown.
    return [int(part) for part in named if part and int(part) < count]


class Amd:
    """AMD's devices, read from the kernel's `amdgpu` files."""

    def __init__(self, root: Path = Path("/sys/class/drm")) -> None:
        cards = [path for path in root.glob("card*/device") if _text(path / "vendor") == AMD_VENDOR]
        self._cards = sorted(cards, key=lambda path: path.parent.name)
        self.absence = "" if self._cards else "AMD: the kernel names no device"

    def read(self) -> list[DeviceReading]:
        """Every card."""
        return [self._read(at, card) for at, card in enumerate(self._cards)]

    def _read(self, at: int, card: Path) -> DeviceReading:
        heats = [_number(path) for path in sorted(card.glob("hwmon/hwmon*/temp*_input"))]
        known = [heat for heat in heats if heat is not None]
        busy = _number(card / "gpu_busy_percent")
        return DeviceReading(
            device=f"cuda:{at}",
            model=_text(card / "product_name") or "AMD",
            temperature_c=max(known) / 1000.0 if known else None,
            busy_frac=None if busy is None else busy / 100.0,
            memory_used_bytes=_number(card / "mem_info_vram_used"),
            memory_bytes=_number(card / "mem_info_vram_total"),
        )


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text.isdigit() else None
