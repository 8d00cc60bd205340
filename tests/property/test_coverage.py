"""What leased text covers: honest claims always, and never more than was leased."""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.log.leases import LeaseBook, TextShape, behind, total
from protocol.log.records import Span
from protocol.messages import Cursor
from syncer_node.machine.trust.coverage import Coverage
from tests.support.builders import ONE, TWO, push_header

BLOCK, TOKENS, BATCH, FRAGMENTS = 4, 16, 2, 2
SHAPE = TextShape(TOKENS, BLOCK)
COVERAGE = Coverage(SHAPE, BATCH * TOKENS, BATCH * TOKENS)
START = Cursor(0, 0)
ME, OTHER = (ONE.key, 1), (TWO.key, 1)


@dataclass
class Learner:
    """An honest learner: what it hears of the log, reads, and hands in."""

    book: LeaseBook = field(default_factory=LeaseBook)
    """As its own log says."""
    queue: list[Span] = field(default_factory=list)
    """What its trainer has not read."""
    place: Cursor = START
    trainer: int = 0
    steps: int = 0
    """Of this trainer."""
    marks: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    open: dict[int, tuple[int, int]] = field(default_factory=dict)
    """By fragment, the trainer and step of the push that waits for its fate."""
    handed: Cursor | None = None

    def step(self) -> None:
        """One local step, if there is text for it."""
        if total(self.queue, BLOCK) < BATCH:
            return
        left = BATCH
        while left:
            first = self.queue.pop(0)
            here = min(left, BLOCK - first.skip)
            self.place = Cursor(first.start, first.skip + here)
            left -= here
            start, skip = first.start, first.skip + here
            if skip == BLOCK:
                start, skip = start + 1, 0
            if start < first.stop:
                self.queue.insert(0, Span(start, first.stop, skip))
        self.steps += 1

    def capture(self, fragment: int):
        """The header of a push; None if there is nothing to hand in."""
        steps = self.steps - self.marks[fragment]
        if fragment in self.open or steps < 1:
            return None
        self.open[fragment] = self.trainer, self.steps
        self.handed = self.place
        return push_header(
            fragment=fragment,
            steps=steps,
            tokens=steps * BATCH * TOKENS,
            local_step=self.steps,
            cursor=self.place,
        )

    def fate(self, fragment: int, *, is_merged: bool) -> None:
        """It hears what became of its push."""
        trainer, step = self.open.pop(fragment, (-1, 0))
        if is_merged and trainer == self.trainer:
            self.marks[fragment] = max(self.marks[fragment], step)

    def restart(self) -> None:
        """Its trainer dies, and another one reads what is leased and in no push."""
        held = self.book.held.get(ME, [])
        left = behind(held, self.handed, BLOCK) if self.handed is not None else None
        self.queue = list(held if left is None else left)
        self.trainer, self.steps = self.trainer + 1, 0
        self.marks.clear()
        self.open.clear()

    def lose(self) -> None:
        """Its text went to others."""
        self.queue, self.handed = [], None
        self.open.clear()
        for fragment in range(FRAGMENTS):
            self.marks[fragment] = self.steps


