"""The audit: certificates proven anew, and the very machine re-run on what it was told.

Needs no key and no disk. Every input of the tape goes to a `SyncerMachine` built from what the
tape's first frame says; what it makes of each must have the recorded digest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import msgspec

from host.tape.tape_file import TapeLife
from node.machine.index_proof import read_charter
from protocol import decoders, wire
from protocol.errors import MalformedMessage, RemoteError, UserError
from protocol.ids import short
from protocol.log.records import CharterAdopted, FragmentMerged, Record, open_record
from protocol.machine import Effect, JobDone
from protocol.messages import Envelope
from protocol.project import Charter, Genesis, project_id
from protocol.signing import Verify, verify_ed25519
from protocol.tape import Began, Frame, Input, MachineState, Preface, TapeDamaged, TapeEnded
from simulator.replay.divergence import Diverged, difference, name_of
from simulator.replay.round_history import RoundHistories
from simulator.stand_ins.tiny import sim_verify
from syncer_node.machine.jobs import Keep, Merge, Merged
from syncer_node.machine.syncer import SyncerMachine
from syncer_node.storage import tape_recorder
from syncer_node.storage.machine_state import read_machine

BUGS = (AssertionError, LookupError, ValueError, TypeError, AttributeError, ArithmeticError)
"""What a machine that is wrong may raise."""


class ReplayedFault(RemoteError):
    """An offence that was found while reading a peer's bytes, before it came to the machine."""


@dataclass(slots=True)
class ReplaySigner:
    """Gives out recorded signatures, each only for what it really signs."""

    key: bytes
    verify: Verify
    left: list[bytes] = field(default_factory=list)
    """What was signed while the input at hand was handled, and is not signed again yet."""

    def sign(self, message: bytes) -> bytes:
        if not self.left or not self.verify(self.key, message, self.left[0]):
            raise NotSigned
        return self.left.pop(0)


class NothingToBeginFrom(Exception):
    """The beginning of a tape was dropped, and no state is left on it."""


class NotSigned(Exception):
    """The replay signs something that the recorded machine did not."""


@dataclass(slots=True)
class AuditedMerge:
    """A merge that was decided, and what came of it."""

    job: Merge
    result: Merged | None = None
    record: FragmentMerged | None = None
    """Once it was certified."""
    index: int = 0
    place: str = ""


@dataclass(slots=True)
class Audit:
    """What an audit of one life found."""

    preface: Preface
    genesis: Genesis | None = None
    charter: Charter | None = None
    """In force where the replay began."""
    events: int = 0
    rounds_before: int = 0
    """Rounds that were committed before the replay began."""
    is_beheaded: bool = False
    """The first events were dropped to make room: the replay begins from a state on the tape."""
    records: dict[int, bytes] = field(default_factory=dict)
    """Hash of every certified record, by index."""
    rounds: dict[int, FragmentMerged] = field(default_factory=dict)
    """Committed rounds by log index, whoever led."""
    merges: list[AuditedMerge] = field(default_factory=list)
    """Merges of this host, in the order in which they were decided."""
    histories: RoundHistories = field(default_factory=RoundHistories)
    ended: str = ""
    """Why the tape stopped before the daemon did."""
    is_cut_short: bool = False
    """The rounds behind `--until` were not looked at."""


def audit(
    life: TapeLife,
    *,
    until: int | None = None,
    on_event: Callable[[int], None] = lambda _: None,
) -> Audit:
    """Re-run one life of a syncer. Raises Diverged, TapeDamaged or UserError.

    until: stop once this round is committed. on_event: told now and then how far it is.
    """
    return _Auditor(life, until, on_event).run()


