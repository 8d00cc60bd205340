"""Records a syncer's machine: every input with its time, and a digest of all it made of it.

`RecordedMachine` stands in front of a `SyncerMachine` and passes everything through. It can be
replayed without any key or disk: signatures that were made are kept, the random seed is known, and
what the disk held at the start is in the first frame. Recording never raises.
"""

from __future__ import annotations

import logging
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from typing import Any, Final, Protocol, TypeVar

import msgspec
from blake3 import blake3

from host.tape.tape_file import mib_for_payloads
from protocol import decoders, wire
from protocol import machine as events
from protocol.errors import MalformedMessage, RemoteError
from protocol.ids import JobId
from protocol.log.records import Admission
from protocol.log.state import SwarmState, SwarmSummary
from protocol.machine import Do, Effect, Emit, Event, JobDone, Received, Send, Start
from protocol.messages import Certificate, CertifiedRecord, Envelope
from protocol.numerics.buffers import F32
from protocol.project import Charter, CodecName, Genesis, encode
from protocol.signing import Signer, Verify
from protocol.snapshots.manifest import SnapshotOutline
from protocol.tape import (
    MERGED_PARTS,
    Base,
    BasePart,
    Began,
    Frame,
    Input,
    MachineState,
    PushPayload,
)
from syncer_node.machine import jobs
from syncer_node.machine.jobs import FetchPush, Keep, Merge
from syncer_node.machine.setup import Recovered, SyncerSetup
from syncer_node.machine.syncer import SyncerMachine
from syncer_node.raft import jobs as raft_jobs
from syncer_node.raft.ballot import Ballot
from syncer_node.raft.log import Floor, LogStart
from syncer_node.storage.machine_state import write_machine
from syncer_node.storage.merge_bank import MergeBank

log = logging.getLogger("shoal.tape")

OUTCOME_BYTES: Final = 8
FAULT, DRAIN, CHARTER, SNAPSHOT = "fault", "drain", "charter", "snapshot"
T = TypeVar("T")
DECISIONS: Final = ("Merge", "Keep")
NEVER_BYTES: Final = 1 << 62
STATE_BYTES_MAX: Final = 32 << 20
"""Writing it takes the machine's own thread some milliseconds for each megabyte."""


class Sink(Protocol):
    """Where frames go: `host.tape.tape_file.TapeRecorder`, or a list in tests."""

    @property
    def is_running(self) -> bool: ...

    @property
    def state_every_bytes(self) -> int:
        """A machine's state is wanted behind so many bytes of inputs."""
        ...

    def put(self, frame: Callable[[], Frame], size: int) -> None: ...

    def stop(self, reason: str) -> None: ...


class Seeds(msgspec.Struct, frozen=True, array_like=True):
    """What else a machine is built from, besides the genesis."""

    project: bytes
    charter: Envelope
    layout: bytes
    numels: tuple[int, ...]
    key: bytes
    wall_offset_s: float
    rng_seed: bytes
    nonce: int
    addresses: tuple[str, ...]
    summary: SwarmSummary
    floor: tuple[int, int, bytes]
    log_charter: Charter
    admissions: tuple[Admission, ...]
    records: tuple[bytes, ...]
    certificates: tuple[Certificate, ...]
    ballot: Ballot
    held: tuple[int, ...]
    recent: tuple[CertifiedRecord, ...]
    origins: dict[int, CertifiedRecord]
    snapshots: tuple[SnapshotOutline, ...] = ()
    name: str = ""


class RecordingSigner:
    """Signs as the host does, and remembers the signatures until they are taken."""

    def __init__(self, signer: Signer) -> None:
        self._signer = signer
        self._made: list[bytes] = []

    @property
    def key(self) -> bytes:
        return self._signer.key

    def sign(self, message: bytes) -> bytes:
        signature = self._signer.sign(message)
        self._made.append(signature)
        return signature

    def take(self) -> tuple[bytes, ...]:
        made, self._made = tuple(self._made), []
        return made


