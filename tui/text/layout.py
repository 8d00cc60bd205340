"""Building blocks of text views: every renderer returns a list of lines no wider than asked for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from tui.text import fmt
from tui.text.paint import Paint

LABEL_CELLS = 10

Piece = str | Text
Pair = tuple[str, Piece]


def fit(piece: Piece, width: int) -> Text:
    """Exactly `width` cells: cut with an ellipsis, or filled with blanks."""
    text = piece.copy() if isinstance(piece, Text) else Text(piece)
    if text.cell_len > width:
        text.truncate(width, overflow="ellipsis")
    text.append(" " * (width - text.cell_len))
    return text


def fit_plain(piece: str, width: int, *, is_right: bool = False) -> str:
    """Like `fit` for a string without styles, on either side."""
    length = cell_len(piece)
    if length > width:
        return set_cell_size(piece, width - 1) + "…" if width > 0 else ""
    return " " * (width - length) + piece if is_right else piece + " " * (width - length)


def wrap(piece: Piece, width: int) -> list[Text]:
    """As many lines as it takes, broken between words, long words broken inside."""
    text = piece.copy() if isinstance(piece, Text) else Text(piece)
    if text.cell_len <= width:
        return [text]
    lines: list[Text] = []
    for part in text.split("\n"):
        lines.extend(_wrapped(part, max(width, 8)))
    return lines


def _wrapped(text: Text, width: int) -> list[Text]:
    lines = []
    while text.cell_len > width:
        head, text = text.divide([_break(text.plain, width)])
        lines.append(head)
        if text.plain.startswith(" "):
            text = text[1:]
    return [*lines, text]


def _break(words: str, width: int) -> int:
    """Where the first line ends: before a word, if there is one that is not too early."""
    early = width // 3
    space = words.rfind(" ", 0, width + 1)
    if space <= early:
        place = width
        while cell_len(words[:place]) > width:
            place -= 1
        return place
    while cell_len(words[:space]) > width:
        space = words.rfind(" ", 0, space)
    place = space
    before = words.rfind(" ", 0, place)
    # The last word does not stand alone: one more goes down with it.
    is_last = " " not in words[place + 1 :].strip()
    if is_last and before > early and cell_len(words[before + 1 :]) <= width:
        place, before = before, words.rfind(" ", 0, before)
    # A number and its unit stay together.
    unit = words[place + 1 :].split(" ", 1)[0].rstrip(",.;")
    if words[place - 1].isdigit() and unit in UNITS and before > early:
        place = before
    return place if place > 0 else width


UNITS = ("%", "s", "ms", "min", "h", "d", "B", "kB", "MB", "GB", "TB", "k", "M", "G", "T", "byte")


def pairs(
    rows: Iterable[Pair], width: int, paint: Paint, *, label: int = LABEL_CELLS
) -> list[Text]:
    """Label and value, the value wrapped below itself; pairs without a value are left out."""
    lines = []
    for name, value in rows:
        if not value:
            continue
        for number, part in enumerate(wrap(value, width - label)):
            line = Text()
            line.append(fit_plain(name if number == 0 else "", label), style=paint.quiet)
            line.append_text(part)
            lines.append(line)
    return lines


def panel(
    title: Piece,
    lines: Sequence[Text],
    width: int,
    paint: Paint,
    *,
    height: int | None = None,
    note: str = "",
) -> list[Text]:
    """The lines in a frame with a title at its upper left and a note at its upper right.

    With a `height` it is exactly so many lines high, frame included.
    """
    inner = width - 4
    body = list(lines)
    if height is not None:
        body = (body + [Text()] * height)[: max(height - 2, 0)]
    head = title.copy() if isinstance(title, Text) else Text(title, style=paint.strong)
    head.truncate(max(inner - 2, 1), overflow="ellipsis")
    note = fmt.clean(note, 200) if note else ""
    if cell_len(note) + head.cell_len > inner - 4:
        note = ""
    fill = width - 5 - head.cell_len - (cell_len(note) + 1 if note else 0)
    top = Text()
    top.append("╭ ", style=paint.quiet)
    top.append_text(head)
    top.append(" " + "─" * fill, style=paint.quiet)
    top.append(f" {note} ╮" if note else "─╮", style=paint.quiet)
    framed = [top]
    for line in body:
        row = Text()
        row.append("│ ", style=paint.quiet)
        row.append_text(fit(line, inner))
        row.append(" │", style=paint.quiet)
        framed.append(row)
    framed.append(Text("╰" + "─" * (width - 2) + "╯", style=paint.quiet))
    return framed


def box(
    title: Piece, rows: Iterable[Pair], width: int, paint: Paint, *, label: int = LABEL_CELLS
) -> list[Text]:
    """A panel of pairs."""
    return panel(title, pairs(rows, width - 4, paint, label=label), width, paint)


def beside(
    left: Sequence[Text], right: Sequence[Text], left_width: int, gap: int = 1
) -> list[Text]:
    """Two columns of lines as one."""
    lines = []
    for number in range(max(len(left), len(right))):
        line = fit(left[number] if number < len(left) else "", left_width + gap)
        joined = Text()
        joined.append_text(line)
        if number < len(right):
            joined.append_text(right[number])
        lines.append(joined)
    return lines


def join(parts: Sequence[Piece], between: str = "  ") -> Text:
    """Pieces in one line, empty ones left out."""
    line = Text()
    for part in parts:
        if not part:
            continue
        if line:
            line.append(between)
        line.append_text(part if isinstance(part, Text) else Text(part))
    return line
