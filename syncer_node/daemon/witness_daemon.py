"""The witness daemon: a vote and a log, without tensors. Small on purpose.

Behaviour is in `WitnessMachine`, the disk in `VoterFiles`; this wires them to the network.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
from functools import partial

from host.control.status_parts import all_faults, network_status, project_status
from host.files.keystore import Identity
from host.files.signed_project import OpenedProject
from host.options import WitnessOptions
from host.runtime import software
from host.transport import Transport
from protocol import limits
from protocol.ids import short
from protocol.signing import verify_ed25519
from protocol.status import WitnessStatus
from syncer_node.daemon.voter_daemon import VoterDaemon, Work, run_voter
from syncer_node.daemon.voting_status import away_words, seat_status, waiting_words
from syncer_node.machine.witness import WitnessMachine
from syncer_node.raft.context import RaftSetup
from syncer_node.storage.recovery import enter_epoch, log_start, scan
from syncer_node.storage.voter_files import VoterFiles

log = logging.getLogger("shoal.witness")

RECORDS_KEPT = 10_000
"""Certified records that stay on the disk. A voter that lacks older ones asks a leader."""

RECORDS_SLACK = 2_500
"""Rewriting the log is put off until it has this many more."""

LOOK_EVERY_S = 1.0


def run(options: WitnessOptions) -> int:
    """Run a witness until it is stopped; the exit code."""
    return run_voter(options, "witness", WitnessDaemon, _no_vote)


def _no_vote(identity: Identity, project: OpenedProject, options: WitnessOptions) -> str:
    return (
        f"This host's witness key {short(identity.key)} is not among the witnesses of "
        f"{options.project_path}, revision {project.charter.revision}. On the owner's machine run "
        f"`shoal project add-witness {identity.key.hex()} PROJECT`, then copy the signed file here."
    )


class WitnessDaemon(VoterDaemon[WitnessOptions]):
    """All parts of a running witness."""

    role = "witness"

    def __init__(
        self,
        options: WitnessOptions,
        project: OpenedProject,
        identity: Identity,
        transport: Transport,
    ) -> None:
        files = VoterFiles(options.home.voter_store(project.id, "witness", options.instance))
        super().__init__(options, project, identity, transport, files)
        self.parameters = sum(tensor.numel for tensor in self.project.genesis.model.tensors)
        self.machine = self._recovered()
        self._drive(self.machine, self.machine.raft)

    def _recovered(self) -> WitnessMachine:
        files, charter = self.files, self.project.charter
        if files.log.cut_bytes:
            log.warning(
                "cut off the log's last %d bytes: they were half written", files.log.cut_bytes
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
            name=self.given_name,
        )
        return WitnessMachine(
            setup,
            start=log_start(files, view),
            ballot=ballot,
            charter_envelope=self.project.envelope,
            charter=charter,
        )

    def _greet(self) -> None:
        log.info("witness %s for %s", short(self.identity.key), self.project.genesis.name)
        log.info("log in %s, certified to record %d", self.files.root, self.machine.raft.log.last)
        for address in self.transport.addresses()[:1]:
            log.info("syncers that it cannot dial find it with --bootstrap %s", address)

    def _works(self) -> tuple[Work, ...]:
        return (self._look_after_disk,)

    def _close(self) -> None:
        self.disk_pool.shutdown(wait=True, cancel_futures=True)
        self.files.close()

    async def _look_after_disk(self) -> None:
        """Remember where the other voters are, and let go of old records."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            self._keep_addresses()
            if self.files.last - self.files.floor.index > RECORDS_KEPT + RECORDS_SLACK:
                self.write_soon(partial(self.files.forget_old, RECORDS_KEPT))

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
            project=project_status(self.project.id, genesis, self.parameters, charter),
            seat=seat_status(self.machine.raft, now_s),
            log_index=self.machine.raft.log.certified,
            stored_from=self.files.floor.index + 1,
            network=network_status(self.transport, self.partition_monitor.trouble),
            faults=all_faults(self.transport, self.machine.faults),
        )


def sentence(machine: WitnessMachine, now_s: float) -> str:
    """How things are, in words that are true now."""
    raft = machine.raft
    if raft.replication.store_trouble:
        return f"Not voting for new records: {raft.replication.store_trouble}."
    if raft.log.voter(raft.context.key) is None and not raft.context.is_forming:
        return "This host is not a voter in the charter in force. If that is intended, stop it."
    if machine.is_installing:
        return "Fetching the log's state from the leader: this witness fell behind."
    if raft.leader is None:
        return f"No leader: {waiting_words(raft, now_s)}."
    heard_s = max(0.0, now_s - raft.context.leader_heard_s)
    away = away_words(raft, now_s)
    how = "" if away else "All is well. "
    return f"{how}Voting with {short(raft.leader)}, heard {heard_s:.0f} s ago.{away}"
