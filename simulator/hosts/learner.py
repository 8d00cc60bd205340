"""Simulated learners: the daemon's machine and bank, with virtual IO around them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from host.bulk.blob_store import BlobStore
from host.tape.taping import NoTape
from node.download.assembly import Assembly
from node.machine import jobs
from node.machine.bookmark import Bookmark, decoded, encoded
from node.machine.context import LearnerSetup
from node.machine.learner import LearnerMachine
from node.machine.snapshot_participant import RESTART_EXIT
from node.trainer_client.fragment_bank import FragmentBank
from node.trainer_client.tape import Sink, TrainerTape, applied, replay_class, snapshot
from protocol import wire
from protocol.errors import CorruptState
from protocol.fragments import Layout
from protocol.log.receipts import Credit
from protocol.log.records import StateDigests, is_elected
from protocol.machine import Failed, Note, Start
from protocol.messages import Envelope
from protocol.numerics.buffers import F32
from protocol.numerics.codecs import NonFinite
from protocol.project import Charter
from simulator.hosts.fetcher import SimFetcher
from simulator.hosts.moments import Answer, SimMoments
from simulator.hosts.parts import SimParts
from simulator.hosts.payloads import REFUSED, SimPayloads
from simulator.hosts.prober import SimProber
from simulator.hosts.syncer import SimSyncer
from simulator.stand_ins.backends import Backend
from simulator.stand_ins.tiny import VIRTUAL, SimSigner, TinyProject, TinyTrainer, sim_verify
from simulator.virtual.nodes import Speed, SpeedModel
from simulator.virtual.world import Host, World

TRAINER_START_S = 5.0
SUSPEND_S = 0.5


@dataclass(frozen=True, slots=True)
class Left:
    """What a learner that was told to stop keeps on its disk, until it is taken up."""

    bookmark: bytes
    arrays: dict[StateDigests, tuple[F32, F32]]

    @classmethod
    def of(cls, learner: LearnerMachine, bank: FragmentBank) -> Left | None:
        """Of one that stops now; None where there is nothing to go on from."""
        bookmark = learner.bookmark(bank.versions)
        if bookmark is None:
            return None
        arrays = {}
        for at, fragment in enumerate(bookmark.summary.fragments):
            held = bank.held(at)
            if held is not None and held.state == fragment.state:
                arrays[held.state] = (held.theta, held.momentum)
        return cls(encoded(bookmark), arrays)

    def read(self) -> Bookmark:
        return decoded(self.bookmark)


class SimLearner(Host):
    """A volunteer in virtual time."""

    is_hidden = False
    """Whether nobody can dial it; merged payloads pass between two such hosts by no relay."""

    def __init__(
        self,
        world: World,
        tiny: TinyProject,
        syncers: list[SimSyncer],
        *,
        number: int,
        speed: SpeedModel,
        backend: Backend,
        batch_sequences: int | None = None,
    ) -> None:
        name = f"learner-{number}"
        signer = SimSigner(name)
        super().__init__(world, signer.key, name)
        self.tiny = tiny
        self.syncer_hosts = syncers
        self.signer = signer
        self.backend = backend
        self.speed = Speed(speed, random.Random(f"speed {name} {world.seed}"))
        self.on_capture: list[Callable[[SimLearner, int, int, int, bytes], None]] = []
        """Told host, fragment, sequence, base version and payload of every push."""
        self.on_assign: list[Callable[[SimLearner, int], None]] = []
        """Told host and fragment when the inner loop restarts from a global value."""
        self.layout: Layout = syncers[0].layout
        self.chance = random.Random(f"{name} {world.seed}")
        self.blob_store = BlobStore(clock=lambda: self.world.now_s)
        self.bank: FragmentBank
        self.fetcher: SimFetcher
        self.payloads: SimPayloads
        self.trainer: TinyTrainer | None = None
        self.learner: LearnerMachine
        self.moments = SimMoments(self)
        self.parts = SimParts(self)
        self.prober = SimProber(self)
        self.incarnation = 0
        self.trainers = 0
        self.drops_error_feedback = False
        """When the next trainer begins."""
        self.trainer_number = 0
        """Of the trainer that runs; one that goes on from a part keeps its number."""
        self.reads: list[tuple[int, int, int]] = []
        """(incarnation, position, sequence) of everything any of its trainers read."""
        self.captures: dict[tuple[int, int], tuple[int, int]] = {}
        """(incarnation, sequence) of a push -> the trainer's number, and its local step then."""
        self.progress: list[float] = []
        """Every place on the learning-rate schedule that a trainer was told."""
        self.tape: Callable[[SimLearner], Sink] | None = None
        """Makes the tape of each life; None records nothing."""
        self.recorder = TrainerTape(NoTape())
        self.invite: Envelope | None = None
        """What its join link carries."""
        self.kept: list[tuple[float, Envelope, Envelope]] = []
        """When a receipt was kept, the receipt, and the charter that proves it; outlives crashes"""
        self.left: Left | None = None
        self.has_other_text = False
        """Whether what it reads is not the text that the project was signed with."""
        self.batch_sequences = batch_sequences
        """What its owner wants a local step to take; None: what the project's fewest are."""
        self.pushed: list[tuple[int, int]] = []
        """Fragment and payload bytes of every push that was encoded."""

    @property
    def step_s(self) -> float:
        """Mean seconds of a local step."""
        return self.speed.mean_s

    def build(self) -> LearnerMachine:
        self.blob_store = BlobStore(clock=lambda: self.world.now_s)
        self.bank = FragmentBank(self.layout, self.blob_store)
        self.trainer, self.drops_error_feedback = None, False
        if self.tape is not None:
            self.recorder = TrainerTape(self.tape(self), self.life)
        self.moments = SimMoments(self, stall_s=self.moments.stall_s)
        self.fetcher, self.payloads = SimFetcher(self), SimPayloads(self)
        start = self.parts.begin_life()
        self.incarnation = self.life
        if start is not None and start.part is not None:
            self.incarnation = start.part.incarnation
        setup = LearnerSetup(
            project=self.tiny.project,
            genesis=self.tiny.genesis,
            layout_digest=self.layout.digest,
            name=self.name,
            agent="simulator",
            incarnation=self.incarnation,
            parts=tuple(self.parts.disk),
            start=start,
            evaluates=True,
            micro_batch=None,
            signer=self.signer,
            verify=sim_verify,
            rng=random.Random(f"back-off {self.name} {self.world.seed} {self.life}"),
            invite=self.invite,
            credit=wire.decode(self.kept[-1][1].payload, Credit) if self.kept else None,
            batch_sequences=self.batch_sequences,
            bookmark=self.left.read() if self.left is not None and start is None else None,
        )
        self.learner = LearnerMachine(setup)
        return self.learner

    def crash(self) -> None:
        is_restart = self.stopped is not None and self.stopped.exit_code == RESTART_EXIT
        if is_restart and self.is_up:
            self.parts.next_start(self.learner.snapshot_participant.next_start)
        elif self.is_up and self.stopped is not None and self.stopped.exit_code == 0:
            self.left = Left.of(self.learner, self.bank)
        super().crash()
        if is_restart:
            self.world.after(0.2, lambda: None if self.is_up else self.boot())

    @property
    def is_void(self) -> bool:
        """Whether what it does is void: its owner went back, and it has not followed yet."""
        charter = self.learner.context.charter
        epoch = charter.epoch if charter is not None else 0
        return epoch < self.world.owner_epoch or self.learner.snapshot_participant.is_leaving

    def lose_trainer(self, *, is_out_of_memory: bool = False) -> None:
        """The trainer process dies; the daemon lives."""
        if self.is_up and self.trainer is not None:
            self.trainer = None
            self.bank.trainer_lost()
            self.moments.trainer_lost()
            self.take(Note(jobs.TrainerLost(is_out_of_memory, "killed")))

    def run_job(self, start: Start, answer: Callable[[object], None]) -> None:
        job, world = start.job, self.world
        match job:
            case jobs.FindSeat():
                world.after(2 * world.delay_s(), lambda: answer(self._find_seat()))
            case jobs.FetchState():
                kept = self.parts.install(job) or self._of_disk(job)
                if kept is not None:
                    world.after(0.0, lambda: answer(kept))
                    return
                numel = self.layout.fragments[job.fragment].numel
                self.fetcher.fetch(job, numel, lambda got: answer(self._install(job, got)))
            case jobs.Advance():
                self.payloads.fetch(job, answer)
            case jobs.StartTrainer():
                self.in_this_life(TRAINER_START_S, lambda: answer(self._start_trainer()))
            case jobs.SuspendTrainer():
                self.in_this_life(SUSPEND_S, lambda: answer(self._suspend_trainer()))
            case jobs.WakeTrainer():
                self.in_this_life(TRAINER_START_S, lambda: answer(self._wake_trainer()))
            case jobs.Deliver():
                self.command(lambda trainer: answer(self._deliver(job, trainer)), answer)
            case jobs.Capture():
                self.command(lambda trainer: answer(self._capture(job, trainer)), answer)
            case jobs.Evaluate() | jobs.ProbePush():
                self._measure(job, answer)
            case jobs.CutPart() | jobs.WritePart() | jobs.LoadPart():
                self.parts.run_job(job, answer)
            case _:
                self.moments.run_job(job, answer)

    def in_this_life(self, delay_s: float, work: Callable[[], None]) -> None:
        """Do this later, unless the host has died by then."""
        life = self.life
        self.world.after(delay_s, lambda: work() if self.life == life else None)

    def act(self, action: object) -> None:
        match action:
            case jobs.Freeze(index, fragment):
                self.bank.freeze(index, fragment)
            case jobs.Thaw(index):
                self.bank.thaw(index)
            case jobs.UseCharter() | jobs.NoteReached():
                self._note(action)
            case jobs.Settle(fragment, sequence, outcome):
                self._settle(fragment, sequence, is_merged=outcome == "merged")
            case jobs.Feed() | jobs.DropFed():
                self._feed(action)
            case jobs.SetProgress() | jobs.KeepReceipt():
                self._write_down(action)
            case jobs.ReplaceTrainer() | jobs.DropErrorFeedback():
                self._replace(action)
            case jobs.HoldSteps() | jobs.ReleaseSteps():
                if self.trainer is not None:
                    self.trainer.is_held = isinstance(action, jobs.HoldSteps)
                    self._step()
            case jobs.BeginSteps():
                if self.trainer is not None:
                    self.trainer.is_begun = True
                    self.trainer.ready_s = self.world.now_s
                    self._step()
            case _:
                self._let_go(action)

    def _replace(self, action: jobs.ReplaceTrainer | jobs.DropErrorFeedback) -> None:
        if isinstance(action, jobs.DropErrorFeedback):
            self.drops_error_feedback = True
        else:
            self.world.after(0.1, self.lose_trainer)

    def _let_go(self, action: object) -> None:
        if isinstance(action, jobs.ForgetProbe):
            self.prober.forget()
        else:
            self.moments.act(action)

    def _suspend_trainer(self) -> object:
        """The trainer stands still; what holds its state stands for the files."""
        if self.trainer is None:
            return Failed("the trainer ended")
        self.trainer.is_held = True
        return jobs.TrainerSuspended()

    def _wake_trainer(self) -> object:
        if self.trainer is None:
            return jobs.TrainerLost(False, "its suspended state is gone")
        self.trainer.is_held = False
        return jobs.TrainerReady("virtual", 1)

    def _note(self, action: jobs.UseCharter | jobs.NoteReached) -> None:
        match action:
            case jobs.UseCharter(charter):
                self.bank.charter = charter
                self.recorder.under(charter)
            case jobs.NoteReached(host):
                self.fetcher.planner.reached(host)

    def _settle(self, fragment: int, sequence: int, *, is_merged: bool) -> None:
        self.bank.settle(fragment, sequence, is_merged=is_merged)
        self.recorder.closed(fragment, sequence, is_merged=is_merged)

    def _feed(self, action: jobs.Feed | jobs.DropFed) -> None:
        if self.trainer is None:
            return
        if isinstance(action, jobs.DropFed):
            self.trainer.command(self.trainer.spans.clear)
            return
        # In their order: what is dropped at the next boundary is only what came before.
        self.trainer.command(partial(self.trainer.spans.extend, action.spans))
        self._step()

    def _write_down(self, action: jobs.SetProgress | jobs.KeepReceipt) -> None:
        if isinstance(action, jobs.SetProgress):
            self.progress.append(action.fraction)
        else:
            self.kept.append((self.world.now_s, action.receipt, action.charter))

    def _find_seat(self) -> object:
        """The newest proven leader that the table names, as the daemon's locator finds it."""
        seats = []
        for notice in self.syncer_hosts[0].notices.values():
            charter = wire.decode(notice.charter.payload, Charter)
            is_proven = is_elected(
                notice.key,
                epoch=notice.epoch,
                term=notice.term,
                votes=notice.votes,
                charter=charter,
                verify=sim_verify,
            )
            if is_proven and notice.until_s >= self.world.now_s:
                seats.append(jobs.SeatFound(notice.key, notice.charter, notice.epoch, notice.term))
        if not seats:
            return Failed("no syncer of this project has announced itself yet")
        return max(seats, key=lambda one: (one.epoch, one.term))

    def _others(self) -> list[SimLearner]:
        hosts = self.world.hosts.values()
        return [host for host in hosts if isinstance(host, SimLearner) and host is not self]

    def _reachable(self) -> list[SimLearner]:
        """Other learners, in random order."""
        others = [host for host in self._others() if self.world.can_reach(self, host)]
        self.chance.shuffle(others)
        return others

    def reachable(self) -> list[bytes]:
        return [host.key for host in self._reachable()]

    def stall_of(self, key: bytes) -> float:
        host = self.world.hosts[key]
        return host.moments.stall_s if isinstance(host, SimLearner) else 0.0

    def _donors(self) -> list[SimLearner | SimSyncer]:
        syncers = [one for one in self.syncer_hosts if self.world.can_reach(self, one)]
        return [*self._reachable(), *syncers]

    @property
    def has_some(self) -> bool:
        """Whether others can fetch some of the weights here."""
        return self.learner.fragment_sync.has_any or self.fetcher.assemblies.has_any

    def announced(self) -> tuple[list[bytes], list[bytes]]:
        """Learners that say that they hold all weights, and those that hold some."""
        others = [one for one in self._others() if one.is_up]
        holders = [one.key for one in others if one.learner.fragment_sync.is_held]
        some = [one.key for one in others if one.has_some]
        return holders, [key for key in some if key not in holders]

    def reach(self, key: bytes) -> BlobStore | None:
        host = self.world.hosts[key]
        assert isinstance(host, SimLearner | SimSyncer)
        return host.blob_store if self.world.can_reach(self, host) else None

    def given_by(self, key: bytes, digest: bytes) -> memoryview | int | None:
        """What somebody gives of weights: the blob, or which sections of its array are there; None
        where nobody answers."""
        host = self.world.hosts[key]
        assert isinstance(host, SimLearner | SimSyncer)
        if not self.world.can_reach(self, host):
            return None
        blob = host.blob_store.get(digest)
        if blob is None and isinstance(host, SimLearner):
            begun = host.fetcher.assemblies
            return begun.find(digest) or begun.held_sections(digest)
        return 0 if blob is None else blob

    def _of_disk(self, job: jobs.FetchState) -> jobs.StateFetched | None:
        """A fragment that a former life kept."""
        arrays = self.left.arrays.get(job.state) if self.left is not None else None
        if arrays is None:
            return None
        self.bank.install(job.fragment, job.version, job.state, *arrays)
        self._forget_left()
        return jobs.StateFetched(())

    def _forget_left(self) -> None:
        if min(self.bank.versions) >= 0:
            self.left = None

    def _install(self, job: jobs.FetchState, got: Assembly | str) -> object:
        if isinstance(got, str):
            return Failed(got)
        self.bank.install(job.fragment, job.version, job.state, *got.arrays())
        self.fetcher.assemblies.forget(job.fragment)  # The bank gives it from now on.
        self._forget_left()
        return jobs.StateFetched(tuple(got.sources.items()))

    def fetch_of_syncer(self, job: jobs.Advance, answer: Answer) -> None:
        """From who merged, the leader, other syncers, then learners: as the daemon asks."""
        world, merged = self.world, job.merged
        first = (merged.merger or self.learner.context.leader) if self._has_mergers else None
        donors = sorted(reversed(self._donors()), key=lambda donor: donor.key != first)
        donor = next((d for d in donors if d.blob_store.get(merged.payload) is not None), None)
        if donor is None:
            failed = Failed("no donor holds the payload")
            world.after(2 * world.delay_s(), lambda: answer(failed))
            return
        if isinstance(donor, SimSyncer) and not donor.may_give(self.key, merged.payload):
            world.after(2 * world.delay_s(), lambda: answer(REFUSED))
            return
        delay_s = world.transfer_s(donor.key, self.key, merged.payload_bytes)
        world.after(delay_s, lambda: answer(self._advance(job, donor)))

    def meets(self, key: bytes) -> bool:
        """Whether there can be a connection with another learner, or there is one."""
        other = self.world.hosts[key]
        assert isinstance(other, SimLearner)
        return self.reach(key) is not None and not (self.is_hidden and other.is_hidden)

    def may_be_given(self, key: bytes, payload: bytes) -> bool:
        """Whether another learner sends a merged payload now."""
        donor = self.world.hosts[key]
        return isinstance(donor, SimLearner) and donor.payloads.may_give(self.key, payload)

    def advance_with(self, job: jobs.Advance, key: bytes) -> object | None:
        """Take the outer step with what that host sent; None where it is not the payload."""
        donor = self.world.hosts[key]
        assert isinstance(donor, SimLearner | SimSyncer)
        advanced = self._advance(job, donor)
        return None if isinstance(advanced, Failed) else advanced

    @property
    def _has_mergers(self) -> bool:
        charter = self.learner.context.charter
        return charter is not None and charter.rounds.mergers_max != 1

    def _advance(self, job: jobs.Advance, donor: SimLearner | SimSyncer) -> object:
        payload = donor.blob_store.get(job.merged.payload)
        if payload is None or not self.world.can_dial(self, donor):
            return Failed("the donor is gone")
        try:
            self.bank.advance(job.merged, bytes(payload))
        except CorruptState as error:
            return Failed(str(error))
        self.fetcher.assemblies.forget(job.merged.fragment)
        return jobs.Advanced()

    def _start_trainer(self) -> object:
        inner, data = self.learner.context.inner, self.tiny.genesis.data
        self.trainers += 1
        trainer = TinyTrainer(
            sizes=[fragment.numel for fragment in self.layout.fragments],
            tokens_per_step=inner.batch_sequences * data.sequence_tokens,
            sequences_per_step=inner.batch_sequences,
            block_sequences=data.block_sequences,
            speed=self.speed,
            noise_seed=random.Random(self.chance.random()).randrange(2**32),
        )
        self.trainer = self.backend.adopt(trainer, self.key)
        drops, self.drops_error_feedback = self.drops_error_feedback, False
        if drops:
            self.bank.drop_error_feedback()
        self.recorder.began(
            genesis=self.tiny.genesis_bytes,
            charter=self.learner.context.charter or self.tiny.charter,
            inner=inner,
            micro_batch=inner.batch_sequences,
            seed_salt=trainer.noise_seed,
            replay_class=replay_class(VIRTUAL, 1, None),
            drops_error_feedback=drops,
        )
        self.trainer_number = self.trainers
        ready = jobs.TrainerReady(
            VIRTUAL, inner.batch_sequences, has_other_text=self.has_other_text
        )
        return self.parts.restore(self.trainer, ready)

    def command(self, action: Callable[[TinyTrainer], None], answer: Answer) -> None:
        """Have the trainer do this at its next boundary."""
        trainer = self.trainer
        if trainer is None:
            self.world.after(0.0, lambda: answer(Failed("no trainer")))
            return
        self.world.after(0.0, lambda: trainer.command(lambda: action(trainer)))

    def _deliver(self, job: jobs.Deliver, trainer: TinyTrainer) -> object:
        delivery = self.bank.deliver(
            job.fragment,
            is_assign=job.is_assign,
            merged_sequence=job.merged_sequence,
            kept_frac=job.kept_frac,
        )
        if trainer.apply(job.fragment, delivery):
            for look in self.on_assign:
                look(self, job.fragment)
        mark = applied(job.fragment, delivery, job.merged_sequence)
        self.recorder.took(mark(trainer.local_step))
        return jobs.Delivered(delivery.version, trainer.local_step, trainer.tokens)

    def _capture(self, job: jobs.Capture, trainer: TinyTrainer) -> object:
        local = trainer.theta[job.fragment]
        if local is None:
            return Failed("not delivered")
        try:
            push = self.bank.push(job.fragment, job.sequence, local)
        except NonFinite:
            return Failed("non-finite")
        self.recorder.took(snapshot(job.fragment)(trainer.local_step))
        self.recorder.captured(job.sequence, job.fragment, push.base_version, push.digest)
        self.pushed.append((job.fragment, push.payload_bytes))
        self.captures[self.incarnation, job.sequence] = (self.trainer_number, trainer.local_step)
        if self.on_capture:
            payload = self.blob_store.get(push.digest)
            assert payload is not None, "it was just put there"
            for look in self.on_capture:
                look(self, job.fragment, job.sequence, push.base_version, bytes(payload))
        return jobs.Captured(
            base_version=push.base_version,
            digest=push.digest,
            payload_bytes=push.payload_bytes,
            local_step=trainer.local_step,
            tokens=trainer.tokens,
            cursor=trainer.cursor(),
        )

    def _measure(self, job: jobs.Evaluate | jobs.ProbePush, answer: Answer) -> None:
        if isinstance(job, jobs.ProbePush):
            self.prober.run_job(job, answer)
        else:
            self.in_this_life(1.0, lambda: answer(self._evaluate(job)))

    def _evaluate(self, job: jobs.Evaluate) -> object:
        loss = self.backend.loss(self.bank.frozen(job.index))
        return jobs.EvaluatedLoss(loss, 128, 1.0)

    def _step(self) -> None:
        trainer = self.trainer
        if trainer is None or trainer.is_stepping:
            return
        if not trainer.can_step():
            if trainer.is_begun and not trainer.is_held:
                self.take(Note(jobs.Starved()))
            return
        seconds, life = trainer.begin_step(self.world.now_s), self.life

        def end() -> None:
            if self.life != life or self.trainer is not trainer:
                return
            before = len(trainer.read)
            loss = trainer.end_step(seconds)
            if not self.is_void:
                self.reads += [(self.incarnation, *read) for read in trainer.read[before:]]
            self.recorder.stepped(trainer.local_step, 0.0)
            trainer.boundary()
            self.take(
                Note(
                    jobs.Stepped(
                        local_step=trainer.local_step,
                        tokens=trainer.tokens,
                        loss=loss,
                        step_s=seconds,
                        work_s=trainer.work_s,
                        alive_s=self.world.now_s - trainer.ready_s,
                        busy_s=trainer.work_s,
                        cursor=trainer.cursor(),
                    )
                )
            )
            self._step()

        self.world.after(seconds, end)
