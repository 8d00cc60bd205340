"""The pictures of `shoal sim`: model as lines or bars, the paper's values as rings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from shoal.sim.attack_grid import AttackRow
    from simulator.compare.results import Summary
    from simulator.compare.trend import Place
    from simulator.scale.bandwidth import Need
    from simulator.scale.goodput import Cell
    from simulator.scale.heterogeneous import Setting
    from simulator.scale.scavenge import Speedup
    from simulator.scale.spread import Found

COLOURS = ("#7f7f7f", "#d1495b", "#edae49", "#66a182", "#2e7dab", "#30475e", "#8d6a9f", "#111111")


def short(count: int) -> str:
    """The count as people say it: 150k, 1.2M."""
    for unit, name in ((1_000_000, "M"), (1_000, "k")):
        if count >= unit:
            return f"{count / unit:g}{name}"
    return str(count)


def goodput(rows: Sequence[Cell], path: Path) -> None:
    """Goodput and uptime over cluster size, one line per method. Raises OSError."""
    figure, panels = _canvas(2)
    names = list(dict.fromkeys((row.method, row.learners) for row in rows))
    for at, (method, learners) in enumerate(names):
        line = sorted(
            (row for row in rows if (row.method, row.learners) == (method, learners)),
            key=lambda row: row.chips,
        )
        colour = COLOURS[at % len(COLOURS)]
        sizes = [row.chips for row in line]
        label = method if learners == 1 else f"{method}, M = {learners}"
        panels[0].plot(sizes, [100 * row.goodput for row in line], ".-", color=colour, label=label)
        panels[1].plot(sizes, [100 * row.uptime for row in line], ".-", color=colour)
        _rings(panels[0], [(row.chips, row.paper_goodput) for row in line], colour)
    sizes = sorted({row.chips for row in rows})
    for panel, name in zip(panels, ("Goodput", "Uptime"), strict=True):
        panel.set(xscale="log", xlabel="Chips", ylabel=f"{name} (%)", ylim=(0, 103), title=name)
        panel.set_xticks(sizes, [short(size) for size in sizes])
        panel.minorticks_off()
    _save(figure, panels[0], path)


def bandwidth(rows: Sequence[Need], link_gbps: float | None, path: Path) -> None:
    """Gb/s over utilisation, logarithmic, one line per method and codec. Raises OSError."""
    figure, (panel,) = _canvas(1)
    names = list(dict.fromkeys((row.method, row.codec) for row in rows))
    methods = list(dict.fromkeys(method for method, _ in names))
    codecs = list(dict.fromkeys(codec for _, codec in names))
    for method, codec in names:
        line = sorted(
            (row for row in rows if (row.method, row.codec) == (method, codec)),
            key=lambda row: row.utilisation,
        )
        colour = ("#d1495b", "#edae49", "#66a182", "#2e7dab")[methods.index(method)]
        style = ("-", "--", ":", "-.", (0, (1, 3)))[codecs.index(codec)]
        shares = [100 * row.utilisation for row in line]
        needs = [row.gbps for row in line]
        panel.plot(shares, needs, ls=style, marker=".", color=colour, label=f"{method}, {codec}")
        _rings(panel, [(100 * row.utilisation, row.paper_gbps) for row in line], colour)
    if link_gbps is not None:
        panel.axhline(link_gbps, color="black", lw=1, label=f"your link, {link_gbps:g} Gb/s")
    panel.set(yscale="log", xlabel="Utilisation (%)", ylabel="Needed per learner (Gb/s)")
    _save(figure, panel, path, is_beside=True)


def heterogeneous(rows: Sequence[Setting], path: Path) -> None:
    """Goodput and learners per merge of each setting. Raises OSError."""
    figure, (panel,) = _canvas(1)
    places = range(len(rows))
    for left, shares, colour, label in (
        (-0.2, [100 * row.goodput for row in rows], "#2e7dab", "goodput"),
        (0.2, [100 * row.merged for row in rows], "#edae49", "learners in a merge"),
    ):
        panel.bar([at + left for at in places], shares, 0.38, color=colour, label=label)
    _rings(panel, [(at - 0.2, row.paper_goodput) for at, row in enumerate(rows)], "black")
    panel.set_xticks(list(places), [row.setting for row in rows])
    panel.set(ylabel="Share (%)", ylim=(0, 110))
    _save(figure, panel, path, is_beside=True, paper="paper's goodput")


def spread(rows: Sequence[Found], path: Path) -> None:
    """Copies of a payload by its syncer, and seconds until all have it, over the learners. Raises
    OSError."""
    figure, panels = _canvas(2)
    ordered = sorted(rows, key=lambda row: row.learners)
    counts = [row.learners for row in ordered]
    panels[0].plot(counts, [row.copies for row in ordered], ".-", color="#2e7dab", label="sent")
    panels[0].plot(counts, counts, "--", color="#7f7f7f", label="a copy for each")
    panels[1].plot(counts, [row.last_s for row in ordered], ".-", color="#2e7dab")
    panels[1].plot(counts, [row.alone_s for row in ordered], "--", color="#7f7f7f")
    for panel, name in zip(panels, ("Copies by the syncer", "Seconds until all"), strict=True):
        panel.set(xscale="log", yscale="log", xlabel="Learners", title=name)
        panel.set_xticks(counts, [short(count) for count in counts])
        panel.minorticks_off()
    panels[0].legend(frameon=False, fontsize=8)
    figure.savefig(path, format=_format(path))


def scavenge(rows: Sequence[Speedup], path: Path) -> None:
    """Training time over extra machines. Raises OSError."""
    figure, (panel,) = _canvas(1)
    ordered = sorted(rows, key=lambda row: row.extra)
    extra = [100 * row.extra for row in ordered]
    panel.plot(extra, [row.dp for row in ordered], ".-", color="#d1495b", label="DP")
    panel.plot(extra, [row.decoupled for row in ordered], ".-", color="#2e7dab", label="Decoupled")
    _rings(panel, [(100 * row.extra, row.paper_dp) for row in ordered], "#d1495b")
    _rings(panel, [(100 * row.extra, row.paper_decoupled) for row in ordered], "#2e7dab")
    panel.set(xlabel="Extra machines (%)", ylabel="Training time (1 = none extra)")
    panel.set_ylim(bottom=0)
    _save(figure, panel, path)


def _save(
    figure: Any, panel: Any, path: Path, *, is_beside: bool = False, paper: str = "paper"
) -> None:
    """Writes the picture, with the names of its curves and rings in the panel or beside it."""
    panel.plot([], [], "o", mfc="none", color="black", label=paper)
    place = {"bbox_to_anchor": (1.02, 1), "loc": "upper left"} if is_beside else {}
    panel.legend(frameon=False, fontsize=8, **place)
    figure.savefig(path, format=_format(path))


def _rings(panel: Any, points: Sequence[tuple[float, float | None]], colour: str) -> None:
    """The paper's values, where it has them."""
    known = [(across, up) for across, up in points if up is not None]
    panel.plot(
        [at for at, _ in known], [up for _, up in known], "o", mfc="none", ms=7, color=colour
    )


