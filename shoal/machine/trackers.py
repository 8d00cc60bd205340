"""Where curves go: TensorBoard, Trackio and Weights & Biases, through their own packages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Literal, Protocol

from protocol.errors import UserError

Kind = Literal["tensorboard", "trackio", "wandb"]

STEP: Final = "global_step"


class Tracker(Protocol):
    """One run in one of them."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Takes the numbers of one global step; steps may come in any order."""

    def flush(self) -> None:
        """What was told can be looked at."""

    def close(self) -> None:
        """The run is over."""


class _TensorBoard:
    """Event files in a folder; PyTorch has the writer."""

    def __init__(self, project: str, run: str, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder / run))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def flush(self) -> None:
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class _Trackio:
    """A database on this machine, which `trackio show` draws."""

    def __init__(self, project: str, run: str, folder: Path) -> None:
        import trackio

        self._run: Any = trackio.init(project=project, name=run, resume="allow", embed=False)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def flush(self) -> None:
        """It writes by itself."""

    def close(self) -> None:
        self._run.finish()


class _Wandb:
    """An account elsewhere, or files with WANDB_MODE=offline."""

    def __init__(self, project: str, run: str, folder: Path) -> None:
        import wandb

        folder.mkdir(parents=True, exist_ok=True)
        self._run: Any = wandb.init(project=project, name=run, dir=str(folder))
        # Measurements are of earlier steps, which it would refuse as its own count of steps.
        self._run.define_metric(STEP)
        self._run.define_metric("*", step_metric=STEP)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log({**values, STEP: step})

    def flush(self) -> None:
        """It writes by itself."""

    def close(self) -> None:
        self._run.finish()


_TRACKERS: Final[Mapping[Kind, Callable[[str, str, Path], Tracker]]] = {
    "tensorboard": _TensorBoard,
    "trackio": _Trackio,
    "wandb": _Wandb,
}


def begin(kind: Kind, project: str, run: str, folder: Path) -> Tracker:
    """A run with this name. UserError where the package is not installed."""
    try:
        return _TRACKERS[kind](project, run, folder)
    except ModuleNotFoundError as error:
        raise UserError(f"{kind} is not installed. Install with: pip install {kind}") from error
