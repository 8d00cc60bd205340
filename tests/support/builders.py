"""Valid objects by default; a test names only what it is about. And benches that drive machines."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from typing import Any

import msgspec

from node.machine.context import LearnerSetup
from node.machine.jobs import FindSeat, SeatFound
from node.machine.learner import LearnerMachine
from protocol import limits, wire
from protocol.fragments import Layout, build_layout
from protocol.ids import SessionKey
from protocol.log.leases import TextShape
from protocol.log.records import (
    NO_RECORD,
    Admission,
    Body,
    CharterAdopted,
    Contribution,
    FragmentMerged,
    Record,
    SeatTaken,
    StateDigests,
    VotersAdmitted,
    WeightsInitialised,
    certify,
    encode_record,
    record_hash,
    sign_record,
)
from protocol.log.state import SwarmState, tally_of
from protocol.machine import (
    Disconnect,
    Do,
    Effect,
    Emit,
    Event,
    JobDone,
    PeerUp,
    Received,
    Send,
    Start,
    Started,
    Stop,
    WakeAt,
    Woke,
)
from protocol.messages import (
    CertifiedRecord,
    Committed,
    Cursor,
    Envelope,
    FragmentIndex,
    Heartbeat,
    Hello,
    IndexPart,
    LeaseRequest,
    Message,
    Pull,
    Push,
    PushHeader,
    Welcome,
)
from protocol.numerics.codecs import payload_bytes
from protocol.peers.membership import Session
from protocol.project import Charter, LimitSpec, OuterSpec, RoundSpec, encode
from protocol.signing import seal
from simulator.stand_ins.tiny import (
    SimSigner,
    TinyProject,
    charter_envelope,
    sim_verify,
    tiny_project,
)
from syncer_node.machine.jobs import (
    CheckpointWritten,
    FetchPush,
    HoldCheckpoint,
    InitialiseWeights,
    LoadWeights,
    Merge,
    Merged,
    PayloadKept,
    PushFetched,
    Replay,
    Replayed,
    WeightsMade,
    WriteCheckpoint,
)
from syncer_node.machine.leadership import Leadership
from syncer_node.machine.setup import Recovered, SyncerSetup
from syncer_node.machine.syncer import SyncerMachine
from syncer_node.raft.ballot import Ballot
from syncer_node.raft.jobs import (
    Append,
    Appended,
    BallotSaved,
    KeepProofs,
    ProofsKept,
    SaveBallot,
)
from syncer_node.raft.log import Floor, LogStart

SYNCER = SimSigner("syncer")
LEARNERS = tuple(SimSigner(f"learner {number}") for number in range(6))
ONE, TWO, THREE = LEARNERS[:3]
STRANGER = SimSigner("stranger")
FRAGMENTS = 4
MOST_STEPS = 1000
"""No more text is asked for than so many local steps read."""

DISK = bytes(range(32))
"""Name of the syncer's disk."""


def signer_of(key: bytes) -> SimSigner:
    """The learner with this key."""
    return next(signer for signer in LEARNERS if signer.key == key)


def digest_of(*parts: object) -> bytes:
    """Some digest, the same for the same parts."""
    return record_hash(repr(parts).encode())


def rounds(**changes: Any) -> RoundSpec:
    usual = RoundSpec(8, 2, 1, 0.9, 0.5, 20.0, 20.0, "overwrite", "int4", "int4")
    return msgspec.structs.replace(usual, **changes)


@cache
def project(
    spec: RoundSpec | None = None,
    limit: LimitSpec | None = None,
    outer: OuterSpec | None = None,
) -> TinyProject:
    """A tiny project whose only voter is `SYNCER`."""
    return tiny_project(SYNCER.key, rounds=spec, limits=limit, outer=outer)


def layout(tiny: TinyProject | None = None) -> Layout:
    genesis = (tiny or project()).genesis
    return build_layout(genesis.model.tensors, genesis.strategy, genesis.fragments)


def hello(**changes: Any) -> Hello:
    usual = Hello(
        wire_version=limits.WIRE_VERSION,
        project=project().project,
        layout=layout().digest,
        incarnation=1,
        agent="test",
        name="somebody",
        evaluates=False,
        head_index=0,
        head=NO_RECORD,
        follows="whole",
    )
    return msgspec.structs.replace(usual, **changes)


