"""The syncer daemon: builds everything once, wires it, and ends it in order.

The only place that knows all parts. Behaviour is in `SyncerMachine`, arithmetic in `MergeBank`,
the disk in `Store`. Merging runs on threads, the log on a thread of its own, so that the event
loop only ever moves small things.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import msgspec

from node.host import keystore, logs
from node.host.control import ControlServer
from node.host.driver import Driver
from node.host.feed import Feed
from node.host.joinlink import JoinLink, format_link
from node.host.keystore import Identity
from node.host.life import Stopper, background, live, tidying
from node.host.options import SyncerOptions
from node.host.seat import (
    ANNOUNCE_EVERY_S,
    ANNOUNCE_TTL_S,
    SeatNotice,
    learners_topic,
    seat_topic,
)
from node.host.shelf import Shelf
from node.host.signed_project import OpenedProject, read_signed
from node.host.transport import Transport, TransportState
from protocol import wire
from protocol.errors import CorruptState, MalformedPayload, TransientError, UserError
from protocol.fragments import Layout, build_layout
from protocol.ids import short
from protocol.machine import Failed, Job, JobResult, StopAsked
from protocol.messages import RUN_COMPLETE, Report
from protocol.numerics.codecs import payload_bytes
from protocol.numerics.outer import digest
from protocol.project import Voter
from protocol.signing import verify_ed25519
from protocol.snapshot import MergeRow
from protocol.trace import Fact, FragmentCommitted, PhaseChanged, QuorumReached
from syncer_node import status
from syncer_node.bank import MergeBank
from syncer_node.disk import Disk
from syncer_node.jobs import (
    Adopt,
    Append,
    Appended,
    CheckpointWritten,
    FetchPush,
    Forget,
    InitialiseWeights,
    Keep,
    Merge,
    Merged,
    NameBest,
    PushFetched,
    PushRefused,
    TellWatchers,
    WeightsMade,
    WriteCheckpoint,
)
from syncer_node.setup import SyncerSetup
from syncer_node.store import Store
from syncer_node.syncer import Phase, SyncerMachine

log = logging.getLogger("shoal.syncer")

PROGRESS_EVERY_S = 15.0
LINGER_S = 30.0
"""With `exit_when_done`: how long the syncer stays at most for learners that may come back."""

LINGER_LOOK_S = 0.5

MERGE_THREADS = 2
T = TypeVar("T")


def run(options: SyncerOptions) -> int:
    """Run a syncer until it is stopped; the exit code."""
    project = read_signed(options.project_path)
    path = options.home.identity("syncer", options.instance)
    logs.set_up(options.home.log("syncer", options.instance), is_json=options.log_json)
    identity = keystore.load_or_create(path)
    _require_seat(identity, project.charter.voters, options)
    remedy = "Stop it first: shoal stop --role syncer"
    with keystore.lock(path, remedy=remedy):
        return live(lambda stopper: _main(options, project, identity, stopper))


def _require_seat(identity: Identity, voters: tuple[Voter, ...], options: SyncerOptions) -> None:
    if any(voter.key == identity.key and voter.role == "syncer" for voter in voters):
        return
    raise UserError(
        f"This host's syncer key {short(identity.key)} is not among the project's voters. Sign "
        f'the project on this host, or add key = "{identity.key.hex()}" under [[voters]] in the '
        "project file and sign it again."
    )


def _require_newest(project: OpenedProject, adopted: int) -> None:
    if project.charter.revision < adopted:
        raise UserError(
            f"This project file is revision {project.charter.revision}, but the run already uses "
            f"revision {adopted}. Use the newer file, or sign this one again."
        )


async def _main(
    options: SyncerOptions, project: OpenedProject, identity: Identity, stopper: Stopper
) -> int:
    transport = Transport(
        identity,
        port=options.port,
        bootstrap=options.bootstrap,
        topics=(seat_topic(project.id), learners_topic(project.id)),
        on_state=_tell_network,
        announce=options.announce,
        listen_host=options.listen_host,
    )
    try:
        await transport.start_with_retry(
            lambda reason, next_try_s: log.warning("%s; next try in %.0f s", reason, next_try_s)
        )
        daemon = SyncerDaemon(options, project, identity, transport)
        return await daemon.run(stopper)
    finally:
        with tidying("the network engine"):
            await transport.close()


def _tell_network(state: TransportState) -> None:
    if state.is_up:
        log.info("the network engine is up")
    else:
        log.warning("the network engine is down: %s; it is being rebuilt", state.reason)


@dataclass(slots=True)
class Books:
    """Sums over the merges of this daemon's life."""

    merges: int = 0
    participants: int = 0
    steps: float = 0.0
    push_bytes: int = 0
    push_params: int = 0
    payload_bytes: int = 0
    payload_params: int = 0
    grace_s: float = 0.0
    """Of the newest round."""
    recent: deque[MergeRow] = field(default_factory=lambda: deque(maxlen=64))


