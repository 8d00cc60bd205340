"""The learner daemon: builds everything once, wires it, and ends it in order.

The only place that knows all parts. Behaviour is in `LearnerMachine`, arithmetic in `FragmentBank`,
the inner loop in the trainer process.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import msgspec

from host.bulk.blob_store import BlobStore
from host.bulk.giving import Giving
from host.control.entering import Entering
from host.control.event_log import EventLog
from host.control.pace_meter import PaceMeter
from host.control.progress import tell_progress
from host.control.server import ControlServer
from host.control.status_parts import keep_pace
from host.control.weights import Cut, WeightsVerbs
from host.driver import Driver
from host.files import crash_marker, keystore
from host.files.held_base import HeldBase
from host.files.keystore import Identity
from host.files.mapped_arrays import MappedArrays, in_memory
from host.files.pinned_files import PinnedFiles
from host.files.receipts_file import Contributions
from host.hedged_fetch import fetch_from
from host.network.foreign_errors import TransportState
from host.network.token_bucket import TokenBucket
from host.options import NodeOptions
from host.runtime import logs, software
from host.runtime.lifecycle import Stopper, background, live, tidying
from host.runtime.loop_lag import LoopLagMonitor
from host.tape.tape_file import TapeLabel, TapeRecorder
from host.tape.taping import NoTape, begin_tape
from host.transport import Transport
from node.daemon.announcer import Announcer, tell_attempt, transport_of
from node.daemon.leader_watch import leader_watch
from node.daemon.owner_limits import OwnerLimits
from node.daemon.preflight import learn_project
from node.daemon.published import PublishedData
from node.daemon.sampler import Sampler
from node.daemon.state_download import StateDownload
from node.daemon.status import PayloadCounts, StatusReporter, node_state
from node.daemon.swarm_view import SwarmView
from node.daemon.trainer_options import (
    measures_for_others,
    shares_moments,
    trainer_configuration,
)
from node.download.fetcher import StateFetcher
from node.download.leader_fetcher import LeaderFetcher
from node.download.locator import Locator
from node.download.payload_fetcher import PayloadFetcher
from node.download.shard_fetcher import NotHere
from node.machine import jobs
from node.machine.context import EpochStart, LearnerSetup
from node.machine.learner import LearnerMachine
from node.machine.snapshot_participant import RESTART_EXIT
from node.machine.syncer_link import Link
from node.trainer_client.client import TrainerPort
from node.trainer_client.fragment_bank import FragmentBank
from node.trainer_client.moments_port import MomentsPort
from node.trainer_client.parts_port import Beginning, PartsPort, held_parts
from node.trainer_client.probe_port import ProbePort
from node.trainer_client.tape import TrainerTape
from protocol import limits, wire
from protocol.errors import TransientError, UserError
from protocol.fragments import build_layout
from protocol.log.records import FragmentMerged
from protocol.machine import Failed, Job, JobResult, Note, Stop, StopAsked
from protocol.numerics.warm_up import warm_up
from protocol.project import Genesis
from protocol.signing import verify_ed25519
from protocol.trace import Fact

log = logging.getLogger("shoal.node")

PAUSE_S_MAX = 365 * 86_400.0
POOL_THREADS = 2


def run(options: NodeOptions) -> int:
    """Run a learner until it is stopped or its project ends; the exit code."""
    path = options.home.identity("learner", options.instance)
    logs.set_up(options.home.log("learner", options.instance), is_json=options.log_json)
    remedy = (
        "To run a second learner on this machine, give it its own name: "
        "shoal join --instance NAME 'LINK'"
    )
    identity = keystore.load_or_create(path)
    with crash_marker.life(options.home, "learner", options.instance, remedy=remedy):
        return live(lambda stopper: _main(options, identity, stopper))


async def _main(options: NodeOptions, identity: Identity, stopper: Stopper) -> int:
    shown = f"learner {options.name} ({identity.key[:4].hex()}) for {options.link.name}"
    log.info("%s; log in %s", shown, options.home.log("learner", options.instance))
    transport = transport_of(options, identity, _tell_network)
    socket = options.home.socket("learner", options.instance)
    entering = Entering(socket, options.link.project, stopper)

    def tell(reason: str, next_try_s: float) -> None:
        entering.tell(reason)
        tell_attempt(reason, next_try_s)

    try:
        async with entering.answering():
            await transport.start_with_retry(tell)
            genesis = await learn_project(options, transport, tell)
        beginning = Beginning()
        while True:
            daemon = LearnerDaemon(options, identity, transport, genesis, beginning)
            options.on_accepted()
            code = await daemon.run(stopper)
            if code != RESTART_EXIT:
                return code
            beginning = daemon.parts.next_beginning(daemon.machine)
    finally:
        with tidying("the network engine"):
            await transport.close()


def _tell_network(state: TransportState) -> None:
    if state.is_up:
        log.info("connected to the swarm")
    else:
        log.warning("the network engine starts anew: %s", state.reason)


class LearnerDaemon:
    """All parts of a running learner."""

    def __init__(
        self,
        options: NodeOptions,
        identity: Identity,
        transport: Transport,
        genesis: bytes,
        beginning: Beginning,
    ) -> None:
        self.options = options
        self.transport = transport
        self.genesis = wire.decode(genesis, Genesis, bytes_max=limits.GENESIS_BYTES_MAX)
        self.layout = build_layout(
            self.genesis.model.tensors, self.genesis.strategy, self.genesis.fragments
        )
        self.notices: list[str] = []
        self.feed = EventLog()
        self.loop_watch = LoopLagMonitor()
        self.pace = PaceMeter(self.genesis.fragments)
        self.counts = PayloadCounts()
        self.pool = ThreadPoolExecutor(POOL_THREADS, thread_name_prefix="shoal")
        self.pool.submit(warm_up)
        self.blob_store = BlobStore(clock=time.monotonic)
        self.blob_store.put(options.link.project, genesis)
        self.pinned_files = PinnedFiles(options.home.data_cache(), self.genesis.tokenizer)
        self.held_base = HeldBase(options.home.data_cache(), self.genesis)
        self.pool.submit(self.held_base.missing)  # What is here can be given then.
        self.mapped = self._mapped()
        self.bank = FragmentBank(
            self.layout, self.blob_store, self.mapped.keep if self.mapped else in_memory
        )
        self.weights = WeightsVerbs(genesis, self._newest_weights)
        self.locator = Locator.of(transport, options.link, genesis)
        # Grows with every start, also across a restart of the machine.
        incarnation = beginning.incarnation or time.time_ns() // 1_000_000
        self.tape = self._begin_tape(identity)
        place = options.home.contributions()
        self.contributions = Contributions(place, genesis, options.link.project, identity)
        self.state_download = StateDownload(self)
        self.machine = LearnerMachine(self._setup(identity, incarnation, beginning.start))
        beginning.hold(self.machine)
        self.trainer = self._new_trainer(identity, genesis, incarnation)
        self.owner_limits = OwnerLimits(
            options, transport, self.trainer, self.machine.trainer_control, self.mapped
        )
        self.published = PublishedData(self)
        self._join(identity, beginning)
        self._give(options.donate_mbps)

    def _new_trainer(self, identity: Identity, genesis: bytes, incarnation: int) -> TrainerPort:
        options = self.options
        return TrainerPort(
            configure=trainer_configuration(options, options.settings(), identity, genesis),
            log_path=options.home.trainer_log(options.instance),
            suspend_folder=options.home.suspended(options.instance),
            bank=self.bank,
            pool=self.pool,
            note=self._note,
            notice=self.notice,
            tape=TrainerTape(self.tape, incarnation),
            ram_room=lambda: self.owner_limits.ram_room(),
            ram_ceiling=lambda: self.owner_limits.ram_ceiling(),
            disk_room=lambda: self.owner_limits.disk_room(),
        )

    def _join(self, identity: Identity, beginning: Beginning) -> None:
        """What speaks to the swarm."""
        options, transport = self.options, self.transport
        self.driver = Driver(
            self.machine, transport, run_job=self.run_job, act=self.act, on_fact=self.on_fact
        )
        on_fault = self.driver.fault
        self.swarm_view = SwarmView(
            options.link.project,
            ask=self._look_at_swarm,
            on_fault=lambda error: on_fault(self.machine.context.leader or b"", error),
        )
        self.moments = MomentsPort(self.locator, self.trainer, on_fault)
        self.prober = ProbePort(self.locator, self.trainer, on_fault)
        self.parts = PartsPort(
            folder=options.home.parts(options.link.project, options.instance),
            project=options.link.project,
            key=identity.key,
            trainer=self.trainer,
            block_sequences=self.genesis.data.block_sequences,
            loaded=beginning.loaded,
            feed=self.published.feed if self.published.fetcher is not None else None,
        )
        self.leader_fetcher = LeaderFetcher(self.locator, on_fault)
        self.payload_fetcher = PayloadFetcher(transport, on_fault)
        self.fetcher = StateFetcher(
            transport,
            self.locator,
            rng=random.Random(os.urandom(8)),
            leader=lambda: self.leader_fetcher.leader,
            newest=lambda fragment: self.machine.context.state.fragments[fragment].version,
            on_fault=on_fault,
            rooms=lambda root, size: self.state_download.room(root, size),
        )
        self.partition_monitor = leader_watch(self.machine, self.locator, options.link, self._note)
        self.announcer = Announcer(
            options,
            self.machine,
            self.locator,
            identity,
            has_chunks=lambda: self.fetcher.assemblies.has_any,
        )
        self.reporter = StatusReporter(self)
        self.sampler = Sampler(
            options.settings().learner,
            self.trainer.generate,
            lambda: self.machine.context.state.global_step,
            lambda: node_state(self.machine) == "training",
        )

    def _begin_tape(self, identity: Identity) -> TapeRecorder | NoTape:
        options = self.options
        label = TapeLabel(options.link.project, "learner", identity.key, options.name)
        return begin_tape(options.tape, options.home, label, options.instance, self.on_fact)

    def _give(self, mbps: float) -> None:
        """Serve what the blob store has; weights and what was merged no faster than this."""
        donated, giving = TokenBucket(mbps * 1e6 / 8), Giving(mbps * 1e6 / 8)
        self.transport.serve_blobs(
            lambda peer, digest: self._find_blob(peer, digest, giving),
            lambda _, digest: donated if self._is_weights(digest) else None,
            lambda _, digest: self.fetcher.assemblies.held_sections(digest),
        )
        self.transport.is_member = self._is_member

    def _find_blob(self, peer: bytes, digest: bytes, giving: Giving) -> memoryview | None:
        """What is asked for; None for what is not here, or not given just now."""
        if self.bank.is_merged(digest) and not self._is_voter(peer):
            payload = self.blob_store.get(digest)
            giving.measured(self.transport.rate_limiter.up.bytes_per_s)
            if payload is None:
                return None
            may_give = giving.may_give(peer, digest, len(payload), time.monotonic())
            return payload if may_give else None
        held = self.blob_store.get(digest) or self.pinned_files.find(digest)
        held = held or self.fetcher.assemblies.find(digest)
        return held or self.held_base.find(digest) or self.published.find(digest)

    def _is_weights(self, digest: bytes) -> bool:
        """Whether it is for other learners: weights and what was merged into them, pieces of a base
        model, shards of data."""
        if self.blob_store.is_grouped(digest) or self.bank.is_merged(digest):
            return True
        found = self.fetcher.assemblies.find(digest) or self.held_base.find(digest)
        return (found or self.published.find(digest)) is not None

    def _is_member(self, key: bytes) -> bool:
        return self.machine.context.state.has_merges(key) or self._is_voter(key)

    def _is_voter(self, key: bytes) -> bool:
        charter = self.machine.context.charter
        return charter is not None and any(voter.key == key for voter in charter.voters)

    def _mapped(self) -> MappedArrays | None:
        """Where the owner of this machine wants weights in files."""
        if not self.options.settings().learner.weights_on_disk:
            return None
        place = self.options.home.mapped_weights(self.options.instance)
        return MappedArrays(place, lambda: self.owner_limits.disk_room())

    def _setup(
        self, identity: Identity, incarnation: int, start: EpochStart | None
    ) -> LearnerSetup:
        return LearnerSetup(
            project=self.options.link.project,
            genesis=self.genesis,
            layout_digest=self.layout.digest,
            name=self.options.name,
            agent=f"shoal {software.version()}",
            incarnation=incarnation,
            evaluates=measures_for_others(self.options, self.genesis),
            shares_moments=shares_moments(self.options),
            keeps_parts=self.options.keeps_parts,
            parts=held_parts(self.options),
            start=start,
            micro_batch=self.options.micro_batch,
            batch_sequences=self.options.batch_sequences,
            signer=identity,
            verify=verify_ed25519,
            rng=random.Random(os.urandom(8)),
            invite=self.options.link.invite,
            credit=self.contributions.newest,
            bookmark=self.state_download.read_bookmark() if start is None else None,
        )

    def _note(self, value: object) -> None:
        """Tell the machine."""
        if isinstance(value, jobs.Stepped):
            self.published.stepped(value)
        self.driver.take(Note(value))

    def _look_at_swarm(self) -> bool:
        """Ask the leader how the swarm is; whether one is followed."""
        if self.machine.link is not Link.FOLLOWING:
            return False
        self._note(jobs.LookAtSwarm())
        return True

    def notice(self, text: str) -> None:
        """Tell the owner something once."""
        if text not in self.notices:
            self.notices.append(text)
            log.warning("%s", text)

    async def run(self, stopper: Stopper) -> int:
        """Serve until the machine stops; then end the trainer and free everything."""
        control = ControlServer(
            self.options.home.socket("learner", self.options.instance),
            {
                "status": self._status,
                "events": self.feed.answer,
                "pause": self._pause,
                "resume": self._resume,
                "finish": self._finish,
                "stop": self._stop,
                "swarm": self.swarm_view.answer,
                "loop_lag": self.loop_watch.answer,
                **self.weights.verbs(),
            },
            monitor=self.options.monitor,
        )
        await control.start()
        stopper.on_ask = lambda reason: self.driver.take(StopAsked(reason))
        stop: Stop | None = None
        try:
            works = (
                self.announcer.announce,
                self.announcer.answer_nearby,
                self.partition_monitor.run,
                self.loop_watch.run,
                lambda: keep_pace(self.pace, lambda: self.machine.context.state),
                self.fetcher.run,
                self.owner_limits.governor.run,
                self.sampler.run,
                self.published.run,
                lambda: tell_progress(self.reporter.progress_line, log),
            )
            async with background(*works):
                stop = await self.driver.run()
        finally:
            with tidying("the control socket"):
                await control.close()
            with tidying("the trainer"):
                await self.trainer.stop()
            try:
                if stop is not None and stop.exit_code == 0:
                    with tidying("keeping the weights"):
                        await self.state_download.keep(self.machine.bookmark(self.bank.versions))
            finally:
                self.pool.shutdown(wait=False, cancel_futures=True)
                self.tape.close()
        log.info("%s", stop.reason)
        return stop.exit_code

    # What the machine asks for.

    async def run_job(self, job: Job) -> JobResult:
        """Carry out one job."""
        match job:
            case jobs.FindSeat(after, charter):
                return await self.locator.find_seat(charter, after)
            case jobs.FetchState():
                return await self.state_download.run_job(job)
            case jobs.Advance():
                return await self._advance(job)
            case jobs.StartTrainer():
                return await self._start(job)
            case jobs.SuspendTrainer():
                return await self.trainer.suspend()
            case jobs.WakeTrainer():
                return await self.trainer.wake(job)
            case jobs.Deliver():
                return await self.trainer.deliver(job)
            case jobs.Capture():
                return await self._capture(job)
            case jobs.Evaluate() | jobs.ProbePush():
                return await self._measure(job)
        if isinstance(job, jobs.PartJob):
            return await self.parts.run_job(job)
        if isinstance(job, jobs.MomentsJob):
            return await self.moments.run_job(job)
        raise AssertionError(f"nothing here carries out {type(job).__name__}")

    def act(self, action: object) -> None:
        """Carry out a local action."""
        match action:
            case jobs.FollowLeader(leader):
                self.leader_fetcher.follow(leader)
            case jobs.NoteReached(host):
                self.fetcher.planner.reached(host)
            case jobs.Freeze(index, fragment):
                self.bank.freeze(index, fragment)
            case jobs.Thaw(index):
                self.bank.thaw(index)
            case jobs.KeepReceipt(receipt, charter):
                self.contributions.keep_or_tell(receipt, charter, self.notice)
            case jobs.ShowReport(report):
                self.swarm_view.take(report)
            case jobs.ForgetProbe():
                self.prober.forget()
            case jobs.ForgetMoments():
                self.moments.forget()
            case jobs.WithdrawMoments():
                self.moments.withdraw()
            case jobs.Feed() | jobs.DropFed():
                self.published.feed(action)
            case _:
                assert isinstance(action, jobs.TrainerAction), f"nothing here carries out {action}"
                self.trainer.act(action)

    def on_fact(self, fact: Fact) -> None:
        logs.tell(fact)
        self.feed.tell(fact)

    def _params(self, fragment: int) -> int:
        return sum(span.numel for span in self.layout.fragments[fragment].spans)

    async def _start(self, job: jobs.StartTrainer) -> JobResult:
        """Start a trainer, which goes on from a snapshot's part if there is one."""
        await self.published.begin()
        ready = await self.trainer.start(job)
        if isinstance(ready, jobs.TrainerReady):
            return await self.parts.restore(ready, job.inner)
        return ready

    async def _measure(self, job: jobs.Evaluate | jobs.ProbePush) -> JobResult:
        """A checkpoint's held-out loss, or what somebody's push does to the loss."""
        try:
            async with self.published.holding(job):
                if isinstance(job, jobs.Evaluate):
                    return await self.trainer.evaluate(job)
                return await self.prober.run_job(job)
        except NotHere as error:
            if isinstance(job, jobs.Evaluate):
                return Failed(str(error))
            return jobs.NotProbed("failed", str(error))

    async def _capture(self, job: jobs.Capture) -> JobResult:
        captured = await self.trainer.capture(job)
        if isinstance(captured, jobs.Captured):
            self.counts.push_bytes += captured.payload_bytes
            self.counts.push_params += self._params(job.fragment)
        return captured

    async def _advance(self, job: jobs.Advance) -> JobResult:
        """Fetch a merged payload, and take the outer step."""
        merged = job.merged
        state = self.machine.context.state
        here, newest = state.leases.learners, state.fragments[merged.fragment].version
        source = merged.merger or self.leader_fetcher.leader or b""
        payload = await self.payload_fetcher.fetch(
            merged,
            here,
            self._of_syncer,
            newest,
            may_be_carried=self.transport.paths().get(source) == "relayed",
        )
        if payload is None:
            payload = await self._of_anybody(merged)
        self.counts.payload_bytes += merged.payload_bytes
        self.counts.payload_params += self._params(merged.fragment)
        advance = partial(self.bank.advance, merged, bytes(payload))
        await self.trainer.in_pool(advance)
        self.fetcher.assemblies.forget(merged.fragment)
        return jobs.Advanced()

    async def _of_syncer(self, merged: FragmentMerged) -> memoryview:
        """A merged payload, of who merged it or else of the leader. Raises TransientError."""
        wanted, leader = [(merged.payload, merged.payload_bytes)], self.leader_fetcher.leader
        if merged.merger is None:
            return (await self.leader_fetcher.fetch(wanted))[0]
        sources = [merged.merger, *([leader] if leader is not None else [])]
        return (await fetch_from(self.transport, sources, wanted))[0]

    async def _of_anybody(self, merged: FragmentMerged) -> memoryview:
        """A merged payload, of whoever gives weights. Raises TransientError."""
        wanted, donors = (merged.payload, merged.payload_bytes), await self.locator.donors_or_none()
        return (await self.locator.fetch_from(donors, [wanted], self.driver.fault))[1][0]

    # The control socket.

    def _status(self, _: dict[str, Any]) -> dict[str, Any]:
        told = self.reporter.status()
        told.loop_lag = self.loop_watch.lag()
        return {"status": msgspec.to_builtins(told)}

    def _stop(self, _: dict[str, Any]) -> dict[str, Any]:
        asyncio.get_running_loop().call_soon(self.driver.take, StopAsked("stopped by its owner"))
        return {}

    def _pause(self, request: dict[str, Any]) -> dict[str, Any]:
        seconds = request.get("seconds")
        if seconds is not None and not (
            isinstance(seconds, int | float) and 0 < seconds <= PAUSE_S_MAX
        ):
            raise UserError("pause takes a number of seconds above 0, or nothing to pause for good")
        self._note(jobs.PauseAsked(seconds))
        return {}

    def _resume(self, _: dict[str, Any]) -> dict[str, Any]:
        self._note(jobs.ResumeAsked())
        return {"because": self.machine.trainer_control.held_because}

    def _finish(self, _: dict[str, Any]) -> dict[str, Any]:
        self._note(jobs.FinishAsked())
        return {}

    def _newest_weights(self) -> Cut:
        """The global ones: what this learner did since then is not in them."""
        bank, state = self.bank, self.machine.context.state
        held = range(len(self.layout.fragments))
        missing = sum(bank.version(fragment) < 0 for fragment in held)
        if missing:
            raise TransientError(
                f"This learner is still fetching the weights: {missing} of {len(held)} fragments "
                "are missing. Try again in a moment."
            )
        fragments = [bank.theta(fragment) for fragment in held]
        return Cut(state.global_step, state.tokens, fragments)