def compare(lines: Sequence[Summary], path: Path) -> None:
    """Held-out loss over virtual time, one dot for each algorithm. Raises OSError."""
    figure, (panel,) = _canvas(1)
    for at, line in enumerate(lines):
        panel.errorbar(
            line.virtual_wall_s,
            line.eval_loss,
            line.eval_loss_spread or None,
            fmt="os^D"[at // len(COLOURS) % 4],
            color=COLOURS[at % len(COLOURS)],
            label=line.algorithm,
        )
    panel.set_xscale("log")
    panel.set_xlabel("virtual seconds")
    panel.set_ylabel("held-out loss, nats per token")
    figure.set_size_inches(9.0, 4.8)
    figure.legend(loc="outside right upper", fontsize="small", frameon=False)
    figure.savefig(path, format=_format(path))


def trend(places: Sequence[Place], over: Literal["tokens", "merges"], path: Path) -> None:
    """Distance to data parallelism over tokens per parameter, or over merges of each fragment: a
    line for each algorithm, size, batch and number of local steps between merges. Raises OSError.
    """
    figure, (panel,) = _canvas(1)

    def line_of(one: Place) -> tuple[str, int, int, int]:
        return one.algorithm, one.parameters, one.batch_tokens, one.local_steps

    def along(one: Place) -> float:
        return one.tokens / one.parameters if over == "tokens" else one.merges or 0.0

    known = [one for one in places if one.ratio_to_dp is not None and one.algorithm != "dp"]
    if over == "merges":
        known = [one for one in known if one.merges is not None]
    for at, line in enumerate(dict.fromkeys(map(line_of, known))):
        mine = [one for one in known if line_of(one) == line]
        algorithm, parameters, batch, local_steps = line
        steps = f", H = {local_steps}" if local_steps else ""
        panel.errorbar(
            [along(one) for one in mine],
            [100 * ((one.ratio_to_dp or 1.0) - 1) for one in mine],
            [100 * one.ratio_spread for one in mine],
            fmt="os^D"[at // len(COLOURS) % 4] + "-",
            capsize=3,
            color=COLOURS[(at + 1) % len(COLOURS)],
            label=f"{algorithm}{steps}, {parameters / 1e6:.2g} M, {batch:,} tokens a step",
        )
    panel.axhline(0.0, color="black", lw=0.8, ls=":")
    panel.set_xscale("log")
    apart: list[float] = []
    for x in sorted({along(one) for one in known}):
        # Those of two lines may be nearly the same; their labels would cover each other.
        if not apart or x > 1.15 * apart[-1]:
            apart.append(x)
    panel.set_xticks(apart, [f"{x:.3g}" for x in apart])
    panel.minorticks_off()
    name = "tokens per parameter" if over == "tokens" else "merges of each fragment"
    panel.set(xlabel=name, ylabel="held-out loss, to data parallelism (%)")
    # Beside that many lines there is no room within the panel.
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=8)
    figure.savefig(path, format=_format(path))


def attacks(rows: Sequence[AttackRow], bar: float, path: Path) -> None:
    """Loss to that without liars, a dot for each run: a panel for each defence. Raises OSError."""
    defences = list(dict.fromkeys((row.trust, row.without) for row in rows))
    names = list(dict.fromkeys(row.attack for row in rows))
    swarms = list(dict.fromkeys((row.learners, row.quorum) for row in rows))
    figure, panels = _canvas(len(defences))
    for panel, (trust, without) in zip(panels, defences, strict=True):
        for at, (learners, quorum) in enumerate(swarms):
            here = (trust, without, learners, quorum)
            mine = [r for r in rows if (r.trust, r.without, r.learners, r.quorum) == here]
            up = (at + 1) / (len(swarms) + 1) - 0.5
            panel.plot(
                [row.ratio for row in mine],
                [names.index(row.attack) + up for row in mine],
                "o",
                ms=4,
                color=COLOURS[-1 - at % len(COLOURS)],
                label=f"{learners} learners" + (f", quorum {quorum}" if quorum != "set" else ""),
            )
        panel.axvline(bar, color="black", lw=0.8, ls=":")
        panel.set_xscale("log")
        panel.xaxis.set_major_formatter("{x:g}")
        panel.xaxis.set_minor_formatter("{x:g}")
        panel.set_yticks(range(len(names)), names)
        panel.invert_yaxis()
        title = f"trust {trust}" + (f", without {without}" if without else "")
        panel.set(xlabel="held-out loss, to that without liars", title=title)
    if len(swarms) > 1:
        panels[0].legend(frameon=False, fontsize=8)
    figure.set_figheight(1.5 + 0.22 * len(names))
    figure.savefig(path, format=_format(path))


def _format(path: Path) -> str:
    return "svg" if path.suffix == ".svg" else "png"


def _canvas(panels: int) -> tuple[Any, Any]:
    # A figure without pyplot: no window system, no state shared with others.
    from matplotlib.figure import Figure

    figure = Figure(
        figsize=(5.2 * panels if panels > 1 else 7.0, 4.2), dpi=150, layout="constrained"
    )
    places = figure.subplots(1, panels, squeeze=False)[0]
    for panel in places:
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(alpha=0.25)
    return figure, places


def honest(ratios: Mapping[str, Sequence[float]], path: Path) -> None:
    """Loss where trust is earned to that where all count, a dot for each seed. Raises OSError."""
    figure, (panel,) = _canvas(1)
    for at, found in enumerate(ratios.values()):
        panel.plot(found, [at] * len(found), "o", ms=4, color=COLOURS[-1])
    panel.axvline(1.0, color="black", lw=0.8, ls=":")
    panel.set_yticks(range(len(ratios)), list(ratios))
    panel.set(xlabel="held-out loss, to that where all pushes count")
    figure.savefig(path, format=_format(path))
