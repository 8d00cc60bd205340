"""Held-out loss over virtual time, a dot for each algorithm."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from protocol.errors import UserError
from simulator.compare.results import Summary


def require_matplotlib() -> None:
    """UserError if pictures cannot be drawn here."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise UserError("--plot needs matplotlib: pip install 'matplotlib>=3.9,<4'") from error


def draw(lines: Sequence[Summary], file: Path) -> None:
    """Writes the picture. UserError if the file cannot be written."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.0, 5.0), layout="constrained")
    axes = figure.add_subplot()
    for line in lines:
        (dot,) = axes.plot(line.virtual_wall_s, line.eval_loss, "o", label=line.algorithm)
        if line.eval_loss_spread:
            axes.errorbar(
                line.virtual_wall_s, line.eval_loss, line.eval_loss_spread, color=dot.get_color()
            )
    axes.set_xscale("log")
    axes.set_xlabel("virtual seconds")
    axes.set_ylabel("held-out loss, nats per token")
    axes.grid(visible=True, which="both", alpha=0.3)
    figure.legend(loc="outside right upper", fontsize="small", frameon=False)
    try:
        figure.savefig(file, dpi=150)
    except (OSError, ValueError) as error:
        raise UserError(
            f"{file} cannot be drawn ({error}). A PNG is written to NAME.png."
        ) from error
