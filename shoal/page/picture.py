"""The picture that chats show beside a link to the page: a PNG of 1200 by 630 pixels.

Previews of links take no SVG. The typeface comes with Pillow; a name with letters that it lacks is
written in one of the system's.
"""

from __future__ import annotations

import contextlib
import io
import unicodedata
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from shoal.page.chart import Point, described
from shoal.page.facts import PageFacts
from shoal.page.render import LEVELS
from tui.text import fmt

if TYPE_CHECKING:
    from PIL.ImageDraw import ImageDraw
    from PIL.ImageFont import FreeTypeFont

WIDTH: Final = 1200
HEIGHT: Final = 630

_PAPER, _INK, _SOFT, _LINE, _ACCENT = "#f6f7f5", "#17211f", "#55625f", "#dfe4e1", "#0e6f78"
_WASH: Final = "#e1edec"
_LEVELS: Final = {
    "WELL": "#1a6b3f",
    "DONE": "#1a6b3f",
    "CARE": "#845500",
    "START": "#845500",
    "TROUBLE": "#a4262c",
    "PAUSED": "#4a5568",
}
_EDGE: Final = 72
_CHART: Final = (_EDGE, 330, WIDTH - _EDGE, 556)
_FACES: Final = ("DejaVuSans.ttf", "NotoSans-Regular.ttf", "LiberationSans-Regular.ttf")
"""Typefaces of systems that have more letters than the one of Pillow."""

_NO_LETTER: Final = "\ue000"


def png(facts: PageFacts) -> bytes:
    """The picture of what the page says now. Cost: some tens of milliseconds."""
    from PIL import Image, ImageDraw, ImageFont

    def font(size: int) -> FreeTypeFont:
        found = ImageFont.load_default(size)
        assert isinstance(found, ImageFont.FreeTypeFont), "Pillow was built with FreeType"
        return found

    image = Image.new("RGB", (WIDTH, HEIGHT), _PAPER)
    draw = ImageDraw.Draw(image)
    draw.rectangle((0, 0, WIDTH, 12), fill=_ACCENT)
    draw.text((_EDGE, 52), "Shoal", font=font(30), fill=_ACCENT)
    _state(draw, facts, font(28))
    name, face = named(facts.project.name, font(68))
    draw.text((_EDGE, 108), fitting(draw, name, face, WIDTH - 2 * _EDGE), font=face, fill=_INK)
    draw.text((_EDGE, 214), _numbers(facts), font=font(34), fill=_SOFT)
    draw.text((_EDGE, 272), _loss(facts), font=font(28), fill=_SOFT)
    _curve(draw, facts.run.curve, facts.run.best)
    done = facts.run.permille / 1000
    draw.rounded_rectangle((_EDGE, 582, WIDTH - _EDGE, 596), 7, fill=_LINE)
    if done > 0:
        end = _EDGE + max(14, done * (WIDTH - 2 * _EDGE))
        draw.rounded_rectangle((_EDGE, 582, end, 596), 7, fill=_ACCENT)
    out = io.BytesIO()
    image.save(out, "PNG", optimize=True)
    return out.getvalue()


def _state(draw: ImageDraw, facts: PageFacts, font: FreeTypeFont) -> None:
    text, colour = LEVELS[facts.state.level], _LEVELS[facts.state.level]
    left = WIDTH - _EDGE - draw.textlength(text, font=font)
    draw.text((left, 52), text, font=font, fill=colour)
    draw.ellipse((left - 30, 60, left - 12, 78), fill=colour)


def fitting(draw: ImageDraw, text: str, font: FreeTypeFont, width: float) -> str:
    """The text, or as much of its beginning as fits, and … behind that."""
    if draw.textlength(text, font=font) <= width:
        return text
    while text and draw.textlength(f"{text}…", font=font) > width:
        text = text[:-1].rstrip()
    return f"{text}…"


def named(name: str, font: FreeTypeFont) -> tuple[str, FreeTypeFont]:
    """The name and a typeface that has all its letters; else what of it can be written here."""
    from PIL import ImageFont

    fonts = [font]
    for face in _FACES if _lacks(font, name) else ():
        with contextlib.suppress(OSError):  # This system has another one, or none.
            fonts.append(ImageFont.truetype(face, font.size))
    for one in fonts:
        if not _lacks(one, name):
            return name, one
    most = min(fonts, key=lambda one: len(_lacks(one, name)))
    plain = unicodedata.normalize("NFKD", name)
    left = "".join(char for char in plain if char not in _lacks(most, plain))
    return left.strip() or "A project", most


def _lacks(font: FreeTypeFont, text: str) -> set[str]:
    """Letters for which the typeface has a box alone."""
    box = bytes(font.getmask(_NO_LETTER))
    return {char for char in text if char != " " and bytes(font.getmask(char)) == box}


def _numbers(facts: PageFacts) -> str:
    run = facts.run
    budget = facts.project.token_budget
    said = [f"{fmt.count(run.tokens)} of {fmt.count(budget)} tokens"]
    if run.learners_training is not None:
        said.append(f"{fmt.plural(run.learners_training, 'learner')} training")
    if run.tokens_per_s is not None:
        said.append(f"{fmt.count(run.tokens_per_s)} tokens/s")
    return "   ·   ".join(said)


def _loss(facts: PageFacts) -> str:
    run = facts.run
    if run.best is None:
        return described(run.curve, None)
    first, best = fmt.loss(run.curve[0][2]), fmt.loss(run.best[2])
    return f"Held-out loss {first} at the beginning, {best} at best"


def _curve(draw: ImageDraw, curve: Sequence[Point], best: Point | None) -> None:
    left, top, right, bottom = _CHART
    draw.line((left, bottom, right, bottom), fill=_LINE, width=2)
    if len(curve) < 2:
        return
    losses = [loss for _, _, loss in curve]
    low, high, last = min(losses), max(losses), max(1, curve[-1][1])
    span = max(high - low, 1e-9)

    def place(point: Point) -> tuple[float, float]:
        _, tokens, loss = point
        return left + tokens / last * (right - left), top + (high - loss) / span * (
            bottom - top - 24
        )

    where = [place(one) for one in curve]
    draw.polygon([*where, (where[-1][0], bottom), (where[0][0], bottom)], fill=_WASH)
    draw.line(where, fill=_ACCENT, width=5, joint="curve")
    if best is not None:
        x, y = place(best)
        draw.ellipse((x - 10, y - 10, x + 10, y + 10), fill=_PAPER, outline=_ACCENT, width=5)
