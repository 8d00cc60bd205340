"""The tables and the plots of over_lines.py, from what it wrote as JSON.

python -m benchmarks.peers.lines_report benchmarks/lines.json docs/lines.svg

The second plot, how the loss falls, lies beside the first: docs/lines-loss.svg.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

from benchmarks.peers.report import colours, entitle, told_death

YARDSTICK = "shoal"
"""How many times as long the others take."""


def seconds(row: dict[str, Any]) -> list[float]:
    """Wall clock of each round that counted."""
    return [one["wall_s"] for one in row.get("rounds", ())]


def table(found: dict[str, Any]) -> str:
    """Markdown: seconds of a round in each case, with the range over all rounds."""
    cases = list(found["about"])
    head = ["", *(found["about"][case] for case in cases), "bytes per parameter and worker"]
    lines = ["| " + " | ".join([*head, "a worker dies"]) + " |"]
    lines.append("|" + "---|" * (len(head) + 1))
    for name, title in found["titles"].items():
        rows = [found["cases"].get(case, {}).get(name, {}) for case in cases]
        cells = [_cell(found, case, row) for case, row in zip(cases, rows, strict=True)]
        wire = [one["wire_bytes"] for row in rows[:1] for one in row.get("rounds", ())]
        per = found["parameters"] * found["workers"]
        bytes_told = f"{statistics.median(wire) / per:.2f}" if wire else ""
        death = next((told_death(row) for row in rows if "death" in row), "")
        lines.append("| " + " | ".join([title, *cells, bytes_told, death]) + " |")
    return "\n".join(lines)


def _cell(found: dict[str, Any], case: str, row: dict[str, Any]) -> str:
    took_s = seconds(row)
    if not took_s:
        return f"did not run: {row.get('absent', 'cut off')}"
    text = f"{statistics.median(took_s):.2f} s ({min(took_s):.2f} to {max(took_s):.2f})"
    yard = seconds(found["cases"][case].get(YARDSTICK, {}))
    if yard and row is not found["cases"][case][YARDSTICK]:
        text += f", {statistics.median(took_s) / statistics.median(yard):.1f} times Shoal"
    return text


def losses(found: dict[str, Any]) -> str:
    """Markdown: seconds to the held-out loss in each case, and bytes until then in the first."""
    cases = [case for case in found["about"] if found.get("losses", {}).get(case)]
    if not cases:
        return ""
    target = next(row["target"] for row in found["losses"][cases[0]].values() if "target" in row)
    head = [f"to a held-out loss of {target}", *(found["about"][case] for case in cases)]
    lines = ["| " + " | ".join([*head, "local steps", "MB, all hosts"]) + " |"]
    lines.append("|" + "---|" * (len(head) + 2))
    for name, title in found["titles"].items():
        rows = [found["losses"][case].get(name, {}) for case in cases]
        yards = [found["losses"][case].get(YARDSTICK, {}).get("reached_s") for case in cases]
        cells = [_reached(row, yard) for row, yard in zip(rows, yards, strict=True)]
        first = rows[0]
        steps = str(first["curve"][-1][0]) if "curve" in first else ""
        sent = f"{first['wire'] / 1e6:,.0f}" if first.get("wire") else ""
        lines.append("| " + " | ".join([title, *cells, steps, sent]) + " |")
    return "\n".join(lines)


def _reached(row: dict[str, Any], yard: float | None) -> str:
    """yard: what Shoal takes."""
    if "curve" not in row:
        return f"did not run: {row.get('absent', 'cut off')}"
    _, clock_s, loss = row["curve"][-1]
    is_there = "reached_s" in row
    text = f"{clock_s:.0f} s" if is_there else f"{loss:.2f} after {clock_s:.0f} s"
    if yard and row.get("reached_s") != yard:
        text += f", {'' if is_there else 'more than '}{clock_s / yard:.1f} times Shoal"
    return text


def plot_losses(found: dict[str, Any], path: Path) -> None:
    """A panel for each case: the held-out loss over the seconds that count."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "shoal"
    from matplotlib import pyplot

    cases = [case for case in found["about"] if found.get("losses", {}).get(case)]
    if not cases:
        return
    figure, axes = pyplot.subplots(
        1, len(cases), figsize=(5.5 * len(cases), 3.6), layout="constrained", squeeze=False
    )
    names = list(found["titles"])
    for axis, case in zip(axes[0], cases, strict=True):
        for number, name in enumerate(names):
            curve = found["losses"][case].get(name, {}).get("curve", ())
            if curve:
                _, seconds_s, values = zip(*curve, strict=True)
                width = 2.5 if name == YARDSTICK else 1.2
                look = {"color": f"C{number}", "marker": ".", "linewidth": width}
                axis.plot(seconds_s, values, label=found["titles"][name], **look)
        axis.set_title(f"held-out loss: {found['about'][case]}", fontsize=10, loc="left")
        axis.spines[["top", "right"]].set_visible(False)
        axis.set_xlabel("seconds of training and merging")
        axis.set_ylabel("nats per byte")
        axis.set_ylim(top=3.2)
        axis.legend(frameon=False, fontsize=8)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def plot(found: dict[str, Any], path: Path) -> None:
    """A panel for each case: bars for the median round, whiskers from the shortest to the
    longest."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "shoal"
    from matplotlib import pyplot

    names = list(found["titles"])[::-1]
    cases = list(found["about"])
    figure, axes = pyplot.subplots(
        1,
        len(cases),
        figsize=(5.5 * len(cases), 0.45 * len(names) + 1.3),
        sharey=True,
        layout="constrained",
        squeeze=False,
    )
    for axis, case in zip(axes[0], cases, strict=True):
        took = [seconds(found["cases"].get(case, {}).get(name, {})) for name in names]
        middles = [statistics.median(one) if one else 0.0 for one in took]
        reach = [
            [middle - min(one, default=0.0) for middle, one in zip(middles, took, strict=True)],
            [max(one, default=0.0) - middle for middle, one in zip(middles, took, strict=True)],
        ]
        titles = [found["titles"][name] for name in names]
        bars = axis.barh(titles, middles, color=colours(names), height=0.65, xerr=reach)
        axis.bar_label(bars, fmt="%.1f", padding=6, fontsize=8)
        entitle(axis, f"seconds of a round: {found['about'][case]}")
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def show(found: dict[str, Any], path: Path | None) -> None:
    """Prints the tables and draws the plots."""
    print(table(found), losses(found), sep="\n\n")
    if path is not None:
        plot(found, path)
        plot_losses(found, path.with_stem(f"{path.stem}-loss"))


if __name__ == "__main__":
    kept = json.loads(Path(sys.argv[1]).read_text())
    show(kept, Path(sys.argv[2]) if len(sys.argv) > 2 else None)