class Run:
    """A leader's log, one honest learner that hears of it late, and another that takes text too."""

    def __init__(self) -> None:
        self.book, self.learner = LeaseBook(), Learner()
        self.told: deque = deque()
        """Records that the learner has not heard of."""
        self.here: dict[int, object] = {}
        """Pushes that were judged and wait for a merge, by fragment."""
        self.objections: list[str] = []

    def record(self, kind: str, *values: object) -> None:
        fold(self.book, kind, *values)
        self.told.append((kind, values))

    def hear(self) -> None:
        if not self.told:
            return
        kind, values = self.told.popleft()
        fold(self.learner.book, kind, *values)
        if kind == "lease" and values[0] == ME:
            self.learner.queue += values[1]
        elif kind == "return" and values[0] == ME:
            self.learner.lose()
        elif kind == "merge":
            self.learner.fate(values[0].fragment, is_merged=True)

    def lease(self, session, blocks: int) -> None:
        is_new = session not in self.book.since_s
        if not (session == ME and is_new and self.here):
            self.record("lease", session, self.book.pick(blocks))

    def push(self, fragment: int) -> None:
        header = None
        if fragment not in self.here:
            header = self.learner.capture(fragment)
        if header is not None and ME in self.book.since_s:
            self.objections.append(COVERAGE.objection(header, ME, self.book))
            self.here[fragment] = header
        elif header is not None:
            self.learner.fate(fragment, is_merged=False)

    def settle(self, fragment: int, *, is_merged: bool) -> None:
        header = self.here.pop(fragment, None)
        if header is None:
            return
        if is_merged:
            self.record("merge", header)
        else:
            self.learner.fate(fragment, is_merged=False)

    def happen(self, kind: str, fragment: int, number: int) -> None:
        match kind:
            case "lease" | "lease others":
                self.lease(ME if kind == "lease" else OTHER, number)
            case "push":
                self.push(fragment)
            case "merge" | "abandon":
                self.settle(fragment, is_merged=kind == "merge")
            case "restart":
                self.learner.restart()
            case "new version":
                self.learner.marks[fragment] = self.learner.steps
            case "away others":
                self.record("return", OTHER)
            case "away" if number == 1:
                self.record("return", ME)
                number = len(self.told)  # It hears of all of that before it reads on.
        for _ in range(number):
            if kind == "steps":
                self.learner.step()
            elif kind in ("hear", "away"):
                self.hear()


def fold(book: LeaseBook, kind: str, *values) -> None:
    match kind:
        case "lease":
            book.lease(values[0], tuple(values[1]), 0.0, BLOCK)
        case "return":
            book.give_back(values[0])
        case "merge":
            header = values[0]
            book.hand_in(ME, header.fragment, header.cursor, header.tokens, BLOCK)


happenings = st.lists(
    st.tuples(
        st.sampled_from(
            [
                *("lease", "lease others", "steps", "steps", "steps", "push", "push", "push"),
                *("merge", "merge", "hear", "hear", "abandon", "restart", "new version"),
                *("away", "away others"),
            ]
        ),
        st.integers(0, FRAGMENTS - 1),
        st.integers(1, 6),
    ),
    min_size=30,
    max_size=100,
)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(happenings)
def test_an_honest_claim_is_always_covered(steps):
    run = Run()
    run.lease(ME, 6)
    run.hear()
    for kind, fragment, number in steps:
        run.happen(kind, fragment, number)
        assert not any(run.objections), run.objections


claims = st.lists(
    st.tuples(
        st.sampled_from(["lease", "claim", "claim", "claim", "merge", "merge"]),
        st.integers(0, FRAGMENTS - 1),
        st.integers(1, 40),
        st.tuples(st.integers(0, 30), st.integers(0, BLOCK + 1)),
    ),
    max_size=60,
)


@settings(max_examples=400, deadline=None)
@given(claims)
def test_no_more_is_accepted_of_a_fragment_than_was_leased(steps):
    book, leased = LeaseBook(), 0
    accepted: dict[int, int] = defaultdict(int)
    here = {}
    for kind, fragment, number, cursor in steps:
        if kind == "lease":
            spans = book.pick(number)
            book.lease(ME, spans, 0.0, BLOCK)
            leased += total(spans, BLOCK)
        elif kind == "claim" and fragment not in here and ME in book.since_s:
            header = push_header(
                fragment=fragment,
                steps=number,
                tokens=number * BATCH * TOKENS,
                cursor=Cursor(*cursor),
            )
            if not COVERAGE.objection(header, ME, book):
                here[fragment] = header
        elif kind == "merge" and fragment in here:
            header = here.pop(fragment)
            fold(book, "merge", header)
            accepted[fragment] += header.steps * BATCH
            assert accepted[fragment] <= leased
