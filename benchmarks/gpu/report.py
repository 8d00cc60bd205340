"""The report of a run: as JSON for programs, and as a table in Markdown for docs/devices.md."""

from __future__ import annotations

from pathlib import Path

import msgspec
from msgspec import Struct

from benchmarks.gpu.device import Facts
from benchmarks.gpu.rows import Row
from benchmarks.gpu.sizes import SizesName

HEAD = ("check", "what", "figure", "bar", "verdict")


class Report(Struct, frozen=True, kw_only=True):
    """Who measured what."""

    facts: Facts
    date: str
    sizes: SizesName
    rows: list[Row]

    def write(self, path: Path) -> None:
        """The JSON there, and the table beside it, with the suffix .md."""
        path.write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n")
        path.with_suffix(".md").write_text(table(self) + "\n")


def table(report: Report) -> str:
    """Markdown: a heading with the device's name, a line on the machine, and a row for each row."""
    facts = report.facts
    memory = f"{facts.memory_bytes / 2**30:.0f} GiB" if facts.memory_bytes else ""
    of_device = ", ".join(one for one in (facts.backend, memory) if one)
    lines = [
        f"### {facts.device_name}",
        "",
        f"{facts.device} ({of_device}) in {facts.machine}; torch {facts.torch}, transformers"
        f" {facts.transformers}, Python {facts.python}; commit {facts.commit or 'unknown'},"
        f" {report.date}; sizes: {report.sizes}.",
    ]
    if not facts.is_accelerator:
        lines += [
            "",
            "No accelerator: the code runs, and its figures of speed and memory mean nothing.",
        ]
    lines += ["", _line(HEAD), "|" + "---|" * len(HEAD)]
    for row in report.rows:
        said = row.error or row.why_not
        verdict: str = row.verdict(is_accelerator=facts.is_accelerator)
        if said:
            verdict = f"{verdict}: {said}"
        lines.append(_line((row.check, row.what, row.figure, row.bar, verdict)))
    return "\n".join(lines)


def _line(cells: tuple[str, ...]) -> str:
    return "| " + " | ".join(one.replace("|", "/") for one in cells) + " |"
