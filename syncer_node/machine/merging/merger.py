"""A syncer that does not lead, as a merger: it fetches pushes and merges as the leader orders.

    ordered --base here--> merging --done--> told
    an order ends without a merge where a push is not here, or the fragment has gone on

Everything is the leader's and lives as long as its term and the stream to it: then pushes are
dropped, and orders forgotten. What is merged here counts only once the leader's record of it is
certified.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from protocol import messages
from protocol.effect_queue import EffectQueue
from protocol.machine import Failed
from syncer_node.machine import jobs
from syncer_node.machine.merging import orders
from syncer_node.machine.standby import NONE

REASON_CHARS_MAX = 200
Seat = tuple[bytes, int, int]
"""Leader, epoch and term."""


@dataclass(slots=True)
class Merger:
    """One syncer's part in merges that another one leads."""

    effects: EffectQueue
    held: Callable[[int], int]
    """(fragment) -> the version that the bank stands on, `NONE` where it is to be fetched."""
    seat: Seat | None = None
    fetching: dict[jobs.PushId, messages.FetchOrder] = field(default_factory=dict)
    pushes: dict[jobs.PushId, None] = field(default_factory=dict)
    """What is here."""
    waiting: dict[int, messages.MergeOrder] = field(default_factory=dict)
    """Until the fragment stands where the merge begins, by order."""
    merging: dict[int, messages.MergeOrder] = field(default_factory=dict)
    lent: set[bytes] = field(default_factory=set)
    """Digests of pushes that others may fetch."""

    def receive(self, seat: Seat, message: messages.OrderMessage) -> None:
        """An order of whoever leads now."""
        if self.seat != seat:
            self.drop()
            self.seat = seat
        match message:
            case messages.FetchOrder():
                self._fetch(message)
            case messages.MergeOrder():
                self.waiting[message.order] = message
                self.look()
            case messages.DropPushes(pushes=names):
                self._forget([orders.push_id(name) for name in names])
            case messages.LendPush():
                self._lend(message)

    def drop(self) -> None:
        """The term is over, or the leader's stream: nobody waits for anything of this."""
        if self.seat is None:
            return
        self.seat = None
        self.fetching.clear()
        self.waiting.clear()
        self.merging.clear()
        self._forget(list(self.pushes))
        for payload in sorted(self.lent):
            self.effects.do(jobs.RetractPush(payload))
        self.lent.clear()

    def look(self) -> None:
        """Begin what waited for its fragment."""
        for order in list(self.waiting.values()):
            held = self.held(order.fragment)
            if held == order.version - 1:
                self._merge(order)
            elif held == NONE or held >= order.version:
                self._fail(order, f"its fragment {order.fragment} is at version {held}")

    # Pushes.

    def _fetch(self, order: messages.FetchOrder) -> None:
        header = order.header
        source = order.source if order.source != order.learner else None
        job = jobs.FetchPush(
            order.learner, header.round, header, order.left_s, order.is_proven, source
        )
        if job.push in self.pushes:
            self._say(messages.PushHeld(order.epoch, order.term, order.order))
            return
        self.fetching[job.push] = order
        self.effects.start(job)

    def on_fetched(self, job: jobs.FetchPush, result: object) -> None:
        """A push is here, or not."""
        order = self.fetching.pop(job.push, None)
        if order is None:
            if isinstance(result, jobs.PushFetched) and job.push not in self.pushes:
                self.effects.do(jobs.Forget((job.push,)))
            return
        where = (order.epoch, order.term, order.order)
        match result:
            case jobs.PushFetched():
                self.pushes[job.push] = None
                self._say(messages.PushHeld(*where))
            case jobs.PushRefused(reason, detail):
                self._say(messages.PushHeld(*where, reason[:64], detail[:REASON_CHARS_MAX]))
            case _:
                reason = result.reason if isinstance(result, Failed) else "not fetched"
                self._say(messages.OrderFailed(*where, reason[:REASON_CHARS_MAX]))

    def _forget(self, pushes: list[jobs.PushId]) -> None:
        here = tuple(push for push in dict.fromkeys(pushes) if push in self.pushes)
        for push in pushes:
            self.fetching.pop(push, None)
        for push in here:
            del self.pushes[push]
        if here:
            self.effects.do(jobs.Forget(here))

    def _lend(self, lent: messages.LendPush) -> None:
        push = orders.push_id(lent.push)
        if lent.is_over and lent.payload in self.lent:
            self.lent.discard(lent.payload)
            self.effects.do(jobs.RetractPush(lent.payload))
        elif not lent.is_over and push in self.pushes:
            self.lent.add(lent.payload)
            self.effects.do(jobs.OfferPush(push, lent.payload))

    # Merges.

    def _merge(self, order: messages.MergeOrder) -> None:
        job = orders.merge_job(order)
        if any(part.push not in self.pushes for part in job.parts):
            self._fail(order, "a push of it is not here")
            return
        del self.waiting[order.order]
        self.merging[order.order] = order
        self.effects.start(job)

    def on_merged(self, job: jobs.Merge, result: object) -> None:
        """A merge is done and its payload is on disk, or it failed."""
        found = [one for one in self.merging.values() if orders.merge_job(one) == job]
        if not found:
            return
        order = found[0]
        del self.merging[order.order]
        if isinstance(result, jobs.Merged):
            self._say(orders.merge_done(order, result))
        else:
            self._fail(order, result.reason if isinstance(result, Failed) else "not merged")

    def _fail(self, order: messages.MergeOrder, reason: str) -> None:
        self.waiting.pop(order.order, None)
        where = (order.epoch, order.term, order.order)
        self._say(messages.OrderFailed(*where, reason[:REASON_CHARS_MAX]))

    def _say(self, answer: messages.OrderAnswer) -> None:
        assert self.seat is not None, "orders are of a leader"
        self.effects.send(self.seat[0], answer)