class _Auditor:
    def __init__(self, life: TapeLife, until: int | None, on_event: Callable[[int], None]) -> None:
        self.life = life
        self.until = until
        self.on_event = on_event
        self.verify = verify_ed25519 if life.preface.scheme == "ed25519" else sim_verify
        self.found = Audit(life.preface)
        self.signer = ReplaySigner(life.preface.key, self.verify)
        self.machine: SyncerMachine
        self.charter: Charter
        """In force behind the newest certified record."""
        self.asked: dict[int, AuditedMerge] = {}
        """Merges by job number."""

    def run(self) -> Audit:
        frames = self.life.frames("events")
        place, frame = next(frames, ("", TapeEnded("nothing is on it")))
        if isinstance(frame, Began):
            self._begin(place, frame)
        else:
            self._begin_behind(place, frame, frames)
        self.found.charter = self.machine.setup.charter
        self.found.rounds_before = self.machine.state.global_step
        for place, frame in frames:
            if isinstance(frame, TapeEnded):
                self.found.ended = frame.reason
                continue
            if isinstance(frame, MachineState):
                continue  # For those who begin here.
            if not isinstance(frame, Input):
                raise TapeDamaged(f"{place}: {type(frame).__name__} does not belong there")
            self._input(place, frame)
            if self.found.events % 1000 == 0:
                self.on_event(self.found.events)
            if self._is_far_enough():
                self.found.is_cut_short = True
                break
        return self.found

    def _begin(self, place: str, frame: Began) -> None:
        """Build the machine as its host did."""
        try:
            seeds = tape_recorder.read_seeds(frame.setup)
        except MalformedMessage as error:
            raise TapeDamaged(f"{place}: its beginning cannot be read: {error}") from error
        genesis = self._genesis(place, frame.genesis, seeds.project)
        self.signer.left = list(frame.signatures)
        self._prove_charter(place, genesis, seeds.charter)
        setup, recovered = tape_recorder.built_from(seeds, genesis, self.signer, self.verify)
        charters = seeds.summary.charters
        self.charter = setup.charter
        if charters:
            self.charter = wire.decode(charters[-1].charter.payload, Charter)
        self.machine = SyncerMachine(setup, recovered)

    def _begin_behind(self, place: str, frame: Frame, frames: Iterator[tuple[str, Frame]]) -> None:
        """Go on from the first state that is left, if the beginning was dropped."""
        if self.life.has_begin():
            raise TapeDamaged(f"{place or self.life.preface.name}: the tape has no beginning")
        while not isinstance(frame, MachineState):
            place, frame = next(frames, (place, TapeEnded("")))
            if isinstance(frame, TapeEnded):
                raise NothingToBeginFrom
        genesis = self._genesis(place, frame.genesis, self.life.preface.project)
        try:
            self.machine = read_machine(
                frame.machine,
                project=self.life.preface.project,
                genesis=genesis,
                signer=self.signer,
                verify=self.verify,
            )
        except MalformedMessage as error:
            raise TapeDamaged(f"{place}: {error}") from error
        self.found.is_beheaded = True
        state, leadership = self.machine.state, self.machine.leadership
        setup = self.machine.setup
        for envelope in (setup.charter_envelope, *(one.charter for one in state.charters)):
            self.charter = self._prove_charter(place, genesis, envelope)
        if leadership is not None:
            sessions = leadership.members.sessions
            self.found.histories.names = {key: one.name for key, one in sessions.items()}
        self.asked = {
            number: AuditedMerge(job, place=place)
            for number, job in self.machine.effects.jobs.items()
            if isinstance(job, Merge)
        }
        self.found.merges = list(self.asked.values())

    def _prove_charter(self, place: str, genesis: Genesis, envelope: Envelope) -> Charter:
        """The charter in an envelope on the tape, if the project's owner signed it."""
        project = self.life.preface.project
        try:
            return read_charter(envelope, project=project, owner=genesis.owner, verify=self.verify)
        except RemoteError as error:
            raise TapeDamaged(f"{place}: its charter is not the owner's: {error}") from error

    def _genesis(self, place: str, encoded: bytes, project: bytes) -> Genesis:
        try:
            genesis = decoders.msgpack_decoder(Genesis).decode(encoded)
        except msgspec.DecodeError as error:
            raise TapeDamaged(f"{place}: its genesis cannot be read: {error}") from error
        preface = self.life.preface
        if not project_id(encoded) == project == preface.project:
            raise UserError(
                f"{place}: the tape says it is of project {short(preface.project)}, but what it "
                "was recorded of is another project."
            )
        self.found.genesis = genesis
        return genesis

    def _input(self, place: str, one: Input) -> None:
        found = self.found
        found.events += 1
        name = name_of(found.events, one)
        for kind, content in one.decided:
            if kind == "Keep":
                self._prove(name, place, content)
        self.signer.left = list(one.signatures)
        try:
            made = self._handle(one)
        except NotSigned:
            raise Diverged(
                name, place, "the replay signs something that was not signed in the recorded run"
            ) from None
        except MalformedMessage as error:
            raise TapeDamaged(f"{place}: {name} cannot be read: {error}") from error
        outcome, decided = tape_recorder.digest_of(made)
        told = difference(one.decided, decided)
        if not told and outcome != one.outcome:
            words = made if isinstance(made, str) else f"{len(made)} effects"
            told = f"what it set in motion is not what was recorded (the replay: {words})"
        if not told and self.signer.left:
            told = f"{len(self.signer.left)} recorded signatures were not made"
        if told:
            raise Diverged(name, place, told)
        if not isinstance(made, str):
            self._note(one, made, decided, place)

    def _handle(self, one: Input) -> list[Effect] | str:
        """What the machine makes of it, or the name of the error that it raises."""
        machine = self.machine
        try:
            if one.kind == tape_recorder.FAULT:
                told = tape_recorder.read_external(one.kind, one.content)
                assert isinstance(told, tuple)
                error = ReplayedFault(told[2])
                error.reason = told[1]
                return machine.fault(told[0], error)
            if one.kind == tape_recorder.DRAIN:
                return machine.drain(one.at_s)
            if one.kind == tape_recorder.SNAPSHOT:
                return machine.take_snapshot(one.at_s)
            if one.kind == tape_recorder.CHARTER:
                envelope = tape_recorder.read_external(one.kind, one.content)
                assert isinstance(envelope, Envelope)
                return self._offer(machine, envelope, one.at_s)
            event = tape_recorder.read_event(one.kind, one.content)
        except msgspec.MsgspecError as error:
            raise MalformedMessage(str(error)) from error
        try:
            return machine.handle(event, one.at_s)
        except BUGS as error:
            # The recorded machine may have failed in just this way: the digests tell.
            return type(error).__name__

    def _offer(self, machine: SyncerMachine, envelope: Envelope, at_s: float) -> list[Effect] | str:
        try:
            return machine.offer_charter(envelope, at_s)
        except RemoteError as error:
            return type(error).__name__

    def _prove(self, name: str, place: str, content: bytes) -> None:
        """A recorded certificate, checked without the machine."""
        kept = tape_recorder.read_decision("Keep", content)
        assert isinstance(kept, Keep)
        trouble = None
        for charter in (self.charter, self.machine.setup.charter):
            try:
                record = open_record(kept.entry, self.life.preface.project, charter, self.verify)
                break
            except RemoteError as error:
                trouble = error
        else:
            raise Diverged(name, place, f"record {kept.index} is not certified: {trouble}")
        self.found.records[record.index] = hashlib.blake2b(
            kept.entry.record, digest_size=16
        ).digest()
        if isinstance(record.body, CharterAdopted):
            self.charter = wire.decode(record.body.charter.payload, Charter)
        if isinstance(record.body, FragmentMerged):
            self._certified(record, record.body, place)

    def _certified(self, record: Record, merged: FragmentMerged, place: str) -> None:
        self.found.rounds[record.index] = merged
        for one in reversed(self.found.merges):
            result = one.result
            if result is not None and one.record is None and result.payload == merged.payload:
                one.record, one.index, one.place = merged, record.index, place
                return

    def _note(
        self, one: Input, made: list[Effect], decided: tuple[tuple[str, bytes], ...], place: str
    ) -> None:
        """What is needed later: merges with their results, and the history of each round."""
        event = None
        if one.kind in ("Received", "JobDone"):
            event = tape_recorder.read_event(one.kind, one.content)
        if isinstance(event, JobDone) and isinstance(event.result, Merged):
            asked = self.asked.pop(event.id, None)
            if asked is not None:
                asked.result = event.result
        for effect in made:
            job = getattr(effect, "job", None)
            if isinstance(job, Merge):
                merge = AuditedMerge(job, place=place)
                self.asked[getattr(effect, "id")] = merge  # noqa: B009 -- a Start has one
                self.found.merges.append(merge)
        self.found.histories.note(one.at_s, event, made, self.machine)

    def _is_far_enough(self) -> bool:
        until, rounds = self.until, self.found.rounds
        return until is not None and bool(rounds) and rounds[max(rounds)].round >= until
