"""What the daemons of syncer and witness share: start, network, control socket, stop.

A subclass adds its machine and what that asks for. A machine that stops with `RESTART_EXIT` is
built anew from the disk, on the same network engine.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import msgspec

from host import addresses
from host.control.entering import Entering
from host.control.event_log import EventLog
from host.control.server import ControlServer, Verb
from host.driver import DrivenMachine, Driver
from host.files import crash_marker, keystore
from host.files.home import DEFAULT_INSTANCE, VoterRole
from host.files.keystore import Identity
from host.files.signed_project import OpenedProject, newest_of, read_signed
from host.nat.peer_file import peer_file
from host.nearby.answering import NearbyAnswerer, addresses_to_tell
from host.network.foreign_errors import TransportState
from host.network.leader_discovery import learners_topic, seat_topic
from host.options import SyncerOptions, WitnessOptions
from host.partition_monitor import PartitionMonitor
from host.runtime import logs
from host.runtime.lifecycle import Stopper, background, live, tidying
from host.runtime.offences import Offences
from host.transport import Transport
from protocol import wire
from protocol.errors import RemoteError, TransientError, UserError
from protocol.machine import Effect, Job, JobResult, StopAsked
from protocol.messages import Envelope
from protocol.peers.nearby import NearbyNotice, task_of
from protocol.status import SyncerStatus, WitnessStatus
from protocol.trace import Fact
from syncer_node.machine.jobs import Keep, KeepCharter
from syncer_node.raft.context import PeerVoter
from syncer_node.raft.raft import RESTART_EXIT, Raft
from syncer_node.storage.voter_files import VoterFiles, kept_addresses

Options = TypeVar("Options", bound=SyncerOptions | WitnessOptions)
Work = Callable[[], Coroutine[Any, Any, None]]


class VoterMachine(DrivenMachine, Protocol):
    """A machine of either role, or a tape in front of it."""

    def offer_charter(self, envelope: Envelope, now_s: float) -> list[Effect]: ...


class VoterDaemon(ABC, Generic[Options]):
    """All parts of a running voter."""

    role: ClassVar[VoterRole]

    def __init__(
        self,
        options: Options,
        project: OpenedProject,
        identity: Identity,
        transport: Transport,
        files: VoterFiles,
    ) -> None:
        self.options = options
        self.identity = identity
        self.transport = transport
        self.files = files
        self.project = newest_of(project, files.charter())
        self.started_s = time.monotonic()
        self.feed = EventLog()
        self.log = logging.getLogger(f"shoal.{self.role}")
        self.disk_pool = ThreadPoolExecutor(1, thread_name_prefix="disk")
        self._kept_addresses: tuple[str, ...] = ()
        self._offences = Offences()
        self._front: VoterMachine
        self._raft: Raft

    def _drive(self, front: VoterMachine, raft: Raft) -> None:
        """Wire the machine to the network. front: what receives the events."""
        transport, self._front, self._raft = self.transport, front, raft
        transport.is_member = raft.is_voter
        self.driver = Driver(
            front,
            transport,
            run_job=self.run_job,
            act=self.act,
            on_fact=self.on_fact,
            has_vote=raft.is_voter,
        )
        self.partition_monitor = PartitionMonitor(
            transport,
            voters=lambda: tuple(raft.context.peers),
            follows=lambda: raft.leader is not None,
        )
        transport.knocking.missed = self.partition_monitor.missing

    def _answers_nearby(self) -> tuple[Work, ...]:
        """Answers to `shoal join --nearby`, unless this machine's owner does not want that."""
        options = self.options
        if options.network.nearby is False:
            return ()
        answerer = NearbyAnswerer(
            self.project.id, self.identity, options.listen_host, self._nearby_notice
        )
        return (answerer.run,)

    def _nearby_notice(self, nonce: bytes) -> NearbyNotice | None:
        genesis = self.project.genesis
        return NearbyNotice(
            nonce,
            len(self.project.genesis_bytes),
            genesis.name,
            addresses_to_tell(self.transport.addresses()),
            self.transport.port,
            self.role,
            task_of(genesis),
            sum(tensor.numel for tensor in genesis.model.tensors),
            self._learners_here(),
            self._raft.context.newest_charter.admission,
        )

    def _learners_here(self) -> int | None:
        """How many take part now; None where this host does not know."""
        return None

    # What a role does by itself.

    async def run_job(self, job: Job) -> JobResult:
        """Carry out one job, on the disk's own thread in the order it was asked for."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.disk_pool, self.files.carry_out, job)

    def act(self, action: object) -> None:
        """Carry out a local action."""
        match action:
            case Keep(entry, _):
                self.write_soon(partial(self.files.keep_certificate, entry.certificate))
            case KeepCharter(envelope):
                self._keep_charter(envelope)

    @abstractmethod
    def snapshot(self) -> SyncerStatus | WitnessStatus:
        """How this voter is."""

    @abstractmethod
    def _greet(self) -> None:
        """Tell the person at the terminal what was started."""

    @abstractmethod
    def _works(self) -> tuple[Work, ...]:
        """What goes on beside the machine."""

    @abstractmethod
    def _close(self) -> None:
        """Free what the role holds."""

    def _verbs(self) -> Mapping[str, Verb]:
        """What the control socket answers besides what every voter's does."""
        return {}

    # Life.

    async def run(self, stopper: Stopper) -> int:
        """Vote until the machine stops; then free everything."""
        control = ControlServer(
            self.options.home.socket(self.role, self.options.instance),
            {
                "status": self._status,
                "stop": self._stop,
                "events": self.feed.answer,
                "charter": self._take_charter,
                **self._verbs(),
            },
            monitor=self.options.monitor,
        )
        await control.start()
        stopper.on_ask = lambda reason: self.driver.take(StopAsked(reason))
        self._greet()
        try:
            async with background(
                *self._works(), *self._answers_nearby(), self.partition_monitor.run
            ):
                stop = await self.driver.run()
        finally:
            with tidying("the control socket"):
                await control.close()
            self._close()
        self.log.info("%s", stop.reason)
        return stop.exit_code

    def on_fact(self, fact: Fact) -> None:
        """Log it, but an offence that was told a moment ago."""
        told = self._offences.worth_telling(fact, time.monotonic())
        if told is not None:
            logs.tell(told)
            self.feed.tell(told)

    def write_soon(self, write: Callable[[], object]) -> None:
        """On the disk's thread, a small write whose loss costs nothing: it is made again."""

        def keep() -> None:
            try:
                write()
            except TransientError as error:
                self.log.warning("%s", error)

        self.disk_pool.submit(keep)

    def _keep_charter(self, envelope: Envelope) -> None:
        """The owner's newest word, for the next start of this host."""
        try:
            self.files.keep_charter(envelope)  # At once: a restart may follow.
        except TransientError as error:
            self.log.warning("%s", error)

    @property
    def given_name(self) -> str:
        """What its owner called this host, for the other voters; empty if nothing."""
        instance: str = self.options.instance
        return "" if instance == DEFAULT_INSTANCE else instance

    def _address_of(self, peer: PeerVoter) -> str:
        """An address that another voter gave, if it is one of its own."""
        for text in peer.addresses:
            with contextlib.suppress(UserError):
                if addresses.parse_peer(text).key == peer.key:
                    return text
        return ""

    def _keep_addresses(self) -> None:
        """Remember where the other voters are, whenever that changes."""
        peers = self._raft.context.peers.values()
        found = tuple(sorted(text for peer in peers if (text := self._address_of(peer))))
        if found and found != self._kept_addresses:
            self._kept_addresses = found
            self.write_soon(partial(self.files.keep_addresses, found))

    # The control socket.

    def _status(self, _: dict[str, Any]) -> dict[str, Any]:
        return {"status": msgspec.to_builtins(self.snapshot())}

    def _stop(self, _: dict[str, Any]) -> dict[str, Any]:
        asyncio.get_running_loop().call_soon(self.driver.take, StopAsked("stopped by its owner"))
        return {}

    def _take_charter(self, request: dict[str, Any]) -> dict[str, Any]:
        """Take a newer charter, signed by the owner, and see to its being adopted."""
        try:
            envelope = wire.decode(bytes.fromhex(str(request.get("envelope"))), Envelope)
            self.driver.ask(partial(self._front.offer_charter, envelope))
        except (RemoteError, ValueError) as error:
            raise UserError(f"The charter was rejected: {error}") from error
        return {"revision": self._raft.context.newest_charter.revision}


