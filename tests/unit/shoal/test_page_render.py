"""The page as HTML: what is on it, and that nothing anybody wrote becomes markup."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from host.files.home import Home
from protocol.status import SampleStatus
from shoal.page import chart, render
from shoal.page.facts import Giver, PageFacts, ProjectFacts, SampleFacts, Team
from shoal.page.render import PARTS, Drawn, draw
from tests.support import pages, recordings
from tests.support.daemon_double import LINK

VOID = {"meta", "link", "img", "br", "hr", "input"}
HOSTILE = st.one_of(
    st.text(min_size=1, max_size=64),
    st.sampled_from(
        [
            "<script>alert(1)</script>",
            '"><img src=x onerror=alert(1)>',
            "</style><script>x</script>",
            "</title></head><body onload=x>",
            "{{ 7 * 7 }}{% raw %}",
            "'; DROP TABLE x; --",
            "&lt;b&gt;&amp;",
            "\u202egnp.exe",
        ]
    ),
)


class Reader(HTMLParser):
    """What a browser would make of it: tags, their attributes, and text."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.text: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


@pytest.fixture(scope="module")
def facts(tmp_path_factory) -> PageFacts:
    opened = pages.project(Home(tmp_path_factory.mktemp("home")), about="Folk tales.")
    sample = SampleStatus("Once", " upon a time", 7, recordings.START_S)
    return pages.facts(opened, pages.syncer(opened), sample=sample)


def with_words(facts: PageFacts, text: str) -> PageFacts:
    """The same, with one text everywhere that others choose."""
    replace = msgspec.structs.replace
    giver = Giver(key="0" * 8, name=text, permille=600, tokens=1, merges=1, is_here=True)
    team = Team(name=text, permille=600, tokens=1, members=1)
    return replace(
        facts,
        software=text,
        project=replace(facts.project, name=text, about=[text, text], model=text),
        state=replace(facts.state, sentence=text),
        run=replace(facts.run, left=text),
        given=replace(facts.given, shown=[giver], teams=[team], others_permille=400),
        join=replace(facts.join, at_hand=text),
        sample=SampleFacts(prompt=text, text=text, global_step=1, at_s=1.0),
    )


@pytest.mark.slow
@settings(max_examples=60)
@given(HOSTILE)
def test_whatever_others_write_stays_text(facts, text):
    plain = Reader(Drawn(with_words(facts, "x"), {}).whole("http://here/"))
    told = Reader(Drawn(with_words(facts, text), {}).whole("http://here/"))
    assert told.tags == plain.tags
    assert [one[:2] for one in told.attributes] == [one[:2] for one in plain.attributes]
    assert told.open == []
    if text.strip() and "\r" not in text and "\x00" not in text:
        assert "".join(told.text).count(text) >= 10


def test_nothing_is_fetched_from_elsewhere_and_nothing_runs_but_the_script_of_the_page(facts):
    read = Reader(Drawn(facts, {}).whole("https://example.org/shoal/"))
    places = [value for _, name, value in read.attributes if name in ("href", "src", "action")]
    assert sorted(set(places)) == ["#join", "icon.svg", "page.json"]
    assert [one for one in read.attributes if one[1].startswith("on") or one[1] == "style"] == []
    page = Drawn(facts, {}).whole("")
    assert "url(" not in page
    assert "@import" not in page


