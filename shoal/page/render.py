"""The page as HTML: one template, cut into the parts that change while somebody looks.

Jinja escapes all that is put in. What is markup already comes from `chart` and from the QR code,
which hold numbers of ours alone.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import jinja2
from markupsafe import Markup

from host import qr_code
from shoal.doctor.findings import amount
from shoal.page.chart import NARROW, WIDE, described, loss_chart, small_chart
from shoal.page.facts import PageFacts
from tui.text import fmt

if TYPE_CHECKING:
    from shoal.page.directory import Listed

PARTS: Final = ("state", "numbers", "curve", "given", "join", "sample", "seen")
"""Blocks of the template that are drawn again when what they say changes."""

_HERE: Final = Path(__file__).parent

LEVELS: Final = {
    "WELL": "well",
    "CARE": "needs care",
    "TROUBLE": "in trouble",
    "START": "starting",
    "PAUSED": "paused",
    "DONE": "complete",
}
"""The verdict's word, for people who never saw `shoal status`."""


class Drawn(NamedTuple):
    """The page of one moment."""

    facts: PageFacts
    parts: dict[str, str]
    """HTML by the name of its block."""

    def whole(self, address: str) -> str:
        """The page. address: its own, with a slash at the end; empty where that is not known."""
        return _template().render(
            **_values(self.facts),
            address=address,
            css=Markup(style()),
            script=Markup(script()),
            policy=policy(),
        )


def draw(facts: PageFacts) -> Drawn:
    """All parts of the page."""
    template = _template()
    context = template.new_context(_values(facts))
    blocks = {name: "".join(template.blocks[name](context)).strip() for name in PARTS}
    return Drawn(facts, blocks)


def directory(listed: Sequence[Listed], title: str, at_s: float) -> str:
    """The page that lists these. at_s: when they were asked, in Unix seconds."""
    policy = (
        f"default-src 'none'; style-src '{_hash(style())}'; base-uri 'none'; form-action 'none'"
    )
    return (
        _environment()
        .get_template("directory.html")
        .render(listed=listed, title=title, at_s=at_s, css=Markup(style()), policy=policy)
    )


def icon() -> str:
    """The small picture of the tab, as SVG."""
    return (_HERE / "icon.svg").read_text()


@functools.cache
def style() -> str:
    return (_HERE / "page.css").read_text()


@functools.cache
def script() -> str:
    return (_HERE / "page.js").read_text()


@functools.cache
def policy() -> str:
    """The content security policy: this page's own style and script, by their hashes, and nothing
    from elsewhere."""
    return "; ".join(
        (
            "default-src 'none'",
            f"style-src '{_hash(style())}'",
            f"script-src '{_hash(script())}'",
            "img-src 'self'",
            "connect-src 'self'",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


@functools.cache
def _environment() -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(
        count=fmt.count,
        loss=fmt.loss,
        amount=amount,
        percent=lambda permille: f"{permille / 10:.1f} %",
        plural=fmt.plural,
        at=_at,
        machine=lambda at_s: time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at_s)),
        qr=lambda link: Markup(qr_code.svg(link)),
        bar=_bar,
        small_chart=_small_chart,
    )
    made.globals.update(levels=LEVELS)
    return made


def _template() -> jinja2.Template:
    return _environment().get_template("page.html")


def _bar(permille: int) -> Markup:
    """A share as a bar: drawn, because browsers style their own bars each in its own way."""
    return Markup(
        '<svg class="share" viewBox="0 0 1000 6" preserveAspectRatio="none" aria-hidden="true">'
        '<rect width="1000" height="6"/><rect class="part" width="{}" height="6"/></svg>'
    ).format(permille)


def _small_chart(facts: PageFacts, number: int) -> Markup:
    run = facts.run
    return Markup(small_chart(run.curve, run.best, f"curve-{number}"))


def _at(at_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at_s))


def _values(facts: PageFacts) -> dict[str, Any]:
    run = facts.run
    return {
        "facts": facts,
        "described": described(run.curve, run.best),
        "wide": Markup(loss_chart(run.curve, run.best, WIDE, "wide")),
        "narrow": Markup(loss_chart(run.curve, run.best, NARROW, "narrow")),
    }
