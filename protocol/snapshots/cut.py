"""Taking a consistent snapshot (Chandy and Lamport, Distributed Snapshots, 1985), syncer's side.

The syncer cuts its own state, which is its place in the log and the pushes it has in hand, and
sends a marker to every learner. A learner cuts its own state when the marker comes, before it
takes anything that was sent after it, and answers with a marker. Until that comes, pushes that
arrive from this learner belong to the state of the channel. Streams keep their order, so no push
is on the wrong side of the cut:

- none that the syncer has in hand, or merged, was made after the learner's cut (no orphan);
- none that the learner handed in before its cut is unknown to the syncer (none lost);
- the learner stands at the very record of the log at which the syncer was cut.

Each of these is checked for every part. Only messages of the control stream change state; weights
and payloads are content. Nobody waits: rounds and local steps go on meanwhile. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from protocol.ids import SessionKey
from protocol.snapshots.manifest import PartBooks, PartEntry, PartKept, Skipped
from protocol.snapshots.vector_clock import VectorClock


class ChannelState(Enum):
    """What is known of one learner's part."""

    OPEN = "its marker is awaited; pushes that arrive are recorded"
    CUT = "its part is being written"
    KEPT = "its part is on its disk"
    SKIPPED = "not in this snapshot"


CHANNEL_TRANSITIONS: dict[tuple[ChannelState, str], ChannelState] = {
    (ChannelState.OPEN, "marker"): ChannelState.CUT,
    (ChannelState.CUT, "kept"): ChannelState.KEPT,
    (ChannelState.OPEN, "skip"): ChannelState.SKIPPED,
    (ChannelState.CUT, "skip"): ChannelState.SKIPPED,
}


@dataclass(slots=True)
class Channel:
    """The stream from one learner, as of the cut."""

    learner: bytes
    incarnation: int
    name: str
    in_hand: frozenset[int]
    """Sequences of its pushes without a fate that were here at the cut."""
    arriving: set[int] = field(default_factory=set)
    """Sequences of pushes that came between the two markers."""
    state: ChannelState = ChannelState.OPEN
    clock: VectorClock | None = None
    part: PartKept | None = None
    reason: str = ""

    @property
    def is_done(self) -> bool:
        return self.state in (ChannelState.KEPT, ChannelState.SKIPPED)

    def fire(self, trigger: str) -> None:
        self.state = CHANNEL_TRANSITIONS[self.state, trigger]


@dataclass(slots=True)
class Taking:
    """One snapshot that is being taken."""

    snapshot: int
    clock: VectorClock
    """The syncer's at its cut."""
    begun_s: float
    channels: dict[bytes, Channel]
    away: tuple[Skipped, ...] = ()
    """Learners that were not here at the cut."""

    @property
    def is_done(self) -> bool:
        """Whether every learner's part is kept or given up."""
        return all(channel.is_done for channel in self.channels.values())

    def on_push(self, session: SessionKey, sequence: int) -> None:
        """A push came in; before the learner's marker it is state of the channel."""
        channel = self._channel(session)
        if channel is not None and channel.state is ChannelState.OPEN:
            channel.arriving.add(sequence)

    def on_marker(self, session: SessionKey, clock: VectorClock) -> None:
        """The learner is cut: the state of its channel is complete."""
        channel = self._channel(session)
        if channel is None or channel.state is not ChannelState.OPEN:
            return
        channel.fire("marker")
        channel.clock = clock

    def on_kept(self, session: SessionKey, part: PartKept) -> None:
        """The learner's part is on its disk; it is taken in if both sides' books agree."""
        channel = self._channel(session)
        if channel is None or channel.state is not ChannelState.CUT:
            return
        assert channel.clock is not None, "a marker came before"
        fault = disagreement(self.clock, channel, channel.clock, part.books)
        if fault:
            self.skip(session[0], f"its books and the syncer's disagree: {fault}")
            return
        channel.fire("kept")
        channel.part = part

    def skip(self, learner: bytes, reason: str) -> None:
        """This learner is not in the snapshot."""
        channel = self.channels.get(learner)
        if channel is not None and not channel.is_done:
            channel.fire("skip")
            channel.reason = reason

    def parts(self) -> tuple[PartEntry, ...]:
        """Everybody who is in, in key order."""
        found = []
        for _, one in sorted(self.channels.items()):
            if one.part is None or one.clock is None:
                continue
            found.append(
                PartEntry(
                    learner=one.learner,
                    name=one.name,
                    incarnation=one.incarnation,
                    digest=one.part.digest,
                    size_bytes=one.part.size_bytes,
                    clock=one.clock,
                    books=one.part.books,
                    in_hand=tuple(sorted(one.in_hand)),
                    arriving=tuple(sorted(one.arriving)),
                )
            )
        return tuple(found)

    def skipped(self) -> tuple[Skipped, ...]:
        """Everybody who is not in, and why."""
        given_up = [
            Skipped(one.learner, one.name, one.reason)
            for _, one in sorted(self.channels.items())
            if one.part is None
        ]
        return (*given_up, *self.away)

    def waiting_for(self) -> list[str]:
        """Names of learners whose part is still to come."""
        return [one.name for _, one in sorted(self.channels.items()) if not one.is_done]

    def _channel(self, session: SessionKey) -> Channel | None:
        channel = self.channels.get(session[0])
        return channel if channel is not None and channel.incarnation == session[1] else None


def disagreement(cut: VectorClock, channel: Channel, clock: VectorClock, books: PartBooks) -> str:
    """How the two sides of a channel contradict each other; empty if the cut is consistent."""
    here = channel.in_hand | channel.arriving
    orphans = [sequence for sequence in sorted(here) if sequence > books.sequence]
    lost = [sequence for sequence in books.open if sequence not in here]
    if clock.log_index != cut.log_index:
        return f"it was cut at record {clock.log_index}, the syncer at record {cut.log_index}"
    if not cut.has_observed(clock):
        return "it stands on versions that the syncer had not committed"
    if orphans:
        return f"push {orphans[0]} is here and was made after its cut"
    if lost:
        return f"push {lost[0]} was handed in before its cut and never came"
    if not books.is_balanced:
        return f"{books.processed} tokens were read, and its books do not add up to that"
    return ""
