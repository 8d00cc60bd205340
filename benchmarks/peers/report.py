"""The table and the plot of run.py, from what it wrote as JSON.

python -m benchmarks.peers.report benchmarks/peers.json docs/peers.svg
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

YARDSTICK = "gloo"
"""Ratios are to this one: the plainest way, and exact."""

HEAD = (
    "",
    "wall, s",
    "of gloo",
    "CPU, s",
    "of gloo",
    "bytes sent per parameter and worker",
    "busiest process, MiB",
    "relative error",
    "a worker dies",
)


def medians(found: dict[str, Any], name: str) -> dict[str, float | None]:
    """Of the rounds of one contender."""
    rounds = found["rows"][name]["rounds"]
    per = found["parameters"] * found["workers"]
    wire = [one["wire_bytes"] for one in rounds]
    return {
        "wall_s": statistics.median(one["wall_s"] for one in rounds),
        "cpu_s": statistics.median(one["cpu_s"] for one in rounds),
        "bytes": None if None in wire else statistics.median(wire) / per,
    }


def told_death(row: dict[str, Any]) -> str:
    """One cell: what the other workers have, and after how long."""
    death = row.get("death")
    if death is None:
        return ""
    if death["outcome"] == "hangs":
        return f"some wait on after {death['after_s']:.0f} s"
    if death["outcome"] == "fails":
        return f"error after {death['after_s']:.1f} s"
    alike = "alike" if death["is_same"] else "not alike"
    return f"result after {death['after_s']:.1f} s, {death['error']:.1e} off, {alike}"


def table(found: dict[str, Any]) -> str:
    """Markdown, with what did not run told in its row."""
    lines = ["| " + " | ".join(HEAD) + " |", "|" + "---|" * len(HEAD)]
    base = found["rows"].get(YARDSTICK, {})
    yard = medians(found, YARDSTICK) if base.get("rounds") else None
    for name, row in found["rows"].items():
        title = found["titles"][name]
        if not row.get("rounds"):
            why = row.get("absent", "cut off before its first round")
            lines.append(f"| {title} | did not run: {why} |" + " |" * (len(HEAD) - 2))
            continue
        here = medians(found, name)
        cells = [
            title,
            f"{here['wall_s']:.2f}",
            _ratio(here, yard, "wall_s"),
            f"{here['cpu_s']:.2f}",
            _ratio(here, yard, "cpu_s"),
            "not counted" if here["bytes"] is None else f"{here['bytes']:.2f}",
            f"{row['busiest_mib']:.0f}",
            f"{row['error']:.1e}",
            told_death(row),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _ratio(here: dict[str, Any], yard: dict[str, Any] | None, what: str) -> str:
    return "" if yard is None else f"{here[what] / yard[what]:.2f}"


def plot(found: dict[str, Any], path: Path) -> None:
    """Bars for wall clock, processor time and bytes, one colour per contender's package."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "shoal"
    from matplotlib import pyplot

    names = [name for name, row in found["rows"].items() if row.get("rounds")][::-1]
    titles = [found["titles"][name] for name in names]
    panels = (("wall_s", "wall clock, s"), ("cpu_s", "processor, s"), ("bytes", "bytes sent"))
    figure, axes = pyplot.subplots(
        1, len(panels), figsize=(11, 0.45 * len(names) + 1.3), sharey=True, layout="constrained"
    )
    for axis, (what, label) in zip(axes, panels, strict=True):
        values = [medians(found, name)[what] or 0.0 for name in names]
        bars = axis.barh(titles, values, color=colours(names), height=0.65)
        axis.bar_label(bars, fmt="%.2f", padding=3, fontsize=8)
        entitle(axis, label)
    entitle(axes[2], "bytes sent per parameter and worker")
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def entitle(axis: Any, title: str) -> None:
    """A panel of bars, which tell their values themselves."""
    axis.set_title(title, fontsize=10, loc="left")
    axis.spines[["top", "right", "bottom"]].set_visible(False)
    axis.tick_params(bottom=False, labelbottom=False, left=False, labelsize=9)
    axis.margins(x=0.18)


def colours(names: Sequence[str]) -> list[str]:
    """Of each contender's bars: Shoal's stand out."""
    return ["#0b7a75" if name.startswith("shoal") else "#9aa5b1" for name in names]


if __name__ == "__main__":
    kept = json.loads(Path(sys.argv[1]).read_text())
    print(table(kept))
    if len(sys.argv) > 2:
        plot(kept, Path(sys.argv[2]))
