"""Snapshots of a simulated swarm, judged from the outside.

The judge sees what hosts say to each other, in the order in which each host said and heard it, and
what trainers read. It knows nothing of how a cut is made.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from protocol import wire
from protocol.messages import Message, Push, PushHeader
from protocol.snapshots.manifest import Manifest, Marker, PartEntry, from_stamp
from protocol.trace import Fact, PushSettled, SnapshotBegan, SnapshotEnded
from simulator.checkers.ledger import Ledger, Violation
from simulator.checkers.provenance import ProvenanceChecker
from simulator.hosts.learner import SimLearner
from simulator.hosts.parts import SimPart
from simulator.hosts.syncer import SimSyncer
from simulator.virtual.world import Host, World

Session = tuple[bytes, int]


@dataclass(slots=True)
class Side:
    """What one learner had said, heard and done at its cut."""

    sent: set[int]
    """Sequences of its pushes."""
    settled: set[int]
    """Of those whose fate it knew."""
    reads: int
    """Sequences of text that its session had read."""
    discarded: list[set[int]]


@dataclass(slots=True)
class Cut:
    """One snapshot, as seen from the outside."""

    index: int
    syncer: bytes
    reads: dict[bytes, int]
    """How much each learner had read when the syncer was cut."""
    came: dict[Session, set[int]]
    """Pushes that had come to the syncer by then."""
    between: dict[Session, set[int]] = field(default_factory=dict)
    """Pushes that came since, from learners whose marker had not come."""
    marked: set[bytes] = field(default_factory=set)
    sides: dict[bytes, Side] = field(default_factory=dict)


class SnapshotChecker:
    """Watches a world; raises Violation for a cut that could not have been at any moment."""

    def __init__(
        self,
        world: World,
        ledger: Ledger,
        learners: list[SimLearner],
        sets: ProvenanceChecker | None = None,
    ) -> None:
        self.ledger = ledger
        self.learners = learners
        self.sets = sets
        self.cuts: dict[int, Cut] = {}
        self.kept: list[Manifest] = []
        """Everything that was kept, and found consistent."""
        self.compared = 0
        """Parts that were judged."""
        self.restored: list[tuple[SimLearner, SimPart]] = []
        self._sent: dict[Session, set[int]] = {}
        self._came: dict[Session, set[int]] = {}
        self._settled: dict[Session, set[int]] = {}
        world.watchers.append(self._watch)
        world.taps.append(self._tap)
        for learner in learners:
            learner.parts.cuts.append(partial(self._on_cut, learner))
            learner.parts.restores.append(partial(self._on_restore, learner))

    # What happens.

    def _watch(self, now_s: float, host: Host, fact: Fact) -> None:
        match fact:
            case SnapshotBegan(name, index, _):
                reads = {one.key: len(one.reads) for one in self.learners}
                came = {session: set(found) for session, found in self._came.items()}
                self.cuts[from_stamp(name)] = Cut(index, host.key, reads, came)
            case SnapshotEnded(name, is_kept=True):
                assert isinstance(host, SimSyncer)
                self._judge(now_s, host.disk.snapshots[from_stamp(name)].manifest)
            case PushSettled() if isinstance(host, SimLearner) and fact.learner == host.key:
                session = (fact.learner, fact.incarnation)
                self._settled.setdefault(session, set()).add(fact.sequence)

    def _tap(self, what: str, host: Host, peer: bytes, message: Message) -> None:
        if isinstance(message, Push):
            header = wire.decode(message.header.payload, PushHeader)
            learner = host.key if what == "sent" else peer
            seen = self._sent if what == "sent" else self._came
            seen.setdefault((learner, header.incarnation), set()).add(header.sequence)
            if what == "came":
                self._came_between((learner, header.incarnation), header.sequence)
        elif isinstance(message, Marker) and what == "came" and message.snapshot in self.cuts:
            self.cuts[message.snapshot].marked.add(peer)

    def _came_between(self, session: Session, sequence: int) -> None:
        for cut in self.cuts.values():
            if session[0] not in cut.marked:
                cut.between.setdefault(session, set()).add(sequence)

    def _on_cut(self, host: SimLearner, snapshot: int) -> None:
        if host.is_void:
            return
        session = (host.key, host.incarnation)
        discarded: list[set[int]] = []
        if self.sets is not None:
            discarded = self.sets.discarded(host)
            for fragment in range(len(host.layout.fragments)):
                self.sets.check_cut(host, fragment)
        cut = self.cuts.get(snapshot)
        if cut is not None:
            # Nobody says again what a trainer handed in that is gone; its tokens count as lost.
            dead = {
                sequence
                for (incarnation, sequence), (trainer, _) in host.captures.items()
                if incarnation == host.incarnation and trainer != host.trainer_number
            }
            cut.sides[host.key] = Side(
                set(self._sent.get(session, ())),
                dead | self._settled.get(session, set()),
                sum(read[0] == host.incarnation for read in host.reads),
                discarded,
            )

    def _on_restore(self, host: SimLearner, part: SimPart) -> None:
        self.restored.append((host, part))
        del host.reads[part.trainer.reads :]
        # What its session said behind the cut never was, and pushes without a fate have none now.
        session, last = (host.key, host.incarnation), part.state.sequence
        # A syncer of the new epoch may have been cut already, before this learner was back.
        for seen in (self._sent, self._came, *(cut.came for cut in self.cuts.values())):
            seen[session] = {one for one in seen.get(session, ()) if one <= last}
        self._settled[session] = set(self._sent[session])
        if self.sets is not None:
            side = self.cuts[part.state.snapshot].sides[host.key]
            self.sets.go_on(host, side.discarded)

    # Judging.

    def _judge(self, now_s: float, manifest: Manifest) -> None:
        cut = self.cuts[manifest.snapshot]
        where = f"{now_s:.2f}: snapshot at record {manifest.index}"
        if manifest.index != cut.index:
            raise Violation(f"{where}: the syncer was cut at record {cut.index}")
        for entry in manifest.parts:
            self._judge_part(where, manifest, cut, entry)
            self.compared += 1
        self.kept.append(manifest)

    def _judge_part(self, where: str, manifest: Manifest, cut: Cut, entry: PartEntry) -> None:
        who = f"{where}: {entry.name}"
        side, session = cut.sides[entry.learner], (entry.learner, entry.incarnation)
        books = entry.books
        merged, tokens = self._merged(session, manifest.index)
        came = cut.came.get(session, set())
        between = cut.between.get(session, set())
        orphans = (came | merged | set(entry.in_hand) | set(entry.arriving)) - side.sent
        if orphans:
            raise Violation(f"{who}: push {min(orphans)} is counted and was made after its cut")
        lost = side.sent - merged - set(entry.in_hand) - set(entry.arriving) - side.settled
        if lost:
            raise Violation(f"{who}: push {min(lost)} was handed in before its cut and is nowhere")
        twice = merged & set(books.open)
        if twice:
            raise Violation(f"{who}: push {min(twice)} is merged, and its learner does not know")
        if set(entry.arriving) != between:
            raise Violation(f"{who}: {sorted(between)} arrived, {entry.arriving} are named")
        if books.merged != tokens:
            raise Violation(f"{who}: {tokens} of its tokens are merged, it counts {books.merged}")
        data = self.learners[0].tiny.genesis.data
        read = side.reads * data.sequence_tokens * len(manifest.clock.versions)
        if books.processed != read or not books.is_balanced:
            raise Violation(f"{who}: {read} tokens were read, its books say {books}")

    def _merged(self, session: Session, index: int) -> tuple[set[int], int]:
        """Pushes of this session that are merged up to this record, and their tokens."""
        found, tokens = set(), 0
        for record in self.ledger.records[:index]:
            for part in getattr(record.body, "contributions", ()):
                if (part.learner, part.incarnation) == session:
                    found.add(part.sequence)
                    tokens += part.tokens
        return found, tokens
