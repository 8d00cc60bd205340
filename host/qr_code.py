"""A text as a QR code: in a terminal, and as an SVG for a page."""

from __future__ import annotations

import io
import shutil
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import segno

BORDER: Final = 2
"""Modules of quiet around it. The standard wants 4; readers do with 2, and terminals are narrow."""

_HALVES: Final = {(0, 0): "█", (0, 1): "▀", (1, 0): "▄", (1, 1): " "}
"""Two modules above each other, 1 for dark: drawn as light on dark, so that a code is dark on light
whatever the colours of the terminal are."""


def beside(text: str) -> str:
    """What is printed below a line with this text: an empty line and the code; nothing where stdout
    is no terminal, or one that is too narrow."""
    if not text or not sys.stdout.isatty():
        return ""
    lines = terminal_lines(text, shutil.get_terminal_size().columns)
    return "\n".join(["", *lines, ""]) if lines else ""


def terminal_lines(text: str, columns: int) -> list[str]:
    """The code in half blocks, white on black; empty where it is wider than so many columns."""
    rows = [list(row) for row in _code(text).matrix_iter(border=BORDER)]
    if len(rows[0]) > columns:
        return []
    if len(rows) % 2:
        rows.append([0] * len(rows[0]))
    return [
        "\x1b[97;40m"
        + "".join(_HALVES[int(above), int(below)] for above, below in zip(*pair, strict=True))
        + "\x1b[0m"
        for pair in zip(rows[::2], rows[1::2], strict=True)
    ]


def svg(text: str) -> str:
    """The code as an `<svg>` without a size, a style or a script of its own."""
    code, out = _code(text), io.BytesIO()
    code.save(
        out, kind="svg", border=4, xmldecl=False, svgns=True, omitsize=True, light="#fff",
        dark="#111", nl=False, svgclass="qr", lineclass=None, title="QR code of the join link",
    )  # fmt: skip
    return out.getvalue().decode().replace("<svg ", '<svg role="img" ', 1)


def _code(text: str) -> segno.QRCode:
    import segno

    return segno.make_qr(text, error="l", boost_error=False)
