"""The table and the plot of over_lines.py, from what it wrote as JSON.

python -m benchmarks.peers.lines_report benchmarks/lines.json docs/lines.svg
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


if __name__ == "__main__":
    kept = json.loads(Path(sys.argv[1]).read_text())
    print(table(kept))
    if len(sys.argv) > 2:
        plot(kept, Path(sys.argv[2]))
