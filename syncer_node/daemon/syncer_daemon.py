"""The syncer daemon: builds everything once, wires it, and ends it in order.

The only place that knows all parts. Behaviour is in `SyncerMachine`, arithmetic in `MergeBank`,
the disk in `Store`. Merging runs on threads, the log on a thread of its own, so that the event
loop only ever moves small things.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import sys
import time
from functools import partial
from typing import Any

import msgspec

from host import addresses
from host.bulk import speed_probe
from host.bulk.blob_store import BlobStore
from host.control.event_log import EventLog
from host.control.server import ControlServer
from host.driver import Driver
from host.files import crash_marker, keystore
from host.files.keystore import Identity
from host.files.signed_project import OpenedProject, newest_of, read_signed
from host.join_link import JoinLink, format_link
from host.nat.peer_file import peer_file
from host.network.foreign_errors import TransportState
from host.network.leader_discovery import (
    ANNOUNCE_EVERY_S,
    ANNOUNCE_TTL_S,
    SeatNotice,
    learners_topic,
    seat_topic,
)
from host.options import SyncerOptions
from host.runtime import logs, software
from host.runtime.compute_pool import Cores
from host.runtime.lifecycle import Stopper, background, live, tidying
from host.runtime.loop_lag import LoopLagMonitor
from host.tape.tape_file import TapeLabel
from host.tape.taping import begin_tape
from host.transport import Transport
from protocol import limits, wire
from protocol.errors import RemoteError, TransientError, UserError
from protocol.fragments import Layout, build_layout
from protocol.ids import short
from protocol.machine import Job, JobResult, StopAsked
from protocol.messages import RUN_COMPLETE, Envelope, Report
from protocol.numerics.outer import digest
from protocol.project import Voter
from protocol.signing import verify_ed25519
from protocol.trace import Fact, FragmentCommitted, PhaseChanged, QuorumReached
from syncer_node.daemon import status
from syncer_node.daemon.job_executor import JobExecutor
from syncer_node.daemon.outlook import voter_vigil
from syncer_node.machine.jobs import (
    Adopt,
    CutSnapshot,
    DropSnapshot,
    Forget,
    Keep,
    KeepCharter,
    NameBest,
    TellWatchers,
)
from syncer_node.machine.leadership import Phase
from syncer_node.machine.merge_totals import MergeTotals
from syncer_node.machine.setup import SyncerSetup
from syncer_node.machine.syncer import RESTART_EXIT
from syncer_node.raft.context import PeerVoter
from syncer_node.storage.checkpoints import Disk
from syncer_node.storage.ledger import ledger_of
from syncer_node.storage.merge_bank import MergeBank
from syncer_node.storage.store import Store
from syncer_node.storage.tape_recorder import RecordedMachine, payload_tape
from syncer_node.storage.voter_files import kept_addresses

log = logging.getLogger("shoal.syncer")

PROGRESS_EVERY_S = 15.0
LINGER_S_MIN, LINGER_S_MAX = 3.0, 30.0
"""With `exit_when_done`: how long the syncer stays, for screens and learners that come back."""

LINGER_LOOK_S = 0.5
ANNOUNCE_LOOK_S = 1.0
LINK_OWN_MAX = 2
LINK_ADDRESSES_MAX = 4
"""Of a join link: with them it finds the swarm when this host is away."""


def run(options: SyncerOptions) -> int:
    """Run a syncer until it is stopped; the exit code."""
    project = read_signed(options.project_path)
    path = options.home.identity("syncer", options.instance)
    logs.set_up(options.home.log("syncer", options.instance), is_json=options.log_json)
    identity = keystore.load_or_create(path)
    _require_seat(identity, project.charter.voters, options)
    remedy = "Stop it first: shoal stop --role syncer"
    with crash_marker.life(options.home, "syncer", options.instance, remedy=remedy):
        return live(lambda stopper: _main(options, project, identity, stopper))


def _require_seat(identity: Identity, voters: tuple[Voter, ...], options: SyncerOptions) -> None:
    if any(voter.key == identity.key and voter.role == "syncer" for voter in voters):
        return
    raise UserError(
        f"This host's syncer key {short(identity.key)} is not among the project's voters. Sign "
        f'the project on this host, or add key = "{identity.key.hex()}" under [[voters]] in the '
        "project file and sign it again."
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
        bulk=options.bulk,
        known=peer_file(options.home, project.id, "syncer", options.instance, own=identity.key),
        relay_bytes_per_s=options.network.relay_bytes_per_s,
        hints=(
            *options.hints,
            *options.network.bootstrap,
            *kept_addresses(options.home.syncer_store(project.id, options.instance)),
        ),
    )
    try:
        await transport.start_with_retry(
            lambda reason, next_try_s: log.warning("%s; next try in %.0f s", reason, next_try_s)
        )
        while True:
            daemon = SyncerDaemon(options, project, identity, transport)
            code = await daemon.run(stopper)
            if code != RESTART_EXIT:
                return code
    finally:
        with tidying("the network engine"):
            await transport.close()


def _tell_network(state: TransportState) -> None:
    if state.is_up:
        log.info("the network engine is up")
    else:
        log.warning("the network engine is down: %s; it is being rebuilt", state.reason)


class SyncerDaemon:
    """All parts of a running syncer."""

    def __init__(
        self,
        options: SyncerOptions,
        project: OpenedProject,
        identity: Identity,
        transport: Transport,
    ) -> None:
        genesis = project.genesis
        self.options = options
        self.project = project
        self.identity = identity
        self.transport = transport
        self.layout: Layout = build_layout(
            genesis.model.tensors, genesis.strategy, genesis.fragments
        )
        self.started_s = time.monotonic()
        self.ended_s: float | None = None
        self._kept_addresses: tuple[str, ...] = ()
        self._is_news = asyncio.Event()
        self.books = MergeTotals()
        self.feed = EventLog()
        self.loop_watch = LoopLagMonitor()
        self.blob_store = BlobStore(clock=time.monotonic)
        self.blob_store.put(project.id, project.genesis_bytes)
        self.store = Store(options.home.syncer_store(project.id, options.instance))
        self.project = project = newest_of(project, self.store.voter.charter())
        genesis, charter = project.genesis, project.charter
        cores = Cores(options.threads)
        self.bank = MergeBank(self.layout, charter, self.blob_store, workers=cores)
        self.disk = Disk(self.store, self.bank, project, identity)
        self.recorded = self._recorded_machine()
        self.machine = self.recorded.inner
        self.executor = JobExecutor(
            transport=transport,
            store=self.store,
            bank=self.bank,
            disk=self.disk,
            cores=cores,
            project=project.id,
            kept_marks=lambda: set(self.machine.state.marks),
            other_syncers=self._other_syncers,
            payloads=payload_tape(self.tape, options.tape.mib_max, self.layout.parameters),
        )
        self.driver = Driver(
            self.recorded, transport, run_job=self.run_job, act=self.act, on_fact=self.on_fact
        )
        transport.serve_blobs(self._find_blob)
        self.partition_monitor = voter_vigil(transport, self.machine.raft)

    def _recorded_machine(self) -> RecordedMachine:
        """The machine, as the disk has it, with a tape around it."""
        options, identity, project = self.options, self.identity, self.project
        genesis, charter = project.genesis, project.charter
        rng_seed = os.urandom(8)
        self.tape = begin_tape(
            options.tape,
            options.home,
            TapeLabel(project.id, "syncer", identity.key, f"syncer {options.instance}"),
            options.instance,
            self.on_fact,
        )
        return RecordedMachine(
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
                rng=random.Random(rng_seed),
                nonce=int.from_bytes(os.urandom(7)),
                addresses=tuple(self.transport.addresses())[: limits.ADDRESSES_MAX],
            ),
            self.disk.recover(),
            rng_seed,
            self.tape,
            software=f"shoal {software.version()}",
        )

    def _find_blob(self, peer: bytes, name: bytes) -> memoryview | None:
        """What is offered under this digest; other voters also get payloads from the disk."""
        held = self.blob_store.get(name)
        if held is None and self.machine.raft.is_voter(peer):
            held = self.store.find_payload(name)
        return speed_probe.find(name) if held is None else held

    def join_link(self) -> str:
        """What people paste to take part: this host first, then the other voters."""
        own = tuple(self.transport.addresses())
        if not own:
            return ""
        others = [self._address_of(peer) for peer in self.machine.raft.context.peers.values()]
        places = (*own[:LINK_OWN_MAX], *(text for text in others if text))
        return format_link(
            JoinLink(
                project=self.project.id,
                genesis_bytes=len(self.project.genesis_bytes),
                name=self.project.genesis.name,
                addresses=places[:LINK_ADDRESSES_MAX],
            )
        )

    def _address_of(self, peer: PeerVoter) -> str:
        """An address that another voter gave, if it is one of its own."""
        for text in peer.addresses:
            with contextlib.suppress(UserError):
                if addresses.parse_peer(text).key == peer.key:
                    return text
        return ""

    async def run(self, stopper: Stopper) -> int:
        """Serve until the machine stops; then free everything."""
        if self.machine.state.ended is not None:
            self.ended_s = time.monotonic()
        control = ControlServer(
            self.options.home.socket("syncer", self.options.instance),
            {
                "status": self._status,
                "stop": self._stop,
                "events": self.feed.answer,
                "drain": self._drain,
                "ledger": self._ledger,
                "charter": self._take_charter,
                "snapshot": self._take_snapshot,
                "loop_lag": self.loop_watch.answer,
            },
            monitor=self.options.monitor,
        )
        await control.start()
        stopper.on_ask = lambda reason: self.driver.take(StopAsked(reason))
        self._banner()
        try:
            works = (self._announce, self._report, self._leave_when_done)
            async with background(*works, self.partition_monitor.run, self.loop_watch.run):
                stop = await self.driver.run()
        finally:
            with tidying("the control socket"):
                await control.close()
            self.executor.close()
            self.tape.close()
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
        """Carry out one job, under the charter of now."""
        self.bank.charter = self.machine.setup.charter
        return await self.executor.run_job(job)

    def act(self, action: object) -> None:
        """Carry out a local action."""
        match action:
            case Adopt(fragment, version, payload):
                self.bank.adopt(fragment, version, payload)
            case Forget(pushes):
                for push in pushes:
                    self.bank.forget_push(push)
            case Keep(entry, _):
                self.executor.keep_certificate(entry.certificate)
            case KeepCharter(envelope):
                self._keep_charter(envelope)
            case TellWatchers(peers):
                report = Report(msgspec.msgpack.encode(status.public(self)))
                for peer in peers:
                    self.driver.send(peer, report)
            case CutSnapshot():
                self.executor.cut_snapshot(action)
            case DropSnapshot(snapshot):
                self.executor.small(partial(self.disk.snapshots.drop, snapshot))
            case NameBest(index):
                self.executor.small(partial(self.disk.name_best, index))

    def _keep_charter(self, envelope: Envelope) -> None:
        """The owner's newest word, for the next start of this host."""
        try:
            self.store.voter.keep_charter(envelope)  # At once: a restart may follow.
        except TransientError as error:
            log.warning("%s", error)

    def _offer_charter(self, envelope: Envelope) -> tuple[bytes, int]:
        encoded = wire.encode(envelope)
        name = digest(encoded)
        if self.blob_store.get(name) is None:
            self.blob_store.put(name, encoded)
        return name, len(encoded)

    def on_fact(self, fact: Fact) -> None:
        """Log it, and keep the books."""
        logs.tell(fact)
        self.feed.tell(fact)
        if isinstance(fact, FragmentCommitted):
            charter = self.machine.setup.charter
            self.books.add(fact, self.layout, charter.rounds)
        if isinstance(fact, QuorumReached):
            self.books.grace_s = fact.grace_s
        if isinstance(fact, PhaseChanged):
            self._is_news.set()  # Perhaps of who leads.
            if fact.phase == Phase.ENDED.value:
                log.info("the model can be exported: shoal export --to DIR")
                self.ended_s = time.monotonic()

    # Background.

    def _other_syncers(self) -> list[bytes]:
        charter = self.machine.setup.charter
        return [v.key for v in charter.voters if v.role == "syncer" and v.key != self.identity.key]

    async def _announce(self) -> None:
        """Tell the swarm, again and again and at once when it is new, who holds the seat."""
        said_s, said_term = -1e9, -1
        while True:
            seat, state = self.machine.seat, self.machine.state
            is_due = time.monotonic() - said_s >= ANNOUNCE_EVERY_S or said_term != state.term
            if seat is not None and is_due:
                said_s, said_term = time.monotonic(), state.term
                notice = self._notice()
                with contextlib.suppress(TransientError):
                    # Said again soon; the engine's own troubles are told elsewhere.
                    await self.transport.announce(
                        seat_topic(self.project.id), wire.encode(notice), ANNOUNCE_TTL_S
                    )
            self._keep_addresses()
            self._is_news.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._is_news.wait(), ANNOUNCE_LOOK_S)

    def _keep_addresses(self) -> None:
        """Remember where the other voters are, whenever that changes."""
        peers = self.machine.raft.context.peers.values()
        found = tuple(sorted(text for peer in peers if (text := self._address_of(peer))))
        if found and found != self._kept_addresses:
            self._kept_addresses = found
            self.executor.small(partial(self.store.voter.keep_addresses, found))

    def _notice(self) -> SeatNotice:
        name, size = self._offer_charter(self.machine.setup.charter_envelope)
        raft, state = self.machine.raft, self.machine.state
        return SeatNotice(
            project=self.project.id,
            epoch=raft.context.epoch,
            term=raft.context.term,
            log_index=state.index,
            charter=name,
            charter_bytes=size,
            votes=raft.election.seat_votes,
        )

    async def _leave_when_done(self) -> None:
        """With `exit_when_done`: stop once everybody who was here lately has heard of the end."""
        while self.options.exit_when_done:
            await asyncio.sleep(LINGER_LOOK_S)
            if self.ended_s is None:
                continue
            # Whoever said goodbye after the end has heard it. Whoever vanished may come back, also
            # those who hold leases since before this syncer was restarted.
            seat = self.machine.seat
            sessions = seat.members.sessions if seat is not None else {}
            has_heard = {
                key
                for key, session in sessions.items()
                if not session.is_connected and session.lost_reason == RUN_COMPLETE
            }
            holders = {key for key, _ in self.machine.state.leases.held}
            waited_for = (holders | sessions.keys()) - has_heard
            stayed_s = time.monotonic() - self.ended_s
            if stayed_s > (LINGER_S_MAX if waited_for else LINGER_S_MIN):
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

    def _ledger(self, _: dict[str, Any]) -> dict[str, Any]:
        """Everything that the log counts, and for whom."""
        seat = self.machine.seat
        here = {session.peer for session in seat.members.live()} if seat else set()
        told = ledger_of(self.project, self.machine.state, here, time.time())
        return {"ledger": msgspec.to_builtins(told)}

    def _drain(self, _: dict[str, Any]) -> dict[str, Any]:
        """Give the seat to a standby. UserError where nobody could take it."""
        machine = self.machine
        others = machine.raft.replication.standbys() if machine.raft.is_leading else []
        if machine.raft.is_leading and not others:
            raise UserError(
                "No standby is here that has everything, so the seat stays. Start another syncer "
                "of this project, or see `shoal status` for why it lags."
            )
        self.driver.ask(self.recorded.drain)
        return {"was_leading": machine.raft.is_leading, "standbys": [p.key.hex() for p in others]}

    def _take_snapshot(self, _: dict[str, Any]) -> dict[str, Any]:
        """Begin a snapshot, or name the one under way. UserError where none can be taken."""
        seat = self.machine.seat
        if seat is None or not self.machine.state.has_weights:
            words = status.sentence(self.machine, time.monotonic())
            raise UserError(f"No snapshot can be taken here now. {words}")
        self.driver.ask(self.recorded.take_snapshot)
        taking = seat.snapshots.taking
        return {"snapshot": taking.snapshot if taking is not None else 0}

    def _take_charter(self, request: dict[str, Any]) -> dict[str, Any]:
        """Take a newer charter, signed by the owner, and see to its being adopted."""
        try:
            envelope = wire.decode(bytes.fromhex(str(request.get("envelope"))), Envelope)
            self.driver.ask(partial(self.recorded.offer_charter, envelope))
        except (RemoteError, ValueError) as error:
            raise UserError(f"The charter was not taken: {error}") from error
        return {"revision": self.machine.raft.context.newest_charter.revision}
