"""Voters in virtual time: the real election and replication, a disk that survives, no learners.

Syncers among them write merges that name payloads, so that records wait for bytes as in a swarm.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from protocol import wire
from protocol.log import records
from protocol.log.batching import Telling, apart, telling
from protocol.log.state import SwarmState
from protocol.machine import Effect, Event, Failed, Send, Start
from protocol.messages import (
    AdoptedCharter,
    Certificate,
    Certified,
    CertifiedRecord,
    Cursor,
    GiveVote,
    StateOffer,
)
from protocol.project import Charter, Durability, Origin, Voter
from simulator.checkers.council import CouncilChecker
from simulator.hosts.voter_disk import VoterDisk
from simulator.hosts.witness import SimWitness
from simulator.stand_ins.tiny import SimSigner, TinyProject, charter_envelope, tiny_project
from simulator.virtual.world import World
from syncer_node.machine.witness import WitnessMachine
from syncer_node.raft.ballot import Ballot
from syncer_node.raft.jobs import Append
from syncer_node.raft.log import ENTRIES_KEPT, Entry

FSYNC_S = 0.005
FETCH_S = 0.05
FETCH_RETRY_S = 0.5
PROPOSE_EVERY_S = 0.5
IN_FLIGHT_MAX = 4
NOTHING = b""
"""In every payload: nobody here merges tensors."""


@dataclass(frozen=True, slots=True)
class FetchBytes:
    """Fetch the payload that a record names."""

    index: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class BytesKept:
    """The payload is on this disk."""


class CouncilMachine(WitnessMachine):
    """A witness, or a syncer that writes merges without anybody to train for."""

    host: CouncilVoter

    def can_lead(self) -> bool:
        return not self.raft.replication.store_trouble and not self.is_installing

    def on_elected(self) -> None:
        self.host.proposed_s = self._now_s
        self.raft.take_seat()

    def on_deposed(self, reason: str) -> None:
        pass

    def look(self) -> None:
        super().look()
        raft, host = self.raft, self.host
        if not raft.is_leading:
            return
        if host.is_draining or raft.election.is_drained:
            raft.hand_over(self._now_s)
            return
        is_due = self._now_s - host.proposed_s >= host.propose_every_s
        if is_due and raft.log.last - raft.log.certified < IN_FLIGHT_MAX:
            host.proposed_s = self._now_s
            raft.propose(host.new_merge())

    def fetch_payload(self, entry: Entry) -> bool:
        body = entry.record.body
        if not self.host.is_syncer or not isinstance(body, records.FragmentMerged):
            return False
        if body.payload in self.host.disk.payloads:
            return False
        self.effects.start(FetchBytes(entry.record.index, body.payload))
        return True

    def _other_job_done(self, job: object, result: object) -> None:
        if not isinstance(job, FetchBytes):
            return
        log = self.raft.log
        body = log.entry(job.index).record.body if log.holds(job.index) else None
        is_needed = isinstance(body, records.FragmentMerged) and body.payload == job.digest
        if isinstance(result, BytesKept) and is_needed:
            self.raft.payload_here(job.index, self._now_s)
        elif is_needed:
            self.effects.start(job)

    def state_to_tell(self, peer: bytes) -> Telling | None:
        """As a syncer does, with a summary folded from what the council knows to be certified."""
        context, disk = self.raft.context, self.host.disk
        known = len(self.host.council.checker.branches[context.epoch].records)
        index = min(context.log.certified, known)  # What is applied just now comes after this.
        is_at_hand = context.log.holds(index)
        entry = context.log.entry(index).certified if is_at_hand else disk.entry(index)
        if entry is None:
            return None
        state = self.host.council.state_at(index, context.epoch)
        _, summary = apart(state.summary())
        offer = StateOffer(context.epoch, context.term, entry, summary)
        return telling([], state.charters, {}, offer)


class CouncilVoter(SimWitness):
    """A voter whose crashes tear writes, and whose process may stand still."""

    machine_class = CouncilMachine
    witness: CouncilMachine

    def __init__(self, council: Council, signer: SimSigner, name: str) -> None:
        self.council = council
        on_certified = council.checker.on_certified
        super().__init__(council.world, council.tiny, signer, name=name, observer=on_certified)
        self.fsync_s = FSYNC_S
        self.fetch_s = FETCH_S
        self.propose_every_s = PROPOSE_EVERY_S
        self.proposed_s = 0.0
        self._written_s = 0.0
        self.is_draining = False
        self.is_gone = False
        """Nobody starts it again."""
        self._backlog: list[Event] | None = None
        """What happened while the process was stopped; None while it runs."""
        self._writes: list[object] = []
        """On their way to the disk: a crash may catch any of them."""

    @property
    def is_syncer(self) -> bool:
        """By the newest charter that its disk knows of."""
        voter = wire.decode(self.disk.charter.payload, Charter).voter(self.key)
        return voter is not None and voter.role == "syncer"

    @property
    def is_leading(self) -> bool:
        return self.machine is not None and self.raft.is_leading

    @property
    def is_paused(self) -> bool:
        return self._backlog is not None

    def build(self) -> WitnessMachine:
        machine = super().build()
        self.witness.host = self
        self.raft.log.entries_kept = self.council.entries_kept
        return machine

    def _empty_disk(self, ballot: Ballot) -> VoterDisk:
        return VoterDisk(ballot, self.council.envelope)

    def _proven_alone(self, entry: CertifiedRecord, index: int) -> None:
        self.council.checker.on_proven_alone(self, entry, index)

    def _keep_proof(self, certificate: Certificate) -> None:
        self.disk.keep(certificate)  # A crash takes the newest of them with it.

    # Faults.

    def crash(self) -> None:
        if self.is_up:
            for job in self._writes:
                self._tear(job)
            self.disk.lose_power(self.chance.choice((0, 0, 1, 5)))
        self._writes, self._backlog, self._written_s = [], None, 0.0
        super().crash()

    def revive(self) -> None:
        if not self.is_gone:
            super().revive()

    def unwritten(self) -> None:
        """Nothing of what is on its way to the disk arrives there: a crash comes now."""
        self._writes = []

    def _tear(self, job: object) -> None:
        """The crash catches a write: it is done, not done, or half done."""
        if isinstance(job, Append):
            kept = self.chance.randint(-1, len(job.records))
            if kept >= 0:
                self.disk.write(Append(job.after, job.records[:kept]))
        elif self.chance.random() < 0.5:
            self.disk.write(job)

    def pause(self) -> None:
        """SIGSTOP."""
        if self.is_up and self._backlog is None:
            self._backlog = []

    def resume(self) -> None:
        """SIGCONT: everything that happened meanwhile is found at once."""
        backlog, self._backlog = self._backlog or [], None
        for event in backlog:
            self.take(event)

    def clone(self) -> CouncilVoter:
        """A second host with this key and this disk; dialled by nobody, but it dials."""
        twin = CouncilVoter(self.council, self.signer, f"{self.name}-clone")
        twin.disk = copy.deepcopy(self.disk)
        self.world.hosts[self.key] = self
        return twin

    def take(self, event: Event) -> None:
        if self._backlog is not None and self.is_up:
            self._backlog.append(event)
        else:
            super().take(event)

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Send(peer, GiveVote() as vote):
                self.council.checker.on_vote(self, peer, vote)
            case Send(_, Certified(_, _, certificates)):
                for certificate in certificates:
                    self.council.checker.on_proof(self, certificate)
        super()._carry_out(effect)

    # Jobs.

    def run_job(self, start: Start, answer: Callable[[object], None]) -> None:
        job = start.job
        if isinstance(job, FetchBytes):
            self._fetch(job, answer)
            return
        life = self.life
        self._writes.append(job)

        def finish() -> None:
            if self.life != life:
                return
            self._writes.remove(job)
            result = self.disk.write(job)
            if isinstance(job, Append):
                self.council.checker.on_stored(self, job)
            answer(result)

        # One thread writes, in the order it was asked to.
        self._written_s = max(self._written_s, self.world.now_s) + self.fsync_s
        self.world.at(self._written_s, finish)

    def _fetch(self, job: FetchBytes, answer: Callable[[object], None]) -> None:
        def finish() -> None:
            for other in self.council.voters.values():
                if job.digest in other.disk.payloads and self.world.can_dial(self, other):
                    self.disk.payloads[job.digest] = NOTHING
                    answer(BytesKept())
                    return
            self.world.after(FETCH_RETRY_S, lambda: answer(Failed("nobody has the payload")))

        self.world.after(self.fetch_s, finish)

    def new_merge(self) -> records.FragmentMerged:
        """A merge that nobody made before, its payload on this disk only."""
        self.council.merges += 1
        name = f"{self.name} {self.council.merges}".encode()
        payload = hashlib.blake2b(name, digest_size=32).digest()
        self.disk.payloads[payload] = NOTHING
        part = records.Contribution(bytes(32), 1, 1, 0, 1, 1, 1.0, 1.0, 1.0, Cursor(0, 0))
        return records.FragmentMerged(
            round=self.council.merges,
            global_step=self.council.merges,
            fragment=0,
            version=self.council.merges,
            payload=payload,
            payload_bytes=1,
            codec="int4",
            learning_rate=0.7,
            momentum=0.5,
            state=records.StateDigests(payload, payload),
            contributions=(part,),
        )


class Council:
    """The voters of one project, and who watches them."""

    def __init__(
        self,
        seed: int,
        *,
        syncers: int = 3,
        witnesses: int = 0,
        spares: int = 0,
        durability: Durability = "standby",
    ) -> None:
        """spares: hosts that are no voters yet."""
        self.world = World(seed)
        names = [f"syncer-{at}" for at in range(syncers)]
        names += [f"witness-{at}" for at in range(witnesses)]
        signers = {name: SimSigner(name) for name in names}
        voters = tuple(
            Voter(signer.key, "syncer" if "syncer" in name else "witness", 90 - at)
            for at, (name, signer) in enumerate(signers.items())
        )
        self.tiny: TinyProject = tiny_project(
            voters[0].key, seed=1, voters=voters, durability=durability
        )
        self.charter = self.tiny.charter
        self.envelope = charter_envelope(self.tiny)
        self.merges = 0
        self.tell: Callable[[str], None] = lambda words: None
        """Told in words what happens to the voters."""
        self.entries_kept = ENTRIES_KEPT
        self.voters: dict[bytes, CouncilVoter] = {}
        self.checker = CouncilChecker(self.world, self.charter, self.voters)
        for name, signer in signers.items():
            self.voters[signer.key] = CouncilVoter(self, signer, name)
        for at in range(spares):
            signer = SimSigner(f"spare-{at}")
            self.voters[signer.key] = CouncilVoter(self, signer, f"spare-{at}")

    def boot(self) -> None:
        for voter in self.voters.values():
            voter.boot()

    def named(self, name: str) -> CouncilVoter:
        return next(voter for voter in self.voters.values() if voter.name == name)

    def leaders(self) -> list[CouncilVoter]:
        """Hosts that believe to lead."""
        return [voter for voter in self.voters.values() if voter.is_up and voter.is_leading]

    def leader(self) -> CouncilVoter:
        """The only leader."""
        (leader,) = self.leaders()
        return leader

    def run(self, seconds: float, *, stop: Callable[[], bool] | None = None) -> None:
        self.world.run(self.world.now_s + seconds, stop=stop)

    # The owner.

    def revise(self, *voters: Voter) -> None:
        """The owner signs a newer charter, and brings it to every host that is up."""
        charter = msgspec.structs.replace(
            self.charter, revision=self.charter.revision + 1, voters=voters
        )
        self.charter = charter
        self.envelope = charter_envelope(self.tiny, charter)
        self.bring_charter()

    @property
    def origin_index(self) -> int:
        """Where the newest epoch began."""
        return self.charter.origin.index if self.charter.origin is not None else 0

    def begin_epoch(self, origin: Origin, *voters: Voter) -> None:
        """The owner voids what lies behind this record and names who votes from now on."""
        charter = msgspec.structs.replace(self.charter, epoch=self.charter.epoch + 1, origin=origin)
        self.checker.begin_epoch(
            msgspec.structs.replace(charter, revision=charter.revision + 1, voters=voters)
        )
        self.charter = charter
        self.revise(*voters)

    def bring_charter(self) -> None:
        for host in self.voters.values():
            if not host.is_up:
                host.disk.charter = self.envelope
            elif not host.is_paused:
                host.take_charter(self.envelope)

    def state_at(self, index: int, epoch: int) -> SwarmState:
        """The part of the state at a certified record that a voter needs."""
        state = SwarmState(self.tiny.genesis.data.block_sequences)
        branch = self.checker.branches[epoch]
        for record in branch.records[:index]:
            match record.body:
                case records.CharterAdopted(envelope):
                    state.charters.append(AdoptedCharter(record.index, envelope))
                case records.VotersAdmitted(voters):
                    state.admissions.update({one.key: one for one in voters})
            state.index, state.term, state.epoch = record.index, record.term, record.epoch
        state.head = branch.history[index]
        return state