class RecordedMachine:
    """A syncer's machine whose inputs and outcomes go to a tape."""

    def __init__(
        self, setup: SyncerSetup, recovered: Recovered, rng_seed: bytes, sink: Sink, software: str
    ) -> None:
        """setup.rng is replaced by one of this seed."""
        self._sink = sink
        self._told_bytes = 0
        """Since the last state."""
        self._signer = RecordingSigner(setup.signer)
        seeds = seeds_of(setup, recovered, rng_seed)
        setup = replace(setup, signer=self._signer, rng=random.Random(rng_seed))
        self.inner = SyncerMachine(setup, recovered)
        began = Began(software, encode(setup.genesis), seeds, self._signer.take())
        sink.put(lambda: began, len(began.genesis) + len(seeds))

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        return self._recorded(now_s, event, lambda: self.inner.handle(event, now_s))

    def fault(self, peer: bytes, error: RemoteError) -> list[Effect]:
        told = (FAULT, (peer, error.reason, str(error)))
        return self._recorded(0.0, told, lambda: self.inner.fault(peer, error))

    def drain(self, now_s: float) -> list[Effect]:
        return self._recorded(now_s, (DRAIN, None), lambda: self.inner.drain(now_s))

    def take_snapshot(self, now_s: float) -> list[Effect]:
        return self._recorded(now_s, (SNAPSHOT, None), lambda: self.inner.take_snapshot(now_s))

    def offer_charter(self, envelope: Envelope, now_s: float) -> list[Effect]:
        """Raises RemoteError if it is not valid."""
        told = (CHARTER, envelope)
        return self._recorded(now_s, told, lambda: self.inner.offer_charter(envelope, now_s))

    def _recorded(
        self, at_s: float, told: Event | tuple[str, object], act: Callable[[], list[Effect]]
    ) -> list[Effect]:
        made: list[Effect] | str | None = None
        try:
            made = act()
            return made
        finally:
            raised = sys.exc_info()[0]
            if made is None:
                made = raised.__name__ if raised is not None else ""
            self._record(at_s, told, made)

    def _record(
        self, at_s: float, told: Event | tuple[str, object], made: list[Effect] | str
    ) -> None:
        signatures = self._signer.take()
        if not self._sink.is_running:
            return
        try:
            kind, content = written(told)
            outcome, decided = digest_of(made)
        except (TypeError, msgspec.MsgspecError, RemoteError) as error:
            self._sink.stop(f"{type(told).__name__} cannot be recorded: {error}")
            return
        frame = Input(at_s, kind, content, outcome, decided, signatures)
        size = len(content) + 96 + sum(len(one) for _, one in decided)
        self._sink.put(lambda: frame, size)
        self._told_bytes += size
        if self._told_bytes >= self._sink.state_every_bytes:
            self._told_bytes = 0
            self._keep_state(at_s)

    def _keep_state(self, at_s: float) -> None:
        """Put the machine's state on the tape, unless it would take a good part of it."""
        machine = self.inner
        room = min(self._sink.state_every_bytes, STATE_BYTES_MAX) // 2
        if 2 * machine.recent.recent_bytes > room or machine.effects.out:
            return
        try:
            state = write_machine(machine)
        except (TypeError, msgspec.MsgspecError) as error:
            log.warning("the tape keeps no states to replay from: %s", error)
            self._told_bytes = -NEVER_BYTES
            return
        if len(state) <= room:
            frame = MachineState(at_s, encode(machine.setup.genesis), state)
            self._sink.put(lambda: frame, len(frame.genesis) + len(state))


@dataclass(frozen=True, slots=True)
class PayloadTape:
    """Keeps what was merged: the pushes' bytes, and the version that each merge began from."""

    sink: Sink

    def keep_push(self, job: FetchPush, payload: bytes | memoryview) -> None:
        header = job.header
        push = (job.peer, header.incarnation, header.sequence, header.fragment, header.codec)
        self.sink.put(lambda: PushPayload(*push, bytes(payload)), len(payload))

    def keep_base(self, fragment: int, bank: MergeBank) -> None:
        """The version that a merge is about to begin from; its arrays never change."""
        base = bank.current(fragment)
        is_chained = base.residual is not None
        parts: tuple[tuple[BasePart, F32 | None], ...] = (
            ("theta", base.theta),
            ("momentum", base.momentum),
            ("residual", base.residual),
        )
        for part, values in parts:
            if values is not None:
                made = partial(_base, fragment, base.number, part, values, is_chained=is_chained)
                self.sink.put(made, values.nbytes)
        for part, (codec, payload) in zip(MERGED_PARTS, bank.lately(fragment)[::-1], strict=False):
            kept = partial(_merged, fragment, base.number, part, payload, codec, is_chained)
            self.sink.put(kept, len(payload))