def heartbeat(**changes: Any) -> Heartbeat:
    """Eight local steps into training on version 0, nothing handed in."""
    usual = Heartbeat(
        state="training",
        device="cpu",
        local_step=8,
        tokens=8 * 32,
        step_s=0.5,
        loss=3.0,
        steps=(8,) * FRAGMENTS,
        versions=(0,) * FRAGMENTS,
        cursor=Cursor(0, 0),
        work_s=4.0,
        alive_s=5.0,
    )
    return msgspec.structs.replace(usual, **changes)


def session(signer: SimSigner = ONE, **changes: Any) -> Session:
    """A connected session that trains."""
    values = {
        "peer": signer.key,
        "incarnation": 1,
        "name": "somebody",
        "evaluates": False,
        "since_s": 0.0,
        "heard_s": 0.0,
        "beat": heartbeat(),
        **changes,
    }
    return Session(**values)


def push_header(**changes: Any) -> PushHeader:
    usual = PushHeader(
        project=project().project,
        incarnation=1,
        sequence=1,
        round=1,
        fragment=0,
        base_version=0,
        codec="int4",
        digest=digest_of("payload"),
        payload_bytes=payload_bytes("int4", layout().fragments[0].numel),
        steps=8,
        tokens=8 * 32,
        local_step=8,
        cursor=Cursor(0, 0),
    )
    return msgspec.structs.replace(usual, **changes)


def sealed_push(signer: SimSigner = ONE, **changes: Any) -> Push:
    header = push_header(**changes)
    return Push(seal("push", project().project, wire.encode(header), signer))


def state_digests(*parts: object) -> StateDigests:
    return StateDigests(digest_of("theta", *parts), digest_of("momentum", *parts))


def contribution(**changes: Any) -> Contribution:
    usual = Contribution(ONE.key, 1, 1, 0, 8, 256, 8192.0, 1.0, 1.0, Cursor(0, 0))
    return msgspec.structs.replace(usual, **changes)


def merged(**changes: Any) -> FragmentMerged:
    usual = FragmentMerged(
        round=1,
        global_step=1,
        fragment=0,
        version=1,
        payload=digest_of("payload"),
        payload_bytes=132,
        codec="int4",
        learning_rate=0.7,
        momentum=0.5,
        state=state_digests(0, 1),
        contributions=(contribution(),),
    )
    return msgspec.structs.replace(usual, **changes)


def weights(fragments: int = FRAGMENTS) -> WeightsInitialised:
    return WeightsInitialised(tuple(state_digests(at, 0) for at in range(fragments)))


def record(body: Body | None = None, **changes: Any) -> Record:
    usual = Record(project().project, 0, 1, 1, NO_RECORD, 1.7e9, body or SeatTaken(SYNCER.key))
    return msgspec.structs.replace(usual, **changes)


def certified(of: Record, *signers: SimSigner) -> CertifiedRecord:
    """The record with the votes of these signers, of the syncer by default."""
    encoded = encode_record(of)
    digest = record_hash(encoded)
    votes = [sign_record(of, digest, signer) for signer in signers or (SYNCER,)]
    return CertifiedRecord(encoded, certify(of, digest, votes))


