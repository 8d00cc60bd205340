"""What the owner of this machine decided about the trainer, as its port is told."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class TrainerSettings:
    """What the owner of this machine decided about the trainer."""

    genesis: bytes
    data_cache: Path
    data_location: str
    """Path or name of the text on this machine."""
    log_path: Path
    suspend_folder: Path
    """For the files of a suspended trainer."""
    threads: int
    duty_frac: float
    device: str | None
    salt: int
    nice: int = 0
    gpu_memory_frac: float = 1.0
    ranks: int = 1
    """Processes that train as one."""
    compiles: bool = False
