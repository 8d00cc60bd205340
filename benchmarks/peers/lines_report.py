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
    """Markdown: seconds of a round in each case, with the range over all rounds.

    What a worker sends, and what a death does, are told of the first case that says it.
    """
    cases = list(found["cases"].values())
    head = ["", *(case["about"] for case in cases), "bytes per parameter and worker"]
    lines = ["| " + " | ".join([*head, "a worker dies"]) + " |"]
    lines.append("|" + "---|" * (len(head) + 1))
    for name, title in found["titles"].items():
        rows = [case["rows"].get(name, {}) for case in cases]
        cells = [_cell(case, row) for case, row in zip(cases, rows, strict=True)]
        told = next((_bytes(case, name) for case in cases if _bytes(case, name)), "")
        deaths = [told_death(row) for row in rows if "death" in row]
        lines.append("| " + " | ".join([title, *cells, told, "; ".join(deaths)]) + " |")
    return "\n".join(lines)


def _bytes(case: dict[str, Any], name: str) -> str:
    """Sent per parameter and worker in a round."""
    wire = [one["wire_bytes"] for one in case["rows"].get(name, {}).get("rounds", ())]
    return f"{statistics.median(wire) / (case['parameters'] * case['workers']):.2f}" if wire else ""


def _cell(case: dict[str, Any], row: dict[str, Any]) -> str:
    took_s = seconds(row)
    if not took_s:
        return f"did not run: {row.get('absent', 'cut off')}" if row else ""
    text = f"{statistics.median(took_s):.2f} s ({min(took_s):.2f} to {max(took_s):.2f})"
    yard = seconds(case["rows"].get(YARDSTICK, {}))
    if yard and row is not case["rows"][YARDSTICK]:
        text += f", {statistics.median(took_s) / statistics.median(yard):.1f} times Shoal"
    return text


def losses(found: dict[str, Any]) -> str:
    """Markdown: seconds to the held-out loss in each case, and bytes until then in the first."""
    cases = [case for case in found["cases"].values() if case["losses"]]
    if not cases:
        return ""
    target = next(row["target"] for row in cases[0]["losses"].values() if "target" in row)
    head = [f"to a held-out loss of {target}", *(case["about"] for case in cases)]
    lines = ["| " + " | ".join([*head, "local steps", "MB, all hosts"]) + " |"]
    lines.append("|" + "---|" * (len(head) + 2))
    for name, title in found["titles"].items():
        rows = [case["losses"].get(name, {}) for case in cases]
        yards = [case["losses"].get(YARDSTICK, {}).get("reached_s") for case in cases]
        cells = [_reached(row, yard) for row, yard in zip(rows, yards, strict=True)]
        first = rows[0]
        steps = str(first["curve"][-1][0]) if "curve" in first else ""
        sent = f"{first['wire'] / 1e6:,.0f}" if first.get("wire") else ""
        lines.append("| " + " | ".join([title, *cells, steps, sent]) + " |")
    return "\n".join(lines)


def _reached(row: dict[str, Any], yard: float | None) -> str:
    """yard: what Shoal takes."""
    if "curve" not in row:
        return f"did not run: {row.get('absent', 'cut off')}" if row else ""
    _, clock_s, loss = row["curve"][-1]
    is_there = "reached_s" in row
    text = f"{clock_s:.0f} s" if is_there else f"{loss:.2f} after {clock_s:.0f} s"
    if yard and row.get("reached_s") != yard:
        text += f", {'' if is_there else 'more than '}{clock_s / yard:.1f} times Shoal"
    return text


def panels(count: int, height: float, **options: Any) -> tuple[Any, list[Any]]:
    """A figure with two panels a row, each of so many inches."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "shoal"
    from matplotlib import pyplot

    rows = -(-count // 2)
    size = (5.5 * min(count, 2), height * rows)
    figure, axes = pyplot.subplots(
        rows, min(count, 2), figsize=size, layout="constrained", squeeze=False, **options
    )
    flat = list(axes.flat)
    for spare in flat[count:]:
        spare.remove()
    return figure, flat[:count]


def plot_losses(found: dict[str, Any], path: Path) -> None:
    """A panel for each case: the held-out loss over the seconds that count."""
    cases = [case for case in found["cases"].values() if case["losses"]]
    if not cases:
        return
    figure, axes = panels(len(cases), 3.6)
    for axis, case in zip(axes, cases, strict=True):
        for number, (name, title) in enumerate(found["titles"].items()):
            curve = case["losses"].get(name, {}).get("curve", ())
            if curve:
                _, seconds_s, values = zip(*curve, strict=True)
                width = 2.5 if name == YARDSTICK else 1.2
                look = {"color": f"C{number}", "marker": ".", "linewidth": width}
                axis.plot(seconds_s, values, label=title, **look)
        axis.set_title(f"held-out loss: {case['about']}", fontsize=10, loc="left")
        axis.spines[["top", "right"]].set_visible(False)
        axis.set_xlabel("seconds of training and merging")
        axis.set_ylabel("nats per byte")
        axis.set_ylim(top=3.2)
        axis.legend(frameon=False, fontsize=8)
    figure.savefig(path, metadata={"Date": None})


def plot(found: dict[str, Any], path: Path) -> None:
    """A panel for each case: bars for the median round, whiskers from the shortest to the
    longest."""
    names = list(found["titles"])[::-1]
    cases = list(found["cases"].values())
    figure, axes = panels(len(cases), 0.45 * len(names) + 1.3, sharey=True)
    for axis, case in zip(axes, cases, strict=True):
        took = [seconds(case["rows"].get(name, {})) for name in names]
        middles = [statistics.median(one) if one else 0.0 for one in took]
        reach = [
            [middle - min(one, default=0.0) for middle, one in zip(middles, took, strict=True)],
            [max(one, default=0.0) - middle for middle, one in zip(middles, took, strict=True)],
        ]
        titles = [found["titles"][name] for name in names]
        bars = axis.barh(titles, middles, color=colours(names), height=0.65, xerr=reach)
        told = [
            f"{middle:.1f}" if one else "not run" for middle, one in zip(middles, took, strict=True)
        ]
        axis.bar_label(bars, told, padding=6, fontsize=8)
        entitle(axis, f"seconds of a round: {case['about']}")
    figure.savefig(path, metadata={"Date": None})


def show(found: dict[str, Any], path: Path | None) -> None:
    """Prints the tables and draws the plots."""
    print(table(found), losses(found), sep="\n\n")
    if path is not None:
        plot(found, path)
        plot_losses(found, path.with_stem(f"{path.stem}-loss"))


if __name__ == "__main__":
    kept = json.loads(Path(sys.argv[1]).read_text())
    show(kept, Path(sys.argv[2]) if len(sys.argv) > 2 else None)