def payload_tape(sink: Sink, mib_max: int, parameters: int) -> PayloadTape | None:
    """Where pushes are kept, if the tape may be large enough for this model."""
    needed = mib_for_payloads(parameters)
    if sink.is_running and needed > mib_max:
        log.info("the tape keeps no pushes; this model needs --tape-mib-max %d", needed)
        return None
    return PayloadTape(sink)


def _base(fragment: int, version: int, part: BasePart, values: F32, *, is_chained: bool) -> Base:
    content = values.astype("<f4", copy=False).tobytes()
    return Base(fragment, version, part, is_chained, content)


def _merged(
    fragment: int,
    version: int,
    part: BasePart,
    payload: bytes | memoryview,
    codec: CodecName,
    is_chained: bool,
) -> Base:
    return Base(fragment, version, part, is_chained, bytes(payload), codec)


# Machines to bytes and back.


def seeds_of(setup: SyncerSetup, recovered: Recovered, rng_seed: bytes) -> bytes:
    """All that a machine is built from, in bytes."""
    start = recovered.log
    return msgspec.msgpack.encode(
        Seeds(
            project=setup.project,
            charter=setup.charter_envelope,
            layout=setup.layout_digest,
            numels=setup.numels,
            key=setup.signer.key,
            wall_offset_s=setup.wall_offset_s,
            rng_seed=rng_seed,
            nonce=setup.nonce,
            addresses=setup.addresses,
            summary=recovered.state.summary(),
            floor=(start.floor.index, start.floor.term, start.floor.head),
            log_charter=start.charter,
            admissions=tuple(start.admissions.values()),
            records=tuple(start.records),
            certificates=tuple(start.certificates),
            ballot=recovered.ballot,
            held=tuple(recovered.held),
            recent=tuple(recovered.recent),
            origins=recovered.origins,
            snapshots=recovered.snapshots,
            name=setup.name,
        )
    )


def read_seeds(encoded: bytes) -> Seeds:
    """Raises MalformedMessage."""
    return _decoded(encoded, Seeds)


def built_from(
    seeds: Seeds, genesis: Genesis, signer: Signer, verify: Verify
) -> tuple[SyncerSetup, Recovered]:
    """What the recorded machine was built from, with another signer."""
    setup = SyncerSetup(
        project=seeds.project,
        genesis=genesis,
        charter=wire.decode(seeds.charter.payload, Charter),
        charter_envelope=seeds.charter,
        layout_digest=seeds.layout,
        numels=seeds.numels,
        signer=signer,
        verify=verify,
        wall_offset_s=seeds.wall_offset_s,
        rng=random.Random(seeds.rng_seed),
        nonce=seeds.nonce,
        addresses=seeds.addresses,
        name=seeds.name,
    )
    start = LogStart(
        Floor(*seeds.floor),
        seeds.log_charter,
        {one.key: one for one in seeds.admissions},
        seeds.records,
        seeds.certificates,
    )
    state = SwarmState.restore(seeds.summary, genesis.data.block_sequences)
    return setup, Recovered(
        state,
        start,
        seeds.ballot,
        list(seeds.held),
        list(seeds.recent),
        dict(seeds.origins),
        seeds.snapshots,
    )


def written(told: Event | tuple[str, object]) -> tuple[str, bytes]:
    """An input as a word and bytes."""
    match told:
        case (str() as kind, content):
            return kind, msgspec.msgpack.encode(content)
        case Received(peer, message):
            return "Received", peer + wire.encode(message)
        case JobDone(number, result):
            name = type(result).__name__
            return "JobDone", msgspec.msgpack.encode([number, name, _plain(result)])
    return type(told).__name__, msgspec.msgpack.encode(_plain(told))


