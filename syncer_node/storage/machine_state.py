"""A machine's state as typed values, and back: so that a tape need not begin with its host's start.

Each part of the machine has a struct here with the fields that change while it runs, under their
own names. Reading builds the machine as a daemon does and then sets these fields. What a part is
given when it is built is therefore not in the bytes: callbacks, other parts, signer, genesis. The
bytes name no class and no function; the kinds of jobs are a closed list.
"""

from __future__ import annotations

import random
from collections import deque
from typing import Any, Final, TypeVar

import msgspec

from protocol import decoders, wire
from protocol.errors import MalformedMessage
from protocol.ids import JobId, SessionKey
from protocol.log.account_book import AccountBook
from protocol.log.accounts import Account
from protocol.log.records import Admission, FragmentMerged, read_record, record_hash
from protocol.log.state import SwarmState
from protocol.machine import Job
from protocol.messages import (
    Certificate,
    CertifiedRecord,
    Envelope,
    FetchOrder,
    MergeOrder,
    Message,
    Outcome,
    Vote,
)
from protocol.peers.membership import Session
from protocol.project import Charter, Genesis, RoundSpec
from protocol.quorum import GraceWindow
from protocol.rounds import PullTicket, Round, RoundState
from protocol.signing import Signer, Verify
from protocol.snapshots.cut import Taking
from protocol.snapshots.manifest import Manifest, SnapshotOutline
from protocol.status import RestoreRow
from syncer_node.machine import jobs
from syncer_node.machine.leadership import Leadership, Phase
from syncer_node.machine.lost_history import LostHistory
from syncer_node.machine.merging.assignment import Assignment
from syncer_node.machine.merging.copies import Sending
from syncer_node.machine.merging.mergers import Fetching, Merging
from syncer_node.machine.setup import Recovered, SyncerSetup
from syncer_node.machine.syncer import SyncerMachine
from syncer_node.machine.text_supply import Supply
from syncer_node.machine.trust.probing import Asked
from syncer_node.machine.trust.reading_trails import Trail
from syncer_node.machine.uplinks import Uplinks
from syncer_node.raft import jobs as raft_jobs
from syncer_node.raft.ballot import Ballot
from syncer_node.raft.context import PeerVoter, Role
from syncer_node.raft.log import Entry, Floor, LogStart