class SyncerDaemon:
    """All parts of a running syncer."""

    def __init__(
        self,
        options: SyncerOptions,
        project: OpenedProject,
        identity: Identity,
        transport: Transport,
    ) -> None:
        genesis, charter = project.genesis, project.charter
        self.options = options
        self.project = project
        self.identity = identity
        self.transport = transport
        self.layout: Layout = build_layout(
            genesis.model.tensors, genesis.strategy, genesis.fragments
        )
        self.started_s = time.monotonic()
        self.ended_s: float | None = None
        self.books = Books()
        self.feed = Feed()
        self.shelf = Shelf(clock=time.monotonic)
        self.shelf.put(project.id, project.genesis_bytes)
        envelope = wire.encode(project.envelope)
        self.charter_blob = (digest(envelope), len(envelope))
        self.shelf.put(self.charter_blob[0], envelope)
        self.merge_pool = ThreadPoolExecutor(MERGE_THREADS, thread_name_prefix="merge")
        self.disk_pool = ThreadPoolExecutor(1, thread_name_prefix="disk")
        self.store = Store(options.home.syncer_store(project.id, options.instance))
        self.bank = MergeBank(self.layout, charter, self.shelf)
        self.disk = Disk(self.store, self.bank, project, identity)
        recovered = self.disk.recover()
        _require_newest(project, recovered.state.charter_revision)
        self.machine = SyncerMachine(
            SyncerSetup(
                project=project.id,
                genesis=genesis,
                charter=charter,
                charter_envelope=project.envelope,
                layout_digest=self.layout.digest,
                numels=tuple(fragment.numel for fragment in self.layout.fragments),
                signer=identity,
                verify=verify_ed25519,
                wall_offset_s=time.time() - time.monotonic(),
            ),
            recovered,
        )
        self.driver = Driver(
            self.machine, transport, run_job=self.run_job, act=self.act, on_fact=self.on_fact
        )
        transport.serve_blobs(lambda _, name: self.shelf.get(name))

    def join_link(self) -> str:
        """What people paste to take part."""
        addresses = tuple(self.transport.addresses())
        if not addresses:
            return ""
        return format_link(
            JoinLink(
                project=self.project.id,
                genesis_bytes=len(self.project.genesis_bytes),
                name=self.project.genesis.name,
                addresses=addresses[:4],
            )
        )

    async def run(self, stopper: Stopper) -> int:
        """Serve until the machine stops; then free everything."""
        if self.machine.state.ended is not None:
            self.ended_s = time.monotonic()
        control = ControlServer(
            self.options.home.socket("syncer", self.options.instance),
            {"status": self._status, "stop": self._stop, "events": self.feed.answer},
        )
        await control.start()
        stopper.on_ask = lambda reason: self.driver.take(StopAsked(reason))
        self._banner()
        try:
            async with background(self._announce, self._report, self._leave_when_done):
                stop = await self.driver.run()
        finally:
            with tidying("the control socket"):
                await control.close()
            self.merge_pool.shutdown(wait=True, cancel_futures=True)
            self.disk_pool.shutdown(wait=True, cancel_futures=True)
            self.store.close()
        log.info("%s", stop.reason)
        return stop.exit_code

    def _banner(self) -> None:
        genesis = self.project.genesis
        log.info(
            "syncer %s for %s: %s parameters in %d fragments",
            short(self.identity.key),
            genesis.name,
            f"{self.layout.parameters:,}",
            genesis.fragments,
        )
        log.info("log and checkpoints in %s", self.store.root)
        print(
            f"\nTo take part, run on any host:\n\n    shoal join '{self.join_link()}'\n", flush=True
        )
        sys.stdout.flush()

    # What the machine asks for.

    async def run_job(self, job: Job) -> JobResult:
        """Carry out one job."""
        match job:
            case InitialiseWeights():
                return WeightsMade(await self._on_disk(self.disk.initialise))
            case FetchPush():
                return await self._fetch(job)
            case Merge():
                return await self._merge(job)
            case Append(index, record):
                await self._on_disk(partial(self.store.append, index, record))
                return Appended(index)
            case WriteCheckpoint(index, summary):
                checkpoint = self.disk.capture(index, summary)
                keep = set(self.machine.state.marks)
                await self._on_disk(partial(self.disk.write_checkpoint, checkpoint, keep))
                return CheckpointWritten(index)
        raise AssertionError(f"nobody carries out {type(job).__name__}")

    def act(self, action: object) -> None:
        """Carry out a local action."""
        match action:
            case Adopt(fragment, version):
                self.bank.adopt(fragment, version)
            case Forget(pushes):
                for push in pushes:
                    self.bank.forget_push(push)
            case Keep(entry, _):
                self.disk_pool.submit(
                    self._keep, partial(self.store.keep_certificate, entry.certificate)
                )
            case TellWatchers(peers):
                report = Report(msgspec.msgpack.encode(status.public(self)))
                for peer in peers:
                    self.driver.send(peer, report)
            case NameBest(index):
                self.disk_pool.submit(self._keep, partial(self.disk.name_best, index))

    def _keep(self, write: Callable[[], None]) -> None:
        """Small writes whose loss costs nothing: they are made again after a restart."""
        try:
            write()
        except TransientError as error:
            log.warning("%s", error)

    def on_fact(self, fact: Fact) -> None:
        """Log it, and keep the books."""
        logs.tell(fact)
        self.feed.tell(fact)
        if isinstance(fact, FragmentCommitted):
            self._book(fact)
        if isinstance(fact, QuorumReached):
            self.books.grace_s = fact.grace_s
        if isinstance(fact, PhaseChanged) and fact.phase == Phase.ENDED.value:
            log.info("the model can be exported: shoal export --to DIR")
            self.ended_s = time.monotonic()

    def _book(self, fact: FragmentCommitted) -> None:
        books = self.books
        fragment = self.layout.fragments[fact.fragment]
        params = sum(span.numel for span in fragment.spans)
        rounds = self.project.charter.rounds
        books.merges += 1
        books.participants += fact.participants
        books.steps += fact.mean_steps * fact.participants
        books.push_bytes += fact.participants * payload_bytes(rounds.up_codec, fragment.numel)
        books.push_params += fact.participants * params
        books.payload_bytes += payload_bytes(rounds.down_codec, fragment.numel)
        books.payload_params += params
        books.recent.append(
            MergeRow(
                global_step=fact.global_step,
                fragment=fact.fragment,
                participants=fact.participants,
                mean_steps=fact.mean_steps,
                seconds=fact.merge_s,
            )
        )

    async def _fetch(self, job: FetchPush) -> JobResult:
        header = job.header
        push = (job.peer, header.incarnation, header.sequence)
        try:
            payload = await self.transport.fetch(job.peer, header.digest, header.payload_bytes)
            keep = partial(self.bank.keep_push, push, header.fragment, payload)
            await asyncio.get_running_loop().run_in_executor(self.merge_pool, keep)
        except MalformedPayload as error:
            return PushRefused(error.reason, str(error))
        return PushFetched()

    async def _merge(self, job: Merge) -> JobResult:
        started_s = time.monotonic()
        try:
            outcome = await asyncio.get_running_loop().run_in_executor(
                self.merge_pool, self.bank.merge, job
            )
        except CorruptState as error:
            return Failed(str(error))
        write = partial(self.store.write_payload, job.fragment, job.version, outcome.payload)
        await self._on_disk(write)
        return Merged(
            payload=outcome.payload_digest,
            payload_bytes=len(outcome.payload),
            state=outcome.state,
            norms=outcome.norms,
            scales=outcome.scales,
            seconds=time.monotonic() - started_s,
        )

    async def _on_disk(self, work: Callable[[], T]) -> T:
        """Run on the disk's own thread; work is done in the order it is handed over."""
        return await asyncio.get_running_loop().run_in_executor(self.disk_pool, work)

    # Background.

    async def _announce(self) -> None:
        """Tell the swarm, again and again, who holds the seat."""
        name, size = self.charter_blob
        while True:
            state = self.machine.state
            notice = SeatNotice(self.project.id, state.epoch, state.term, state.index, name, size)
            with contextlib.suppress(TransientError):
                # Said again soon; the engine's own troubles are told elsewhere.
                await self.transport.announce(
                    seat_topic(self.project.id), wire.encode(notice), ANNOUNCE_TTL_S
                )
            await asyncio.sleep(ANNOUNCE_EVERY_S)

    async def _leave_when_done(self) -> None:
        """With `exit_when_done`: stop once everybody who was here lately has heard of the end."""
        while self.options.exit_when_done:
            await asyncio.sleep(LINGER_LOOK_S)
            if self.ended_s is None:
                continue
            # Whoever said goodbye after the end has heard it. Whoever vanished may come back, also
            # those who hold leases since before this syncer was restarted.
            sessions = self.machine.members.sessions
            has_heard = {
                key
                for key, session in sessions.items()
                if not session.is_connected and session.lost_reason == RUN_COMPLETE
            }
            holders = {key for key, _ in self.machine.state.leases.held}
            waited_for = (holders | sessions.keys()) - has_heard
            if not waited_for or time.monotonic() - self.ended_s > LINGER_S:
                self.driver.take(StopAsked("the run is complete"))
                return

    async def _report(self) -> None:
        """A line for the person who watches the terminal, now and then."""
        while True:
            await asyncio.sleep(PROGRESS_EVERY_S)
            log.info("%s", status.progress_line(self))

    # The control socket.

    def _status(self, _: dict[str, Any]) -> dict[str, Any]:
        return {"status": msgspec.to_builtins(status.snapshot(self))}

    def _stop(self, _: dict[str, Any]) -> dict[str, Any]:
        asyncio.get_running_loop().call_soon(self.driver.take, StopAsked("stopped by its owner"))
        return {}