class Log:
    """A log that grows by whatever body a test names, and the state it folds to."""

    def __init__(self, *bodies: Body, tiny: TinyProject | None = None) -> None:
        self.tiny = tiny or project()
        self.state = SwarmState(self.tiny.genesis.data.block_sequences)
        self.entries: list[CertifiedRecord] = []
        self.records: list[Record] = []
        for body in bodies:
            self.add(body)

    def tallied(self, body: FragmentMerged) -> FragmentMerged:
        """The merge as a leader proposes it next."""
        tally = tally_of(self.state, body.fragment, body.contributions)
        return msgspec.structs.replace(body, tally=tally)

    def add(self, body: Body, at_s: float = 1.7e9) -> CertifiedRecord:
        """The committed entry; the state has taken it in."""
        if isinstance(body, FragmentMerged) and body.fragment < len(self.state.fragments):
            body = self.tallied(body)
        record = Record(
            project=self.tiny.project,
            epoch=0,
            term=1,
            index=self.state.index + 1,
            previous=self.state.head,
            at_s=at_s,
            body=body,
        )
        entry = certified(record)
        self.state.apply(record, record_hash(entry.record))
        self.entries.append(entry)
        self.records.append(record)
        return entry

    @property
    def encoded(self) -> list[bytes]:
        return [entry.record for entry in self.entries]

    def origins(self) -> tuple[CertifiedRecord, ...]:
        """The proofs of the newest fragment states."""
        indices = sorted({fragment.record_index for fragment in self.state.fragments})
        return tuple(self.entries[at - 1] for at in indices)

    def index(self) -> FragmentIndex:
        """What a joiner gets at this point, behind the origins."""
        return FragmentIndex(
            log_index=self.state.index,
            head=self.state.head,
            summary=wire.encode(self.state.summary(with_accounts=False, with_charters=False)),
        )

    def recovered(self) -> Recovered:
        """What a syncer with this log on its disk starts from."""
        origins = {fragment.record_index for fragment in self.state.fragments}
        start = LogStart(
            floor=Floor(),
            charter=self.tiny.charter,
            admissions={},
            records=self.encoded,
            certificates=[entry.certificate for entry in self.entries],
        )
        return Recovered(
            state=self.state,
            log=start,
            ballot=Ballot(DISK, 1),
            held=[fragment.version for fragment in self.state.fragments],
            recent=list(self.entries),
            origins={at: self.entries[at - 1] for at in origins},
        )


def sealed_charter(charter: Charter, tiny: TinyProject | None = None) -> Envelope:
    """This charter as the project's owner signs it."""
    tiny = tiny or project()
    return seal("charter", tiny.project, encode(charter), tiny.owner)


def founded(*bodies: Body, tiny: TinyProject | None = None) -> Log:
    """A log that says first who leads, by which charter, and which disk votes."""
    return Log(
        SeatTaken(SYNCER.key),
        CharterAdopted(charter_envelope(tiny or project())),
        VotersAdmitted((Admission(SYNCER.key, 0, DISK),)),
        *bodies,
        tiny=tiny,
    )


class Bench:
    """A machine on a bench: events in, effects kept; jobs are answered unless their kind is held.

    `sent` holds messages by peer, `held` jobs waiting for the test, `facts` what was emitted.
    """

    def __init__(self, machine: Any) -> None:
        self.machine = machine
        self.now_s = 100.0
        self.hold: set[type] = set()
        self.held: list[Start] = []
        self.effects: list[Effect] = []
        self.sent: dict[bytes, list[Message]] = {}
        self.wake_s: float | None = None
        self.answer: Callable[[object], object] = lambda job: None

    def feed(self, event: Event) -> list[Effect]:
        """Handle an event and whatever its jobs' answers lead to; all effects of it."""
        first = len(self.effects)
        queue = [event]
        while queue:
            for effect in self.machine.handle(queue.pop(0), self.now_s):
                self.effects.append(effect)
                if isinstance(effect, Send):
                    # As on a stream: what cannot be encoded or decoded fails here.
                    message = wire.decode_message(wire.encode(effect.message))
                    self.sent.setdefault(effect.peer, []).append(message)
                elif isinstance(effect, WakeAt):
                    self.wake_s = effect.at_s
                elif isinstance(effect, Start):
                    answer = None if type(effect.job) in self.hold else self.answer(effect.job)
                    if answer is None:
                        self.held.append(effect)
                    else:
                        queue.append(JobDone(effect.id, answer))
        return self.effects[first:]

    def say(self, peer: bytes, message: Message) -> list[Effect]:
        return self.feed(Received(peer, message))

    def wait(self, seconds: float) -> list[Effect]:
        self.now_s += seconds
        return self.feed(Woke())

    def done(self, kind: type, result: object) -> list[Effect]:
        """Answer the oldest held job of this kind."""
        start = next(start for start in self.held if isinstance(start.job, kind))
        self.held.remove(start)
        return self.feed(JobDone(start.id, result))

    def jobs(self, kind: type) -> list[Any]:
        return [start.job for start in self.held if isinstance(start.job, kind)]

    def last(self, peer: bytes, kind: type) -> Any:
        """The last message of this kind to the peer; None if there was none."""
        said = [message for message in self.sent.get(peer, []) if isinstance(message, kind)]
        return said[-1] if said else None

    def all(self, peer: bytes, kind: type) -> list[Any]:
        return [message for message in self.sent.get(peer, []) if isinstance(message, kind)]


