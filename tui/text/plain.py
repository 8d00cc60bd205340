"""What stands in for characters that a plain terminal lacks."""

from __future__ import annotations

import unicodedata
from functools import lru_cache

from rich.cells import cell_len

_PLAIN = {
    **dict.fromkeys("─━═╌┄╴╶╸╺▔", "-"),
    **dict.fromkeys("│┃║▏▕▎▍┆╎", "|"),
    **dict.fromkeys("┌┐└┘├┤┬┴┼╭╮╰╯┏┓┗┛╔╗╚╝╞╡", "+"),
    **dict.fromkeys("█▓■●◼", "#"),
    **dict.fromkeys("░□○◌", "."),
    **dict.fromkeys("◆★", "*"),
    **dict.fromkeys("▒◐◑▌▐▋▊▉", "="),
    **dict(zip("▁▂▃▄▅▆▇", "_.:-=+*", strict=True)),
    **dict.fromkeys("▶▸►›→", ">"),
    **dict.fromkeys("◀◂◄‹←", "<"),
    **dict.fromkeys("▲△▴↑", "^"),
    **dict.fromkeys("▼▽▾↓", "v"),
    **dict.fromkeys("·•", "-"),
    **dict.fromkeys("–—−", "-"),
    **dict.fromkeys("’‘", "'"),
    **dict.fromkeys("“”", '"'),
    "◇": "o",
    "°": "o",
    "…": "~",
    "×": "x",
    "✖": "X",
    "✔": "v",
    "✓": "v",
    "⏎": "R",
    "⣀": "_",
    "\u00a0": " ",
    "\u2800": " ",
}


@lru_cache(4096)
def plain(text: str) -> str:
    """`text` in ASCII, as wide as before."""
    if text.isascii():
        return text
    return "".join(char if char.isascii() else _stand_in(char) for char in text)


def _stand_in(char: str) -> str:
    known = _PLAIN.get(char)
    if known is not None:
        return known
    if "\u2800" < char <= "\u28ff":
        return "*"
    base = unicodedata.normalize("NFKD", char)[:1]
    if base.isascii() and base.isprintable() and cell_len(char) == 1:
        return base
    return "?" * cell_len(char)