def run_voter(
    options: Options,
    role: VoterRole,
    make: Callable[[Options, OpenedProject, Identity, Transport], VoterDaemon[Options]],
    words: Callable[[Identity, OpenedProject, Options], str],
) -> int:
    """Run a voter until it is stopped; the exit code.

    words: for a host whose key the project does not know in this role.
    """
    project = read_signed(options.project_path)
    path = options.home.identity(role, options.instance)
    logs.set_up(options.home.log(role, options.instance), is_json=options.log_json)
    identity = keystore.load_or_create(path)
    voter = project.charter.voter(identity.key)
    if voter is None or voter.role != role:
        raise UserError(words(identity, project, options))
    remedy = f"Stop it first: shoal stop --role {role}"
    with crash_marker.life(options.home, role, options.instance, remedy=remedy):
        return live(lambda stopper: _main(options, role, make, project, identity, stopper))


async def _main(
    options: Options,
    role: VoterRole,
    make: Callable[[Options, OpenedProject, Identity, Transport], VoterDaemon[Options]],
    project: OpenedProject,
    identity: Identity,
    stopper: Stopper,
) -> int:
    log = logging.getLogger(f"shoal.{role}")
    store = options.home.voter_store(project.id, role, options.instance)
    transport = Transport(
        identity,
        port=options.port,
        bootstrap=options.bootstrap,
        topics=(seat_topic(project.id), learners_topic(project.id)),
        on_state=partial(_tell_network, log),
        announce=options.announce,
        listen_host=options.listen_host,
        bulk=options.bulk,
        known=peer_file(options.home, project.id, role, options.instance, own=identity.key),
        relay_bytes_per_s=options.network.relay_bytes_per_s,
        map_port=options.network.map_port,
        hints=(*options.hints, *options.network.bootstrap, *kept_addresses(store)),
    )
    entering = Entering(options.home.socket(role, options.instance), project.id, stopper)

    def tell(reason: str, next_try_s: float) -> None:
        entering.tell(reason)
        log.warning("%s; next try in %.0f s", reason, next_try_s)

    try:
        async with entering.answering():
            await transport.start_with_retry(tell)
        while True:
            code = await make(options, project, identity, transport).run(stopper)
            if code != RESTART_EXIT:
                return code
    finally:
        with tidying("the network engine"):
            await transport.close()


def _tell_network(log: logging.Logger, state: TransportState) -> None:
    if state.is_up:
        log.info("the network engine is up")
    else:
        log.warning("the network engine starts anew: %s", state.reason)
