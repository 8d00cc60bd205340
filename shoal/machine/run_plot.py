"""The picture of a run: four panels for a syncer's log, one where only the curve is known."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from syncer_node.storage.history import History, Measurement, Sample

COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8d6a9f", "#30475e")
"""The first six are told apart by people who see fewer colours."""

OTHERS = "#9a9a9a"
"""Everybody who has no colour of his own."""

BINS = 48
"""Rates are drawn over so many equal parts of the run at most."""


def draw(history: History, path: Path) -> None:
    """Writes the picture, a PNG or, by its name, an SVG. Raises OSError."""
    from tui.text import fmt

    figure, panels = _canvas(2 if history.samples else 1)
    title = fmt.clean(history.project_name)
    figure.suptitle(f"{title}, {fmt.count(_tokens(history))} tokens", fontsize=13)
    _loss(panels[0], history)
    if history.samples:
        _speed(panels[1], history)
        _company(panels[2], history)
        _shares(panels[3], history)
    figure.savefig(path, format="svg" if path.suffix.lower() == ".svg" else "png")


def _tokens(history: History) -> int:
    if history.samples:
        return history.samples[-1].tokens
    return history.measured[-1].tokens if history.measured else 0


def _canvas(rows: int) -> tuple[Any, list[Any]]:
    # A figure without pyplot: no window system, no state shared with others.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11.0, 7.4) if rows == 2 else (7.0, 4.4), dpi=130, layout="constrained")
    panels = list(figure.subplots(rows, rows, squeeze=False).flat)
    for panel in panels:
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(alpha=0.25)
    return figure, panels


def _loss(panel: Any, history: History) -> None:
    points = sorted(history.measured, key=lambda one: one.tokens)
    panel.set(title="Held-out loss", xlabel="tokens merged", ylabel="nats per token")
    _in_thousands(panel.xaxis)
    if not points:
        _say(panel, "nothing measured yet")
        return
    panel.plot(_tokens_of(points), _losses_of(points), "-", color=COLOURS[0], lw=1.6)
    for agreed, fill, label in ((True, COLOURS[0], "two agree"), (False, "white", "one learner")):
        mine = [one for one in points if one.is_agreed == agreed]
        if mine:
            panel.plot(
                _tokens_of(mine), _losses_of(mine), "o", ms=4, mfc=fill, color=COLOURS[0],
                label=f"measured: {label}",
            )  # fmt: skip
    if history.best is not None:
        best = history.best
        label = f"best: {best.loss:.4f} at step {best.global_step:,}"
        panel.plot([best.tokens], [best.loss], "*", ms=13, color=COLOURS[5], label=label)
    panel.legend(frameon=False, fontsize=8)


def _tokens_of(points: Sequence[Measurement]) -> list[int]:
    return [one.tokens for one in points]


def _losses_of(points: Sequence[Measurement]) -> list[float]:
    return [one.loss for one in points]


def _speed(panel: Any, history: History) -> None:
    panel.set(title="Speed", ylabel="tokens merged per second")
    rows = _binned(history.samples)
    ends = [_when(after.at_s) for _, after in rows]
    rates = [
        (after.tokens_merged - before.tokens_merged) / (after.at_s - before.at_s)
        for before, after in rows
    ]
    panel.plot(ends, rates, drawstyle="steps-pre", color=COLOURS[2], lw=1.4)
    _over_time(panel, history)
    _in_thousands(panel.yaxis)


def _company(panel: Any, history: History) -> None:
    panel.set(title="Learners in a merge", ylabel="pushes per merge")
    rows = _binned(history.samples)
    ends = [_when(after.at_s) for _, after in rows]
    means = [
        (after.pushes - before.pushes) / max(1, after.merges - before.merges)
        for before, after in rows
    ]
    panel.plot(ends, means, drawstyle="steps-pre", color=COLOURS[3], lw=1.4)
    for at, election_s in enumerate(history.elections_s):
        label = "a leader was elected" if at == 0 else None
        panel.axvline(_when(election_s), color="black", lw=0.8, ls=":", label=label)
    if history.elections_s:
        panel.legend(frameon=False, fontsize=8)
    _over_time(panel, history)


def _shares(panel: Any, history: History) -> None:
    panel.set(title="Who gave", ylabel="tokens merged")
    ends = [_when(one.at_s) for one in history.samples]
    rows = [[one.by_learner.get(key, 0) for one in history.samples] for key, _ in history.learners]
    known = [sum(column) for column in zip(*rows, strict=True)] or [0] * len(ends)
    rest = [
        max(0, sum(one.by_learner.values()) - given)
        for one, given in zip(history.samples, known, strict=True)
    ]
    labels = [_name(key, name) for key, name in history.learners]
    colours = list(COLOURS[: len(rows)])
    if any(rest):
        rows, labels, colours = [*rows, rest], [*labels, "all others"], [*colours, OTHERS]
    if rows:
        panel.stackplot(ends, rows, labels=labels, colors=colours, alpha=0.85)
        panel.legend(frameon=False, fontsize=8, loc="upper left")
    _over_time(panel, history)
    _in_thousands(panel.yaxis)


def _name(key: bytes, name: str) -> str:
    from tui.text import fmt

    # A label that begins with an underscore is not drawn; a dollar sign begins a formula.
    plain = fmt.clean(name).replace("$", r"\$").lstrip("_")
    return plain or key.hex()[:8]


def _binned(samples: Sequence[Sample]) -> list[tuple[Sample, Sample]]:
    """Beginning and end of each of `BINS` equal spans of time in which anything was merged."""
    first, last = samples[0].at_s, samples[-1].at_s
    width_s = max((last - first) / BINS, 1e-3)
    ends = {int((one.at_s - first) / width_s): one for one in samples}
    chosen = [samples[0], *ends.values()]
    return [(before, after) for before, after in pairwise(chosen) if after.at_s > before.at_s]


def _when(at_s: float) -> datetime:
    return datetime.fromtimestamp(at_s, UTC)


def time_marks() -> Any:
    """Where marks stand on an axis of time: some interval fits runs of any length."""
    from matplotlib.dates import AutoDateLocator

    # With 5 marks at least, as by default, none fits about four minutes, four hours or four days.
    return AutoDateLocator(minticks=3, maxticks=7)


def _over_time(panel: Any, history: History) -> None:
    from matplotlib.dates import ConciseDateFormatter

    places = time_marks()
    panel.xaxis.set_major_locator(places)
    panel.xaxis.set_major_formatter(ConciseDateFormatter(places))
    panel.set_xlim(_when(history.samples[0].at_s), _when(history.samples[-1].at_s + 1e-3))
    panel.set_ylim(bottom=0)
    panel.set_xlabel("time, UTC")


def _in_thousands(axis: Any) -> None:
    from matplotlib.ticker import EngFormatter

    axis.set_major_formatter(EngFormatter(sep=""))


def _say(panel: Any, words: str) -> None:
    panel.text(0.5, 0.5, words, transform=panel.transAxes, ha="center", color=OTHERS)
    panel.set(xticks=[], yticks=[])