def test_the_policy_allows_this_style_and_this_script_alone(facts):
    page = Drawn(facts, {}).whole("")
    for tag, rule in (("style", "style-src"), ("script", "script-src")):
        (content,) = re.findall(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{rule} 'sha256-{digest}'" in render.policy()
    assert "unsafe" not in render.policy()
    assert render.policy().startswith("default-src 'none'")


def test_it_says_what_a_stranger_wants_to_know(facts):
    read = Reader(Drawn(facts, {}).whole("https://example.org/"))
    said = " ".join(" ".join(read.text).split())
    for words in (
        "Folk tales.",
        "well All is well. 8 learners training.",
        "Tokens so far 297 M of 2.00 G",
        "231 k",
        "1.9 to 2.2 h left",
        "north/heron",
        "40.0 %",
        f"shoal join '{LINK}'",
        "Memory:",
        "What the model writes",
    ):
        assert words in said, words
    assert ("meta", "content", "https://example.org/preview.png") in read.attributes
    assert "svg" in read.tags
    assert {"header", "main", "footer", "section", "h1", "h2"} <= set(read.tags)


def test_headings_follow_each_other_and_every_picture_has_a_name(facts):
    read = Reader(Drawn(facts, {}).whole(""))
    levels = [int(tag[1]) for tag in read.tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(b - a <= 1 for a, b in pairwise(levels))
    ids = [value for _, name, value in read.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    named = [value for _, name, value in read.attributes if name == "aria-labelledby"]
    assert set(named) <= set(ids)


def test_the_parts_are_what_the_whole_page_has(facts):
    drawn = draw(facts)
    page = " ".join(drawn.whole("").split())
    assert tuple(drawn.parts) == PARTS
    for name, part in drawn.parts.items():
        assert " ".join(part.split()) in page, name
        assert f'data-part="{name}"' in page


@pytest.mark.parametrize(
    ("admission", "words"), [("invite", "join link with an invite"), ("list", "Send your key")]
)
def test_how_one_gets_in_where_a_link_is_not_enough(facts, admission, words):
    join = msgspec.structs.replace(facts.join, admission=admission, link="")
    part = draw(msgspec.structs.replace(facts, join=join)).parts["join"]
    assert words in part
    assert LINK not in part
    assert "qr" not in part


def test_a_run_that_has_just_begun_says_so(tmp_path):
    opened = pages.project(Home(tmp_path))
    status = pages.syncer(opened, 0, contributors=[], contributor_fragment_tokens=0)
    parts = draw(pages.facts(opened, status)).parts
    assert "Nothing was measured yet." in parts["curve"]
    assert "first merge is still to come" in parts["given"]
    assert parts["sample"] == ""


# The curve.


LOSSES = st.lists(st.floats(0.0, 1e6), min_size=1, max_size=300)


@given(LOSSES, st.sampled_from([chart.WIDE, chart.NARROW]))
def test_every_place_of_a_chart_is_inside_it(losses, size):
    curve = [(at, at * 1000, loss) for at, loss in enumerate(losses)]
    best = min(curve, key=lambda one: one[2])
    drawn = chart.loss_chart(curve, best, size, "wide")
    assert Reader(drawn).open == []
    for x, y in re.findall(r"[ML](-?[\d.]+) (-?[\d.]+)", drawn):
        assert 0 <= float(x) <= size.width
        assert 0 <= float(y) <= size.height
    for x, y in re.findall(r'<text class="best" x="(-?[\d.]+)" y="(-?[\d.]+)"', drawn):
        assert 0 <= float(x) <= size.width
        assert 0 <= float(y) <= size.height


@given(st.floats(0.0, 1e9), st.floats(1e-3, 1e9), st.integers(2, 8))
def test_ticks_are_few_round_and_within(low, span, about):
    found = chart.ticks(low, low + span, about)
    assert 1 <= len(found) <= 2 * about + 2
    assert all(low - span * 1e-6 <= one <= low + span * (1 + 1e-6) for one in found)


def test_the_chart_is_told_in_a_sentence():
    curve = [(0, 0, 5.5), (60, 20_000_000, 3.25)]
    assert chart.described(curve, curve[1]) == (
        "Held-out loss: 5.500 at the beginning, 3.250 after 20.0 M tokens; the best so far is "
        "3.250, after 20.0 M tokens."
    )
    assert chart.loss_chart([], None, chart.WIDE, "wide") == ""


def test_no_project_facts_are_forgotten_in_the_hostile_text(facts):
    """Whoever adds a text to the page adds it to `with_words`."""
    texts = {
        name
        for name in ProjectFacts.__struct_fields__
        if isinstance(getattr(facts.project, name), str | list)
    }
    assert texts == {"id", "name", "about", "model"}