def read_event(kind: str, content: bytes) -> Event:
    """The event that `written` wrote. Raises MalformedMessage."""
    if kind == "Received":
        return Received(content[:32], wire.decode_message(content[32:]))
    if kind == "JobDone":
        number, name, values = _decoded(content, tuple[int, str, dict[str, Any]])
        found = _RESULTS.get(name)
        if found is None:
            raise MalformedMessage(f"no job answers with {name}")
        result = decoders.convert(values, found, builtin_types=(bytes,))
        return JobDone(JobId(number), result)
    found = _EVENTS.get(kind)
    if found is None:
        raise MalformedMessage(f"there is no input {kind}")
    event: Event = _decoded(content, found)
    return event


def read_external(kind: str, content: bytes) -> tuple[bytes, str, str] | Envelope | None:
    """What the machine was told besides events. Raises MalformedMessage."""
    if kind == FAULT:
        return _decoded(content, tuple[bytes, str, str])
    return _decoded(content, Envelope) if kind == CHARTER else None


def read_decision(kind: str, content: bytes) -> Merge | Keep:
    """Raises MalformedMessage."""
    return _decoded(content, Merge) if kind == "Merge" else _decoded(content, Keep)


def digest_of(made: list[Effect] | str) -> tuple[bytes, tuple[tuple[str, bytes], ...]]:
    """A digest of effects, or of the error raised, and those of them that decide something."""
    if isinstance(made, str):
        return _outcome(made.encode()), ()
    decided: list[tuple[str, bytes]] = []
    parts: list[bytes] = []
    message: object = None
    for effect in made:
        if isinstance(effect, Send) and (effect.message is message or effect.message == message):
            # One record goes to hundreds of learners: after the first it is only said to whom.
            name, content = "Send", effect.peer
        else:
            message = effect.message if isinstance(effect, Send) else message
            name, content = told_effect(effect)
        parts += (len(name).to_bytes(2, "big"), name.encode())
        parts += (len(content).to_bytes(8, "big"), content)
        if name in DECISIONS:
            decided.append((name, content))
    return _outcome(b"".join(parts)), tuple(decided)


def _outcome(told: bytes) -> bytes:
    return blake3(told, derive_key_context="shoal 1 tape outcome").digest(OUTCOME_BYTES)


def told_effect(effect: Effect) -> tuple[str, bytes]:
    """An effect as a word and bytes; one encoding for one effect."""
    match effect:
        case Send(peer, message):
            return "Send", peer + msgspec.msgpack.encode(message)
        case Start(number, job):
            encoded = msgspec.msgpack.encode(_plain(job))
            name = type(job).__name__
            return (name, encoded) if name in DECISIONS else (f"{number} {name}", encoded)
        case Do(action):
            return type(action).__name__, msgspec.msgpack.encode(_plain(action))
        case Emit(fact):
            return type(fact).__name__, msgspec.msgpack.encode(_plain(fact))
    return type(effect).__name__, msgspec.msgpack.encode(_plain(effect))


def _plain(value: object) -> object:
    """A dataclass as its fields: in their order, without walking into them."""
    if is_dataclass(value):
        return {one.name: getattr(value, one.name) for one in fields(value)}
    return value


def _decoded(content: bytes, kind: type[T]) -> T:
    try:
        return decoders.msgpack_decoder(kind).decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MalformedMessage(f"not a {getattr(kind, '__name__', kind)}: {error}") from error


_EVENTS: Final[dict[str, Any]] = {
    kind.__name__: kind
    for kind in (
        events.Started,
        events.PeerUp,
        events.PeerDown,
        events.Woke,
        events.StopAsked,
    )
}
_RESULTS: Final[dict[str, Any]] = {
    kind.__name__: kind
    for kind in (
        events.Failed,
        jobs.WeightsMade,
        jobs.PushFetched,
        jobs.PushRefused,
        jobs.Merged,
        jobs.MergeTaken,
        jobs.PayloadKept,
        jobs.PayloadNotWritten,
        jobs.Replayed,
        jobs.Installed,
        jobs.Repaired,
        jobs.CheckpointWritten,
        jobs.SnapshotWritten,
        jobs.SnapshotKept,
        raft_jobs.Appended,
        raft_jobs.BallotSaved,
        raft_jobs.ProofsKept,
    )
}