class _State(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """Fields of one part of a machine; each has the name of the part's attribute."""


class JobState(_State):
    """A job that is out or waits."""

    kind: str
    content: msgspec.Raw


_JOBS: Final[dict[str, type[Any]]] = {
    kind.__name__: kind
    for kind in (
        jobs.InitialiseWeights,
        jobs.FetchPush,
        jobs.Merge,
        jobs.TakeMerge,
        jobs.FetchPayload,
        jobs.FetchWeights,
        jobs.LoadWeights,
        jobs.Replay,
        jobs.InstallState,
        jobs.RepairFragment,
        jobs.HoldCheckpoint,
        jobs.FetchRestored,
        jobs.Restore,
        jobs.WriteCheckpoint,
        jobs.WriteSnapshot,
        jobs.KeepSnapshot,
        raft_jobs.SaveBallot,
        raft_jobs.KeepProofs,
        raft_jobs.Append,
    )
}
"""All that a machine asks for; a state that names another kind is damaged."""


class SetupState(_State):
    """What the machine was built from and a replay cannot know."""

    charter_envelope: Envelope
    layout_digest: bytes
    numels: tuple[int, ...]
    wall_offset_s: float
    nonce: int
    addresses: tuple[str, ...]
    name: str = ""


class MachineFields(_State):
    """`SyncerMachine`."""

    faults: dict[str, int]
    snapshots: list[SnapshotOutline]
    is_installing: bool
    _now_s: float
    _looked_s: float
    _wake_s: float
    _seat_term: int
    _is_over: bool
    _stop: tuple[str, float] | None
    _was_stored: bool
    _unable_since_s: float | None
    _unfit_until_s: float
    lost: LostHistory | None = None
    networks: dict[bytes, str] = msgspec.field(default_factory=dict)
    _offered: int = 0


class EntryState(_State):
    """A record of the log, with the votes for it."""

    encoded: bytes
    certificate: Certificate | None
    votes: dict[bytes, Vote]


class LogFields(_State):
    """`RaftLog`, without its entries."""

    floor: Floor
    stable: int
    certified: int
    committed: int
    proofs_kept: int
    entries_kept: int
    _told: Charter
    _is_adopted: bool
    _charters: list[tuple[int, Charter]]
    _admissions: list[tuple[int, dict[bytes, Admission]]]


class ContextFields(_State):
    """`Context`, which the parts of a voter share."""

    ballot: Ballot
    charter_envelope: Envelope
    newest_charter: Charter
    peers: dict[bytes, PeerVoter]
    role: Role
    leader: bytes | None
    leader_heard_s: float
    now_s: float
    is_saved: bool
    save_retry_s: float | None
    saved_disk: bytes
    _saving: Ballot | None
    _held_back: dict[bytes, list[tuple[int, Message]]]


class RaftFields(_State):
    """`Raft`."""

    _handed_s: float
    _asked_to_lead: dict[bytes, int]
    _leaving_s: float | None


class ElectionFields(_State):
    """`Election`."""

    is_drained: bool
    deadline_s: float
    seat_votes: tuple[Vote, ...]
    _given: set[bytes]
    _votes: dict[bytes, Vote]
    _is_handover: bool
    _renewed_s: float


class ReplicationFields(_State):
    """`Replication`."""

    wants_state: bool
    is_held: bool
    _trouble: str
    _appending: raft_jobs.Append | None
    _store_retry_s: float | None
    _lacking: set[int]
    _agreed: int
    _signed: set[int]
    _said_s: float
    _beat: int


class ProofsFields(_State):
    """`Proofs`."""

    trouble: str
    _writing: raft_jobs.KeepProofs | None
    _retry_s: float | None


class StandbyFields(_State):
    """`Standby`, without its jobs and the records whose bytes it lacks."""

    held: list[int]
    now_s: float
    failures: dict[int, int]
    trouble: str
    _fetching: set[int]
    _retry_s: dict[int, float]
    _repairing: set[int]
    _repair_s: dict[int, float]
    _was_missing: bool


class MergerFields(_State):
    """`Merger`."""

    seat: tuple[bytes, int, int] | None = None
    fetching: dict[jobs.PushId, FetchOrder] = msgspec.field(default_factory=dict)
    pushes: dict[jobs.PushId, None] = msgspec.field(default_factory=dict)
    waiting: dict[int, MergeOrder] = msgspec.field(default_factory=dict)
    merging: dict[int, MergeOrder] = msgspec.field(default_factory=dict)
    lent: set[bytes] = msgspec.field(default_factory=set)


class LeadershipFields(_State):
    """`Leadership`."""

    phase: Phase
    watchers: dict[bytes, None]
    is_closing: bool
    _now_s: float
    _said_alive_s: float
    _reported_s: float
    _is_ending_proposed: bool
    _is_end_proposed: bool
    asking: dict[bytes, None] = msgspec.field(default_factory=dict)
    _told_all_s: float = 0.0


class MembershipFields(_State):
    """`Membership`."""

    sessions: dict[bytes, Session]
    changes: int
    _quiet_since_s: float
    claims: dict[bytes, dict[int, float]] = msgspec.field(default_factory=dict)


class InvitesFields(_State):
    """`Invites`."""

    _binding: dict[bytes, bytes]


class NotesFields(_State):
    """`ContributorNotes`."""

    _names: dict[bytes, str]
    _refused: dict[bytes, dict[str, int]]
    _since_s: float | None
    _wait_s: float


class RoundsFields(_State):
    """`Rounds`, without the rounds in flight."""

    wall_offset_s: float
    window: GraceWindow
    last_round: int
    proposed_step: int
    last_sequence: dict[SessionKey, int]
    stalled: str
    stalled_until_s: float
    outcomes: dict[str, int]
    _fates: dict[tuple[SessionKey, int], tuple[Outcome, str]]
    merges_here: int
    stragglers: dict[tuple[int, bytes], PullTicket]
    uplinks: Uplinks
    barred: set[bytes] = msgspec.field(default_factory=set)
    proposed: dict[int, FragmentMerged] = msgspec.field(default_factory=dict)


class RoundFields(_State):
    """`Round`, without the line of those it waits for."""

    number: int
    fragment: int
    version: int
    opened_s: float
    spec: RoundSpec
    state: RoundState
    tickets: dict[bytes, PullTicket]
    quorum_s: float | None
    grace_s: float
    closed_s: float | None
    live: int
    quorum: int
    trusted: int | None
    fresh: int
    is_hurried: bool = False


class PaceFields(_State):
    """`Pace`, without what it only says to people."""

    next_step: dict[SessionKey, float]
    waiting_since_s: float | None
    leaving_opened_s: dict[int, float]
    _words: str
    unproven_since_s: float | None = None
    impatient_s: float = 0.0
    patient_from_s: float = 0.0


class LeasingFields(_State):
    """`Leasing`."""

    listening_since_s: float
    _is_leasing: bool
    _queue: list[tuple[bytes, int]]
    _returning: set[SessionKey]
    _known_at: tuple[int, int] | None
    _waiting: dict[bytes, tuple[int, float]] = msgspec.field(default_factory=dict)
    _spent: set[bytes] = msgspec.field(default_factory=set)
    _voided_s: dict[bytes, float] = msgspec.field(default_factory=dict)


class CoverageFields(_State):
    """`Coverage`, without the charter in force."""

    former_step_tokens: int = 0


class SupplyFields(_State):
    """`TextSupply`."""

    supplies: dict[bytes, Supply] = msgspec.field(default_factory=dict)


class ReceiptsFields(_State):
    """`Receipts`."""

    _told: dict[bytes, tuple[int, float, int]]


class EvaluatingFields(_State):
    """`Evaluating`."""

    is_marking: bool
    is_scoring: bool
    pending: int
    evaluator: bytes | None
    since_s: float
    final_tries: int
    resting: dict[bytes, int] = msgspec.field(default_factory=dict)
    asks_again: bool = False
    step: int = -1
    step_s: float = 0.0


class RestoringFields(_State):
    """`Restoring`."""

    record: bytes = b""
    is_loading: bool = False
    is_ready: bool = False
    is_proposed: bool = False
    failures: int = 0
    retry_s: float = 0.0


class SnapshotsFields(_State):
    """`Snapshots`."""

    restores: dict[bytes, RestoreRow]
    taking: Taking | None
    trouble: str
    _cut: Manifest | None
    _proof: tuple[CertifiedRecord, tuple[CertifiedRecord, ...]] | None
    _is_written: bool
    _is_keeping: bool
    next_s: float | None


class ProbingFields(_State):
    """`Probing`."""

    asked: dict[int, Asked] = msgspec.field(default_factory=dict)
    noting: set[bytes] = msgspec.field(default_factory=set)
    last_probe: int = 0
    saved: float = 0.0
    resting: dict[bytes, float] = msgspec.field(default_factory=dict)
    unanswered: int = 0


class MergersFields(_State):
    """`Mergers`, whose bounds are the charter's."""

    epoch: int = 0
    term: int = 0
    assignment: Assignment = msgspec.field(default_factory=lambda: Assignment(()))
    sending: dict[bytes, Sending] = msgspec.field(default_factory=dict)
    holders: dict[jobs.PushId, dict[bytes, None]] = msgspec.field(default_factory=dict)
    fetching: dict[int, Fetching] = msgspec.field(default_factory=dict)
    gathering: dict[jobs.PushId, int] = msgspec.field(default_factory=dict)
    merging: dict[int, Merging] = msgspec.field(default_factory=dict)
    resting: dict[bytes, float] = msgspec.field(default_factory=dict)
    rests_s: dict[bytes, float] = msgspec.field(default_factory=dict)
    lent: dict[bytes, tuple[bytes, jobs.PushId]] = msgspec.field(default_factory=dict)
    carried: dict[tuple[bytes, bytes], float] = msgspec.field(default_factory=dict)
    last_order: int = 0
    usual_s: float | None = None
    now_s: float = 0.0


class TrailsFields(_State):
    """`ReadingTrails`."""

    trails: dict[SessionKey, Trail] = msgspec.field(default_factory=dict)


class LeaderState(_State):
    """A term of leading: its parts, and the rounds in flight."""

    leadership: LeadershipFields
    members: MembershipFields
    invites: InvitesFields
    contributor_notes: NotesFields
    rounds: RoundsFields
    pace: PaceFields
    leasing: LeasingFields
    receipts: ReceiptsFields
    evaluating: EvaluatingFields
    snapshots: SnapshotsFields
    in_flight: tuple[tuple[RoundFields, tuple[bytes, ...]], ...]
    """Each round with the learners it waits for, longest asked first."""
    probing: ProbingFields = msgspec.field(default_factory=ProbingFields)
    trails: TrailsFields = msgspec.field(default_factory=TrailsFields)
    supply: SupplyFields = msgspec.field(default_factory=SupplyFields)
    coverage: CoverageFields = msgspec.field(default_factory=CoverageFields)
    restoring: RestoringFields = msgspec.field(default_factory=RestoringFields)
    mergers: MergersFields = msgspec.field(default_factory=MergersFields)


class VoterState(_State):
    """Everything: the machine's parts, and what they refer to in more than one place."""

    setup: SetupState
    rng: tuple[int, tuple[int, ...], float | None]
    swarm: SwarmState
    machine: MachineFields
    log: LogFields
    context: ContextFields
    raft: RaftFields
    election: ElectionFields
    replication: ReplicationFields
    proofs: ProofsFields
    standby: StandbyFields
    leader: LeaderState | None
    entries: tuple[EntryState, ...]
    recent: tuple[CertifiedRecord, ...]
    recent_max: int
    origins: dict[int, CertifiedRecord]
    jobs: dict[JobId, JobState]
    last_job: int
    queue: tuple[JobState, ...]
    """What a standby has still to replay."""
    replaying: JobId | None
    """Number of the job that it replays."""
    wanted: dict[int, bytes]
    """Records whose bytes it lacks."""
    merger: MergerFields


def parts_of(machine: SyncerMachine) -> dict[str, object]:
    """The parts of a voter, under their names in `VoterState`."""
    raft = machine.raft
    return {
        "machine": machine,
        "log": raft.log,
        "context": raft.context,
        "raft": raft,
        "election": raft.election,
        "replication": raft.replication,
        "proofs": raft.replication.proofs,
        "standby": machine.standby,
        "merger": machine.merger,
    }


def leader_parts_of(leadership: Leadership) -> dict[str, object]:
    """The parts of a term of leading, under their names in `LeaderState`."""
    return {
        "leadership": leadership,
        "members": leadership.members,
        "invites": leadership.invites,
        "contributor_notes": leadership.contributor_notes,
        "rounds": leadership.rounds,
        "pace": leadership.rounds.pace,
        "leasing": leadership.leasing,
        "supply": leadership.leasing.supply,
        "coverage": leadership.rounds.coverage,
        "receipts": leadership.receipts,
        "evaluating": leadership.evaluating,
        "restoring": leadership.restoring,
        "snapshots": leadership.snapshots,
        "probing": leadership.probing,
        "mergers": leadership.mergers,
        "trails": leadership.probing.trails,
    }


def write_machine(machine: SyncerMachine) -> bytes:
    """All that the machine knows between two events. Raises TypeError for an unknown kind of job"""
    assert not machine.effects.out, "its effects are taken"
    setup, standby, effects = machine.setup, machine.standby, machine.effects
    recent, rng_state = machine.recent, setup.rng.getstate()
    replaying = [number for number, job in effects.jobs.items() if job is standby._replaying]
    state = VoterState(
        setup=_taken(setup, SetupState),
        rng=rng_state,
        swarm=machine.state,
        leader=_leader_state(machine.leadership) if machine.leadership is not None else None,
        entries=tuple(_taken(entry, EntryState) for entry in machine.raft.log.entries),
        recent=tuple(recent._recent),
        recent_max=recent._recent.maxlen or 0,
        origins=recent._origins,
        jobs={number: _job_state(job) for number, job in effects.jobs.items()},
        last_job=effects.last_job,
        queue=tuple(map(_job_state, standby._queue)),
        replaying=replaying[0] if replaying else None,
        wanted={index: entry.encoded for index, entry in standby._wanted.items()},
        **_all_taken(parts_of(machine), VoterState),
    )
    return encode_state(state)


def encode_state(state: VoterState) -> bytes:
    """A state as bytes."""
    return msgspec.msgpack.encode(state, enc_hook=_written)


def decode_state(encoded: bytes) -> VoterState:
    """The state that was written. Raises MsgspecError or what else is wrong with it."""
    return decoders.msgpack_decoder(VoterState, _read).decode(encoded)


def _written(one: object) -> object:
    if isinstance(one, AccountBook):
        return dict(one)
    raise TypeError(f"{type(one).__name__} has no place in a machine's state")


def _read(kind: type, written: object) -> object:
    assert kind is AccountBook, "nothing else is written otherwise than it is"
    accounts = decoders.convert(written, dict[bytes, Account], builtin_types=(bytes,))
    return AccountBook(accounts)


def _leader_state(leadership: Leadership) -> LeaderState:
    in_flight = tuple(
        (_taken(one, RoundFields), _waited_for(one)) for one in leadership.rounds.rounds.values()
    )
    return LeaderState(in_flight=in_flight, **_all_taken(leader_parts_of(leadership), LeaderState))


def _waited_for(current: Round) -> tuple[bytes, ...]:
    """Learners in line; a ticket that the round gave away holds up nothing."""
    tickets = current.tickets
    return tuple(peer for peer, ticket in current._waiting if tickets.get(peer) is ticket)


_MISREAD: Final = (
    *(msgspec.MsgspecError, RecursionError),
    *(LookupError, ValueError, ArithmeticError, TypeError),
)
"""What bytes that are no state may raise, while they are read or while the parts take them."""


def read_machine(
    encoded: bytes, *, project: bytes, genesis: Genesis, signer: Signer, verify: Verify
) -> SyncerMachine:
    """A machine that goes on as the written one would. Raises MalformedMessage."""
    try:
        state = decode_state(encoded)
        return _built(
            state,
            SyncerSetup(
                project=project,
                genesis=genesis,
                charter=wire.decode(state.setup.charter_envelope.payload, Charter),
                charter_envelope=state.setup.charter_envelope,
                layout_digest=state.setup.layout_digest,
                numels=state.setup.numels,
                signer=signer,
                verify=verify,
                wall_offset_s=state.setup.wall_offset_s,
                rng=random.Random(0),
                nonce=state.setup.nonce,
                addresses=state.setup.addresses,
                name=state.setup.name,
            ),
        )
    except _MISREAD as error:
        raise MalformedMessage(f"not a machine's state: {error}") from error


def _built(state: VoterState, setup: SyncerSetup) -> SyncerMachine:
    """The machine as a daemon builds it, then as it was."""
    setup.rng.setstate(state.rng)
    log = LogStart(state.log.floor, state.log._told, {}, (), ())
    recovered = Recovered(state.swarm, log, state.context.ballot, state.standby.held)
    machine = SyncerMachine(setup, recovered)
    _put_all(parts_of(machine), state)
    machine.raft.log.entries.extend(
        Entry(
            read_record(one.encoded),
            one.encoded,
            record_hash(one.encoded),
            one.certificate,
            one.votes,
        )
        for one in state.entries
    )
    machine.recent._recent = deque(state.recent, state.recent_max)
    machine.recent._origins = state.origins
    known = {number: _read_job(job) for number, job in state.jobs.items()}
    standby = machine.standby
    standby._queue.extend(map(_read_job, state.queue))
    standby._replaying = known[state.replaying] if state.replaying is not None else None
    standby._wanted = {index: Entry.read(record) for index, record in state.wanted.items()}
    if state.leader is not None:
        machine.open_leadership()
        assert machine.leadership is not None, "it was opened"
        _restore_leadership(machine.leadership, state.leader)
    machine.effects.out, machine.effects.jobs = [], known
    machine.effects.last_job = state.last_job
    return machine


def _restore_leadership(leadership: Leadership, state: LeaderState) -> None:
    _put_all(leader_parts_of(leadership), state)
    for fields, waiting in state.in_flight:
        current = Round(
            fields.number, fields.fragment, fields.version, fields.opened_s, fields.spec
        )
        _put(current, fields)
        current._waiting.extend((peer, current.tickets[peer]) for peer in waiting)
        leadership.rounds.rounds[current.number] = current


def _job_state(job: Job) -> JobState:
    kind = type(job).__name__
    if _JOBS.get(kind) is not type(job):
        raise TypeError(f"a {kind} cannot be written")
    return JobState(kind, msgspec.Raw(msgspec.msgpack.encode(job)))


def _read_job(state: JobState) -> Job:
    kind = _JOBS.get(state.kind)
    if kind is None:
        raise MalformedMessage(f"a machine asks for no {state.kind[:64]!r}")
    job: Job = decoders.msgpack_decoder(kind).decode(state.content)
    return job


S = TypeVar("S", bound=_State)


def _taken(part: object, kind: type[S]) -> S:
    return kind(*(_plain(getattr(part, name)) for name in kind.__struct_fields__))


def _all_taken(parts: dict[str, object], kind: type[_State]) -> dict[str, Any]:
    types = {one.name: one.type for one in msgspec.structs.fields(kind)}
    return {name: _taken(part, types[name]) for name, part in parts.items()}


def _plain(value: object) -> object:
    """A value in an order that does not depend on the process."""
    match value:
        case set():
            return sorted(value)
        case deque():
            return list(value)
    return value


def _put_all(parts: dict[str, object], state: _State) -> None:
    for name, part in parts.items():
        _put(part, getattr(state, name))


def _put(part: object, fields: _State) -> None:
    for name in fields.__struct_fields__:
        value = getattr(fields, name)
        is_queue = isinstance(getattr(part, name), deque)
        setattr(part, name, deque(value) if is_queue else value)