def facts(effects: list[Effect], kind: type) -> list[Any]:
    return [e.fact for e in effects if isinstance(e, Emit) and isinstance(e.fact, kind)]


def actions(effects: list[Effect], kind: type) -> list[Any]:
    return [e.action for e in effects if isinstance(e, Do) and isinstance(e.action, kind)]


def disconnected(effects: list[Effect]) -> list[bytes]:
    return [e.peer for e in effects if isinstance(e, Disconnect)]


def stops(effects: list[Effect]) -> list[Stop]:
    return [e for e in effects if isinstance(e, Stop)]


class SyncerBench(Bench):
    """A syncer whose disk, transfers and merges succeed at once."""

    machine: SyncerMachine

    @property
    def seat(self) -> Leadership:
        """What it does for learners while it leads."""
        assert self.machine.leadership is not None, "this syncer does not lead"
        return self.machine.leadership

    def __init__(
        self,
        tiny: TinyProject | None = None,
        *,
        recovered: Recovered | None = None,
        charter: Any = None,
    ) -> None:
        self.tiny = tiny or project()
        cut = layout(self.tiny)
        setup = SyncerSetup(
            project=self.tiny.project,
            genesis=self.tiny.genesis,
            charter=charter or self.tiny.charter,
            charter_envelope=sealed_charter(charter or self.tiny.charter, self.tiny),
            layout_digest=cut.digest,
            numels=tuple(fragment.numel for fragment in cut.fragments),
            signer=SYNCER,
            verify=sim_verify,
            wall_offset_s=1.7e9,
            rng=random.Random("syncer"),
            nonce=1,
        )
        blank = Log(tiny=self.tiny).recovered()
        super().__init__(SyncerMachine(setup, recovered or blank))
        self.answer = self._answer

    def _answer(self, job: object) -> object:
        match job:
            case InitialiseWeights():
                return WeightsMade(weights().fragments)
            case KeepProofs():
                return ProofsKept()
            case SaveBallot(ballot):
                return BallotSaved(ballot)
            case Append(after, records):
                return Appended(after + len(records))
            case LoadWeights() | Replay():
                return Replayed()
            case FetchPush():
                return PushFetched()
            case WriteCheckpoint(index, _):
                return CheckpointWritten(index)
            case HoldCheckpoint():
                return PayloadKept()
            case Merge(fragment=fragment, version=version, parts=parts):
                return Merged(
                    payload=digest_of("payload", fragment, version),
                    payload_bytes=132,
                    state=state_digests(fragment, version),
                    norms=(1.0,) * len(parts),
                    scales=(1.0,) * len(parts),
                    cosines=(0.0,) * len(parts),
                    trusts=(1.0,) * len(parts),
                    shares=(1.0 / len(parts),) * len(parts),
                    seconds=0.01,
                )
        raise AssertionError(f"unknown job {job}")

    def start(self, *learners: SimSigner) -> SyncerBench:
        """Weights made, these learners admitted."""
        self.feed(Started())
        for learner in learners:
            self.join(learner)
        return self

    def store(self) -> list[Effect]:
        """The disk took the oldest batch of records that it was held up with."""
        return self.done(Append, self.answer(self.jobs(Append)[0]))

    def join(self, learner: SimSigner, **changes: Any) -> list[Effect]:
        self.feed(PeerUp(learner.key))
        return self.say(learner.key, hello(project=self.tiny.project, **changes))

    def judge(self, learner: SimSigner, **what: Any) -> None:
        """As if merges had said this of it. what: fields of its account."""
        account = self.machine.state.accounts.opened(learner.key)
        for name, value in what.items():
            setattr(account, name, value)
        self.machine.state.judgements += 1

    def beat(self, learner: SimSigner, **changes: Any) -> list[Effect]:
        """A heartbeat, late enough to be looked at."""
        self.now_s += 0.05
        return self.say(learner.key, heartbeat(**changes))

    def lease(self, *learners: SimSigner) -> None:
        """Blocks for all of them, and time enough to have trained on them."""
        for learner in learners:
            self.say(learner.key, LeaseRequest(8))
        self.now_s += 1.0

    def train(self, *learners: SimSigner) -> dict[bytes, Pull]:
        """All of them got blocks and trained; who was asked for what then."""
        self.lease(*learners)
        before = {one.key: len(self.all(one.key, Pull)) for one in learners}
        for learner in learners:
            self.now_s += 0.001  # Too soon to be looked at, but for the first.
            self.say(learner.key, heartbeat())
        self.wait(0.05)
        return {
            key: self.all(key, Pull)[-1]
            for key, count in before.items()
            if len(self.all(key, Pull)) > count
        }

    def push(self, learner: SimSigner, pull: Pull, **changes: Any) -> list[Effect]:
        """Answer a pull with a push that counts, but for what is changed."""
        values = {"round": pull.round, "fragment": pull.fragment, "base_version": pull.version}
        steps = changes.get("steps", 8)
        if "cursor" not in changes and steps <= MOST_STEPS:
            session = (learner.key, changes.get("incarnation", 1))
            values["cursor"] = self.read(session, pull.fragment, steps)
        return self.say(learner.key, sealed_push(learner, **{**values, **changes}))

    def read(self, session: SessionKey, fragment: int, steps: int) -> Cursor:
        """Up to where a session read for so many steps since its last push of this fragment.

        It gets more text where it has too little.
        """
        data, needed = self.tiny.genesis.data, steps * self.tiny.charter.inner.batch_sequences
        shape, book = (
            TextShape(data.sequence_tokens, data.block_sequences),
            self.machine.state.leases,
        )

        def far_enough() -> Cursor | None:
            ends = [
                Cursor(at, sequence)
                for span in book.held.get(session, [])
                for at in range(span.start, span.stop)
                for sequence in range(1, shape.block_sequences + 1)
            ]
            for end in ends:
                if (book.covered(session, fragment, end, shape) or 0) >= needed:
                    return end
            return None

        most = self.tiny.charter.limits.lease_blocks
        for _ in range(-(-needed // (most * shape.block_sequences)) + 1):
            if far_enough() is None and session in book.since_s:
                self.say(session[0], LeaseRequest(most))
        return far_enough() or Cursor(0, 0)


def seat_found(charter: Envelope, *, leader: bytes = SYNCER.key, term: int = 1) -> SeatFound:
    return SeatFound(leader, charter, epoch=0, term=term)


class LearnerBench(Bench):
    """A learner that finds its syncer at once; all other jobs are held."""

    machine: LearnerMachine

    def __init__(
        self,
        signer: SimSigner = ONE,
        tiny: TinyProject | None = None,
        *,
        batch_sequences: int | None = None,
    ) -> None:
        self.tiny = tiny or project()
        self.charter = charter_envelope(self.tiny)
        setup = LearnerSetup(
            project=self.tiny.project,
            genesis=self.tiny.genesis,
            layout_digest=layout(self.tiny).digest,
            name="somebody",
            agent="test",
            incarnation=1,
            evaluates=True,
            micro_batch=None,
            signer=signer,
            verify=sim_verify,
            rng=random.Random(1),
            batch_sequences=batch_sequences,
        )
        super().__init__(LearnerMachine(setup))
        self.answer = self._answer

    def _answer(self, job: object) -> object:
        return seat_found(self.charter) if isinstance(job, FindSeat) else None

    def admit(
        self,
        log: Log,
        *,
        charter: Envelope | None = None,
        origins: tuple[CertifiedRecord, ...] | None = None,
        **changes: Any,
    ) -> list[Effect]:
        """Hear the origins and the welcome, with changes to the index."""
        proofs, charters = log.origins() if origins is None else origins, log.state.charters
        self.say(SYNCER.key, IndexPart(proofs, charters=tuple(charters)))
        index = msgspec.structs.replace(log.index(), **changes)
        return self.say(SYNCER.key, Welcome(charter or self.charter, 0, 1, index))

    def greet(self) -> LearnerBench:
        """Connected, hello said, no welcome yet."""
        self.feed(Started())
        self.feed(PeerUp(SYNCER.key))
        return self

    def follow(self, log: Log) -> LearnerBench:
        """Admitted, at the head of this log."""
        self.greet()
        self.admit(log)
        return self

    def commit(self, *entries: CertifiedRecord) -> list[Effect]:
        return self.say(SYNCER.key, Committed(entries))
