"""The witness daemon: a vote and a log, without tensors. Small on purpose.

Behaviour is in `WitnessMachine`, the disk in `VoterFiles`; this wires them to the network.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import msgspec

from host import addresses
from host.control.event_log import EventLog
from host.control.server import ControlServer
from host.control.status_parts import all_faults, network_status
from host.driver import Driver
from host.files import crash_marker, keystore
from host.files.keystore import Identity
from host.files.signed_project import OpenedProject, newest_of, read_signed
from host.nat.peer_file import peer_file
from host.network.foreign_errors import TransportState
from host.network.leader_discovery import learners_topic, seat_topic
from host.options import WitnessOptions
from host.runtime import logs, software
from host.runtime.lifecycle import Stopper, background, live, tidying
from host.transport import Transport
from protocol import limits, wire
from protocol.errors import RemoteError, TransientError, UserError
from protocol.ids import short
from protocol.machine import Job, JobResult, StopAsked
from protocol.messages import Envelope
from protocol.signing import verify_ed25519
from protocol.status import ProjectStatus, WitnessStatus
from protocol.trace import Fact
from syncer_node.daemon.outlook import voter_vigil
from syncer_node.daemon.voting_status import seat_status, waiting_words
from syncer_node.machine.jobs import Installed, InstallState, Keep, KeepCharter
from syncer_node.machine.witness import RESTART_EXIT, WitnessMachine
from syncer_node.raft.context import RaftSetup
from syncer_node.raft.jobs import (
    Append,
    Appended,
    BallotSaved,
    KeepProofs,
    ProofsKept,
    SaveBallot,
)
from syncer_node.storage.recovery import enter_epoch, log_start, scan
from syncer_node.storage.voter_files import VoterFiles, kept_addresses

log = logging.getLogger("shoal.witness")

RECORDS_KEPT = 10_000
"""Certified records that stay on the disk. A voter that lacks older ones asks a leader."""

RECORDS_SLACK = 2_500
"""Rewriting the log is put off until it has this many more."""

LOOK_EVERY_S = 1.0


def run(options: WitnessOptions) -> int:
    """Run a witness until it is stopped; the exit code."""
    project = read_signed(options.project_path)
    path = options.home.identity("witness", options.instance)
    logs.set_up(options.home.log("witness", options.instance), is_json=options.log_json)
    identity = keystore.load_or_create(path)
    _require_vote(identity, project, options)
    remedy = "Stop it first: shoal stop --role witness"
    with crash_marker.life(options.home, "witness", options.instance, remedy=remedy):
        return live(lambda stopper: _main(options, project, identity, stopper))


def _require_vote(identity: Identity, project: OpenedProject, options: WitnessOptions) -> None:
    voter = project.charter.voter(identity.key)
    if voter is not None and voter.role == "witness":
        return
    raise UserError(
        f"This host's witness key {short(identity.key)} is not among the witnesses of "
        f"{options.project_path}, revision {project.charter.revision}. On the owner's machine run "
        f"`shoal project add-witness {identity.key.hex()} PROJECT`, then copy the signed file here."
    )


async def _main(
    options: WitnessOptions, project: OpenedProject, identity: Identity, stopper: Stopper
) -> int:
    store = options.home.witness_store(project.id, options.instance)
    transport = Transport(
        identity,
        port=options.port,
        bootstrap=options.bootstrap,
        topics=(seat_topic(project.id), learners_topic(project.id)),
        on_state=_tell_network,
        announce=options.announce,
        listen_host=options.listen_host,
        bulk=options.bulk,
        known=peer_file(options.home, project.id, "witness", options.instance, own=identity.key),
        relay_bytes_per_s=options.network.relay_bytes_per_s,
        hints=(*options.hints, *options.network.bootstrap, *kept_addresses(store)),
    )
    try:
        await transport.start_with_retry(
            lambda reason, next_try_s: log.warning("%s; next try in %.0f s", reason, next_try_s)
        )
        while True:
            daemon = WitnessDaemon(options, project, identity, transport)
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


class WitnessDaemon:
    """All parts of a running witness."""

    def __init__(
        self,
        options: WitnessOptions,
        project: OpenedProject,
        identity: Identity,
        transport: Transport,
    ) -> None:
        self.options = options
        self.identity = identity
        self.transport = transport
        self.started_s = time.monotonic()
        self.feed = EventLog()
        self._kept_addresses: tuple[str, ...] = ()
        self.files = VoterFiles(options.home.witness_store(project.id, options.instance))
        self.project = newest_of(project, self.files.charter())
        self.disk_pool = ThreadPoolExecutor(1, thread_name_prefix="disk")
        self.machine = self._recovered()
        self.driver = Driver(
            self.machine, transport, run_job=self.run_job, act=self.act, on_fact=self.on_fact
        )
        self.partition_monitor = voter_vigil(transport, self.machine.raft)

    def _recovered(self) -> WitnessMachine:
        files, charter = self.files, self.project.charter
        if files.log.cut_bytes:
            log.warning(
                "the log's last %d bytes were half written; they are cut off", files.log.cut_bytes
            )
        ballot = files.settle(files.boot(), charter.epoch)
        enter_epoch(files, charter)
        view = scan(files, charter, self.identity)
        setup = RaftSetup(
            project=self.project.id,
            owner=self.project.genesis.owner,
            signer=self.identity,
            verify=verify_ed25519,
            rng=random.Random(os.urandom(8)),
            wall_offset_s=time.time() - time.monotonic(),
            nonce=int.from_bytes(os.urandom(7)),
            addresses=tuple(self.transport.addresses())[: limits.ADDRESSES_MAX],
        )
        return WitnessMachine(
            setup,
            start=log_start(files, view),
            ballot=ballot,
            charter_envelope=self.project.envelope,
            charter=charter,
        )

    async def run(self, stopper: Stopper) -> int:
        """Vote until the machine stops; then free everything."""
        control = ControlServer(
            self.options.home.socket("witness", self.options.instance),
            {
                "status": self._status,
                "stop": self._stop,
                "events": self.feed.answer,
                "charter": self._take_charter,
            },
            monitor=self.options.monitor,
        )
        await control.start()
        stopper.on_ask = lambda reason: self.driver.take(StopAsked(reason))
        log.info("witness %s for %s", short(self.identity.key), self.project.genesis.name)
        log.info("log in %s, certified to record %d", self.files.root, self.machine.raft.log.last)
        try:
            async with background(self._look_after_disk, self.partition_monitor.run):
                stop = await self.driver.run()
        finally:
            with tidying("the control socket"):
                await control.close()
            self.disk_pool.shutdown(wait=True, cancel_futures=True)
            self.files.close()
        log.info("%s", stop.reason)
        return stop.exit_code

    # What the machine asks for.

    async def run_job(self, job: Job) -> JobResult:
        """Carry out one job, on the disk's own thread in the order it was asked for."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.disk_pool, self._keep, job)

    def _keep(self, job: Job) -> JobResult:
        match job:
            case SaveBallot(ballot):
                self.files.save_ballot(ballot)
                return BallotSaved(ballot)
            case Append(after, records):
                self.files.append(after, records)
                return Appended(after + len(records))
            case KeepProofs(certificates):
                self.files.keep_proofs(certificates)
                return ProofsKept()
            case InstallState(entry, summary, origins):
                self.files.begin_behind(entry, summary, origins)
                return Installed()
        raise AssertionError(f"nobody carries out {type(job).__name__}")

    def act(self, action: object) -> None:
        """Carry out a local action."""
        match action:
            case Keep(entry, _):
                self._small(partial(self.files.keep_certificate, entry.certificate))
            case KeepCharter(envelope):
                try:
                    self.files.keep_charter(envelope)  # At once: a restart may follow.
                except TransientError as error:
                    log.warning("%s", error)

    def on_fact(self, fact: Fact) -> None:
        """Log it."""
        logs.tell(fact)
        self.feed.tell(fact)

    # Background.

    def _small(self, write: Callable[[], object]) -> None:
        """A small write whose loss costs nothing: it is made again, or asked for."""

        def keep() -> None:
            try:
                write()
            except TransientError as error:
                log.warning("%s", error)

        self.disk_pool.submit(keep)

    async def _look_after_disk(self) -> None:
        """Remember where the other voters are, and let go of old records."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            self._keep_addresses()
            if self.files.last - self.files.floor.index > RECORDS_KEPT + RECORDS_SLACK:
                self._small(partial(self.files.forget_old, RECORDS_KEPT))

    def _keep_addresses(self) -> None:
        found = []
        for peer in self.machine.raft.context.peers.values():
            for text in peer.addresses:
                with contextlib.suppress(UserError):
                    if addresses.parse_peer(text).key == peer.key:
                        found.append(text)
                        break
        kept = tuple(sorted(found))
        if kept and kept != self._kept_addresses:
            self._kept_addresses = kept
            self._small(partial(self.files.keep_addresses, kept))

    # The control socket.

    def _status(self, _: dict[str, Any]) -> dict[str, Any]:
        return {"status": msgspec.to_builtins(self.snapshot())}

    def snapshot(self) -> WitnessStatus:
        """How this witness is."""
        now_s = time.monotonic()
        genesis, charter = self.project.genesis, self.machine.raft.log.charter
        return WitnessStatus(
            key=self.identity.key.hex(),
            name=self.options.instance,
            pid=os.getpid(),
            version=software.version(),
            uptime_s=now_s - self.started_s,
            sentence=sentence(self.machine, now_s),
            project=ProjectStatus(
                id=self.project.id.hex(),
                name=genesis.name,
                fragments=genesis.fragments,
                parameters=sum(tensor.numel for tensor in genesis.model.tensors),
                token_budget=charter.limits.tokens,
                local_steps=charter.rounds.local_steps,
                quorum=charter.rounds.quorum,
            ),
            seat=seat_status(self.machine.raft, now_s),
            log_index=self.machine.raft.log.certified,
            stored_from=self.files.floor.index + 1,
            network=network_status(self.transport, self.partition_monitor.trouble),
            faults=all_faults(self.transport, self.machine.faults),
        )

    def _stop(self, _: dict[str, Any]) -> dict[str, Any]:
        asyncio.get_running_loop().call_soon(self.driver.take, StopAsked("stopped by its owner"))
        return {}

    def _take_charter(self, request: dict[str, Any]) -> dict[str, Any]:
        """Take a newer charter, signed by the owner, and pass it on."""
        try:
            envelope = wire.decode(bytes.fromhex(str(request.get("envelope"))), Envelope)
            self.driver.ask(partial(self.machine.offer_charter, envelope))
        except (RemoteError, ValueError) as error:
            raise UserError(f"The charter was not taken: {error}") from error
        return {"revision": self.machine.raft.context.newest_charter.revision}


def sentence(machine: WitnessMachine, now_s: float) -> str:
    """How things are, in words that are true now."""
    raft = machine.raft
    if raft.replication.store_trouble:
        return f"Not voting for new records: {raft.replication.store_trouble}."
    if raft.log.voter(raft.context.key) is None and not raft.context.is_forming:
        return "This host is no voter of the charter in force. If that is meant, stop it."
    if machine.is_installing:
        return "Taking the state of the log from the leader; this one was left behind."
    if raft.leader is None:
        return f"No leader: {waiting_words(raft, now_s)}."
    heard_s = max(0.0, now_s - raft.context.leader_heard_s)
    away = [row for row in seat_status(raft, now_s).voters if not row.is_here and not row.is_leader]
    names = ", ".join(f"{row.role} {row.key[:8]}" for row in away)
    tail = f" Not here: {names}." if away else ""
    return f"All is well. Voting with {short(raft.leader)}, heard {heard_s:.0f} s ago.{tail}"
