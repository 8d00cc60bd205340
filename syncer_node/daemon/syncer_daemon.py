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
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from host import qr_code
from host.bulk import speed_probe
from host.bulk.blob_store import BlobStore
from host.control.pace_meter import PaceMeter
from host.control.progress import tell_progress
from host.control.server import Verb
from host.control.status_parts import (
    all_faults,
    keep_pace,
    network_status,
    project_status,
    swarm_status,
)
from host.control.weights import Cut, WeightsVerbs
from host.files.held_base import HeldBase
from host.files.keystore import Identity
from host.files.mapped_arrays import MappedArrays, in_memory
from host.files.pinned_files import PinnedFiles
from host.files.shard_files import ShardFiles
from host.files.signed_project import OpenedProject
from host.join_link import JoinLink, format_link
from host.network.leader_discovery import (
    ANNOUNCE_EVERY_S,
    ANNOUNCE_TTL_S,
    SeatNotice,
    seat_topic,
)
from host.options import SyncerOptions
from host.runtime import software
from host.runtime.compute_pool import Cores
from host.runtime.loop_lag import LoopLagMonitor
from host.tape.tape_file import TapeLabel
from host.tape.taping import begin_tape
from host.transport import Transport
from protocol import limits, wire
from protocol.errors import CorruptState, TransientError, UserError
from protocol.fragments import Layout, build_layout
from protocol.ids import short
from protocol.log.records import FragmentMerged, read_record
from protocol.machine import Job, JobResult, StopAsked
from protocol.messages import RUN_COMPLETE, Envelope
from protocol.numerics.outer import digest
from protocol.peers.nearby import NearbyNotice
from protocol.peers.project_code import nearby_command
from protocol.signing import verify_ed25519
from protocol.status import SyncerStatus
from protocol.trace import Fact, FragmentCommitted, PhaseChanged, PushSettled, QuorumReached
from syncer_node.daemon import status
from syncer_node.daemon.job_executor import JobExecutor
from syncer_node.daemon.shard_copies import ShardCopies
from syncer_node.daemon.voter_daemon import VoterDaemon, Work, run_voter
from syncer_node.daemon.voting_status import seat_status, show_mergers
from syncer_node.machine import jobs
from syncer_node.machine.leadership import Phase
from syncer_node.machine.merge_totals import MergeTotals
from syncer_node.machine.setup import SyncerSetup
from syncer_node.storage.averages import Averages
from syncer_node.storage.checkpoints import CheckpointStore
from syncer_node.storage.ledger import SHOWN_MAX, leading_rows, ledger_of
from syncer_node.storage.merge_bank import MergeBank
from syncer_node.storage.store import Store
from syncer_node.storage.tape_recorder import RecordedMachine, payload_tape

log = logging.getLogger("shoal.syncer")

LINGER_S_MIN, LINGER_S_MAX = 3.0, 30.0
"""With `exit_when_done`: how long the syncer stays, for screens and learners that come back."""

LINGER_LOOK_S = 0.5
PEERS_REPORTED_MAX = 1024
ANNOUNCE_LOOK_S = 1.0
LINK_OWN_MAX = 2
LINK_ADDRESSES_MAX = 4
"""Of a join link: with them it finds the swarm when this host is away."""

RECALLED = 128
"""Records of the log that a new leader looks at, so that averages do not begin anew with it."""

FEW = 16
"""Learners here whose merged pushes have a line each in the log."""


def is_one_of_many(fact: Fact, learners: int) -> bool:
    """Whether a fact is a push that went into a merge, as hundreds do where so many learners are.

    The merge has a line of its own, which says how many there were. Lines of each push would be
    seven in eight, and would push what happened yesterday out of the log, and all else off screens.
    """
    return learners > FEW and isinstance(fact, PushSettled) and fact.outcome == "merged"


def run(options: SyncerOptions) -> int:
    """Run a syncer until it is stopped; the exit code."""
    return run_voter(options, "syncer", SyncerDaemon, _no_vote)


def _noted_base(options: SyncerOptions, project: bytes) -> Path | None:
    """Where the base model lay on this machine when the project was signed here."""
    note = options.home.base_note(project)
    return Path(note.read_text()) if note.is_file() else None


def _no_vote(identity: Identity, project: OpenedProject, options: SyncerOptions) -> str:
    return (
        f"This host's syncer key {short(identity.key)} is not among the project's voters. Sign "
        f'the project on this host, or add key = "{identity.key.hex()}" under [[voters]] in the '
        "project file and sign it again."
    )


class SyncerDaemon(VoterDaemon[SyncerOptions]):
    """All parts of a running syncer."""

    role = "syncer"

    def __init__(
        self,
        options: SyncerOptions,
        project: OpenedProject,
        identity: Identity,
        transport: Transport,
    ) -> None:
        self.store = Store(options.home.syncer_store(project.id, options.instance))
        super().__init__(options, project, identity, transport, self.store.voter)
        project, genesis, charter = self.project, self.project.genesis, self.project.charter
        self.layout: Layout = build_layout(
            genesis.model.tensors, genesis.strategy, genesis.fragments
        )
        self.ended_s: float | None = None
        self._is_news = asyncio.Event()
        self.books = MergeTotals()
        self.loop_watch = LoopLagMonitor()
        self.pace = PaceMeter(self.project.genesis.fragments)
        self.blob_store = BlobStore(clock=time.monotonic)
        self.blob_store.put(project.id, project.genesis_bytes)
        cores = Cores(options.threads)
        self.averages = Averages(self.store.root, len(self.layout.fragments))
        self.mapped: MappedArrays | None = None
        if options.weights_on_disk:
            self.mapped = MappedArrays(options.home.mapped_weights(f"syncer-{options.instance}"))
        self.bank = MergeBank(
            self.layout,
            charter,
            self.blob_store,
            workers=cores,
            on_version=self.averages.take,
            keep=self.mapped.keep if self.mapped else in_memory,
        )
        self.weights = WeightsVerbs(project.genesis_bytes, self._newest_weights)
        cache = options.home.data_cache()
        self.pinned_files = PinnedFiles(cache, project.genesis.tokenizer)
        self.held_base = HeldBase(cache, project.genesis)
        self.shard_files = ShardFiles(cache, project.genesis)
        base = options.base or _noted_base(options, project.id)
        self.disk = CheckpointStore(
            self.store, self.bank, project, identity, base, cache, self.averages
        )
        self.disk.held_base = self.held_base
        self.recorded = self._recorded_machine()
        self.machine = self.recorded.inner
        self.executor = JobExecutor(
            transport=transport,
            store=self.store,
            bank=self.bank,
            disk=self.disk,
            disk_pool=self.disk_pool,
            cores=cores,
            project=project.id,
            kept_marks=lambda: self.machine.state.marks.keys() | self.machine.state.candidates,
            other_syncers=self._other_syncers,
            payloads=payload_tape(self.tape, options.tape.mib_max, self.layout.parameters),
        )
        self._drive(self.recorded, self.machine.raft)
        transport.serve_blobs(self._find_blob)
        transport.is_member = self._is_member

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
                name=self.given_name,
            ),
            self.disk.recover(),
            rng_seed,
            self.tape,
            software=f"shoal {software.version()}",
        )

    def _is_member(self, key: bytes) -> bool:
        return self.machine.raft.is_voter(key) or self.machine.state.has_merges(key)

    def _find_blob(self, peer: bytes, name: bytes) -> memoryview | None:
        """What is offered under this digest; other voters also get payloads from the disk."""
        held, is_voter = self.blob_store.get(name), self.machine.raft.is_voter(peer)
        if held is None and is_voter:
            held = self.store.find_payload(name)
        if held is not None and self.bank.is_merged(name):
            may_give = self.executor.may_give(peer, name, len(held), is_voter=is_voter)
            return held if may_give else None
        if held is None:
            held = self.pinned_files.find(name) or self.held_base.find(name)
            held = held or self.shard_files.find(name)
        return speed_probe.find(name) if held is None else held

    def join_link(self) -> str:
        """What people paste to take part: this host first, then the other voters.

        Hosts that nobody can dial are left out, unless there is no other.
        """
        own = tuple(self.transport.addresses())[:LINK_OWN_MAX]
        if not own:
            return ""
        found = {peer.key: self._address_of(peer) for peer in self._raft.context.peers.values()}
        ways = self.transport.paths()
        others = tuple(text for key, text in found.items() if text and ways.get(key) != "relayed")
        is_hidden = self.transport.reachability.is_hidden
        places = others if others and is_hidden else (*own, *others)
        return format_link(
            JoinLink(
                project=self.project.id,
                genesis_bytes=len(self.project.genesis_bytes),
                name=self.project.genesis.name,
                addresses=places[:LINK_ADDRESSES_MAX],
            )
        )

    def _verbs(self) -> Mapping[str, Verb]:
        return {
            "drain": self._drain,
            "ledger": self._ledger,
            "snapshot": self._take_snapshot,
            "loop_lag": self.loop_watch.answer,
            **self.weights.verbs(),
        }

    def _newest_weights(self) -> Cut:
        state, fragments = self.machine.state, range(len(self.layout.fragments))
        try:
            newest = [self.bank.current(fragment).theta for fragment in fragments]
        except CorruptState as error:  # None yet, or it is still loading them.
            raise TransientError(
                "This syncer has no weights yet. Try again in a moment."
            ) from error
        return Cut(state.global_step, state.tokens, newest)

    def _works(self) -> tuple[Work, ...]:
        return (
            self._announce,
            lambda: tell_progress(self._progress_line, log),
            self._leave_when_done,
            self.loop_watch.run,
            lambda: keep_pace(self.pace, lambda: self.machine.state),
            self._check_base,
            ShardCopies(self.transport, self.shard_files, self._other_syncers).run,
        )

    def _close(self) -> None:
        self.executor.close()
        self.averages.close()
        self.tape.close()

    def _nearby_notice(self, nonce: bytes) -> NearbyNotice | None:
        if self.machine.state.ended is not None:
            return None  # There is nothing left to take part in.
        return super()._nearby_notice(nonce)

    def _learners_here(self) -> int | None:
        leadership = self.machine.leadership
        return sum(1 for _ in leadership.members.live()) if leadership is not None else None

    def _greet(self) -> None:
        if self.machine.state.ended is not None:
            self.ended_s = time.monotonic()
        genesis = self.project.genesis
        log.info(
            "syncer %s for %s: %s parameters in %d fragments",
            short(self.identity.key),
            genesis.name,
            f"{self.layout.parameters:,}",
            genesis.fragments,
        )
        log.info("log and checkpoints in %s", self.store.root)
        whom = {
            "open": "To take part, run on any host",
            "invite": "Known learners join with this link, others by `shoal invite`",
            "list": "Learners that `shoal project allow` listed join with this link",
        }[self.machine.setup.charter.admission]
        link = self.join_link()
        print(f"\n{whom}:\n\n    shoal join '{link}'\n{qr_code.beside(link)}", flush=True)
        if self.options.network.nearby is not False:
            print(f"On the same network:\n\n    {nearby_command(self.project.id)}\n", flush=True)
        print("To see this again: shoal invite\n", flush=True)

    # What the machine asks for.

    async def run_job(self, job: Job) -> JobResult:
        """Carry out one job, under the charter of now."""
        self.bank.charter = self.machine.setup.charter
        return await self.executor.run_job(job)

    def act(self, action: object) -> None:
        """Carry out a local action."""
        match action:
            case jobs.Adopt(fragment, version, payload):
                self.bank.adopt(fragment, version, payload)
                if self.mapped is not None:
                    self.mapped.relax()
            case jobs.AdoptRestored(restored):
                self.bank.adopt_restored(restored)
            case jobs.Forget() | jobs.OfferPush() | jobs.RetractPush():
                self._act_on_pushes(action)
            case jobs.TellWatchers():
                self._tell_watchers(action)
            case jobs.OfferCheckpoint():
                self.write_soon(partial(self.executor.offer_checkpoint, action))
            case jobs.CutSnapshot():
                self.executor.cut_snapshot(action)
            case jobs.DropSnapshot(snapshot):
                self.write_soon(partial(self.disk.snapshots.drop, snapshot))
            case jobs.NameBest(index):
                self.write_soon(partial(self.disk.name_best, index))
            case _:
                super().act(action)

    def _tell_watchers(self, told: jobs.TellWatchers) -> None:
        for peers, most in (
            (told.peers, PEERS_REPORTED_MAX),
            (told.learners, limits.LEARNERS_TOLD_MAX),
        ):
            if peers:
                report = status.report(self.public, most)
                for peer in peers:
                    self.driver.send(peer, report)

    def _act_on_pushes(self, action: jobs.Forget | jobs.OfferPush | jobs.RetractPush) -> None:
        match action:
            case jobs.Forget(pushes):
                for push in pushes:
                    self.bank.forget_push(push)
            case jobs.OfferPush(push, payload):
                self.bank.offer_push(push, payload)
            case jobs.RetractPush(payload):
                self.bank.retract_push(payload)

    def _offer_charter(self, envelope: Envelope) -> tuple[bytes, int]:
        encoded = wire.encode(envelope)
        name = digest(encoded)
        if self.blob_store.get(name) is None:
            self.blob_store.put(name, encoded)
        return name, len(encoded)

    def on_fact(self, fact: Fact) -> None:
        """Log it, and keep the books."""
        leadership = self.machine.leadership
        learners = len(leadership.members.sessions) if leadership is not None else 0
        if not is_one_of_many(fact, learners):
            super().on_fact(fact)
        if isinstance(fact, FragmentCommitted):
            charter = self.machine.setup.charter
            self.books.add(fact, self.layout, charter.rounds)
        if isinstance(fact, QuorumReached):
            self.books.grace_s = fact.grace_s
        if isinstance(fact, PhaseChanged):
            self._is_news.set()  # Perhaps of who leads.
            if fact.phase == Phase.TRAINING.value and not self.books.participants:
                self._recall_merges()
            if fact.phase == Phase.ENDED.value:
                log.info("the model can be exported: shoal export --to DIR")
                self.ended_s = time.monotonic()

    def _recall_merges(self) -> None:
        """What was merged before this daemon led, as far as it says what is usual."""
        files = self.store.voter
        for encoded in files.between(max(files.floor.index, files.last - RECALLED), files.last):
            body = read_record(encoded).body
            if isinstance(body, FragmentMerged):
                self.books.recall(body)

    # Background.

    def _other_syncers(self) -> list[bytes]:
        charter = self.machine.setup.charter
        return [v.key for v in charter.voters if v.role == "syncer" and v.key != self.identity.key]

    async def _announce(self) -> None:
        """Tell the swarm, again and again and at once when it is new, who holds the seat."""
        said_s, said_term = -1e9, -1
        while True:
            machine, state = self.machine, self.machine.state
            # A leader of a lost history says so to whoever asks it.
            leads = machine.leadership is not None or (machine.lost and machine.raft.is_leading)
            is_due = time.monotonic() - said_s >= ANNOUNCE_EVERY_S or said_term != state.term
            if leads and is_due:
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

    async def _check_base(self) -> None:
        """What is here of a frozen base model can be given from then on."""
        await asyncio.to_thread(self.held_base.missing)

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
            relays=self.transport.reachability.relays,
        )

    async def _leave_when_done(self) -> None:
        """With `exit_when_done`: stop once everybody who was here lately has heard of the end."""
        while self.options.exit_when_done:
            await asyncio.sleep(LINGER_LOOK_S)
            if self.ended_s is None:
                continue
            # Whoever said goodbye after the end has heard it. Whoever vanished may come back, also
            # those who hold leases since before this syncer was restarted.
            leadership = self.machine.leadership
            sessions = leadership.members.sessions if leadership is not None else {}
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

    # For screens.

    def snapshot(self) -> SyncerStatus:
        """Everything a screen could want."""
        machine, books = self.machine, self.books
        now_s = time.monotonic()
        charter, genesis = machine.setup.charter, self.project.genesis
        leadership = machine.leadership
        newest = [fragment.version for fragment in machine.state.fragments]
        peers = status.peer_rows(leadership, newest, now_s) if leadership else []
        status.add_links(peers, self.transport)
        seat = seat_status(machine.raft, now_s, machine.standby.trouble)
        if leadership is not None:
            show_mergers(seat, leadership.mergers)
        accounts = machine.state.accounts
        here = {session.peer for session in leadership.members.live()} if leadership else set()
        return SyncerStatus(
            key=self.identity.key.hex(),
            name=self.options.instance,
            pid=os.getpid(),
            version=software.version(),
            uptime_s=now_s - self.started_s,
            phase=machine.phase,
            sentence=status.sentence(machine, now_s),
            join_link=self.join_link(),
            project=project_status(self.project.id, genesis, self.layout.parameters, charter),
            swarm=swarm_status(machine.state, charter, self.pace),
            network=network_status(self.transport, self.partition_monitor.trouble),
            peers=peers,
            rounds=status.round_rows(leadership, now_s) if leadership else [],
            merges=list(books.recent),
            merges_here=books.merges,
            participants_mean=accounts.merges / max(1, machine.state.global_step),
            effective_h=books.effective_h,
            grace_s=books.grace_s,
            slack_s=leadership.rounds.window.slack_s() if leadership else None,
            outcomes=status.outcomes(machine),
            faults=all_faults(self.transport, machine.faults),
            fragments=newest,
            push_bytes=books.push_bytes,
            push_params=books.push_params,
            payload_bytes=books.payload_bytes,
            payload_params=books.payload_params,
            checkpoint_dir=str(self.store.root / "checkpoints"),
            seat=seat,
            snapshots=status.snapshot_status(machine, now_s),
            loop_lag=self.loop_watch.lag(),
            contributors=leading_rows(machine.state, here),
            contributors_all=len(accounts),
            contributor_merges=accounts.merges,
            contributor_fragment_tokens=accounts.tokens,
        )

    def public(self, most: int = PEERS_REPORTED_MAX) -> SyncerStatus:
        """The snapshot for strangers: nothing about this machine but what the swarm sees anyway.

        most: learners that it names, first those that are here.
        """
        shown = self.snapshot()
        shown.pid = 0
        shown.checkpoint_dir = ""
        shown.network.addresses, shown.network.bulk, shown.network.bulk_port = [], [], 0
        shown.network.reach_detail = shown.network.router = ""
        shown.peers_unnamed = max(0, len(shown.peers) - most)
        if shown.peers_unnamed:
            shown.peers.sort(key=lambda row: row.state in ("left", "gone"))
            del shown.peers[most:]
        del shown.contributors[max(most, SHOWN_MAX) :]
        for row in shown.peers:
            row.bulk_detail = ""
        return shown

    def _progress_line(self) -> str:
        """One line now and then for the terminal of `shoal syncer run`."""
        now = self.snapshot()
        if not now.merges_here or now.phase != "training":
            return now.sentence
        loss = f", held-out loss {now.swarm.curve[-1][2]:.4f}" if now.swarm.curve else ""
        training = sum(peer.state == "training" for peer in now.peers)
        return (
            f"global step {now.swarm.global_step:,} ({now.swarm.progress:.1%} of the tokens)"
            f"{loss}, {training} training, {now.participants_mean:.1f} per merge, "
            f"effective H {now.effective_h:.1f}"
        )

    # The control socket.

    def _ledger(self, _: dict[str, Any]) -> dict[str, Any]:
        """Everything that the log counts, and for whom."""
        leadership = self.machine.leadership
        here = {session.peer for session in leadership.members.live()} if leadership else set()
        told = ledger_of(self.project, self.machine.state, here, time.time())
        return {"ledger": msgspec.to_builtins(told)}

    def _drain(self, _: dict[str, Any]) -> dict[str, Any]:
        """Give the seat to a standby. UserError where nobody could take it."""
        machine = self.machine
        others = machine.raft.replication.standbys() if machine.raft.is_leading else []
        if machine.raft.is_leading and not others:
            raise UserError(
                "No standby is up to date, so this syncer keeps the seat. Start another syncer "
                "of this project, or see `shoal status` for why it lags."
            )
        self.driver.ask(self.recorded.drain)
        return {"was_leading": machine.raft.is_leading, "standbys": [p.key.hex() for p in others]}

    def _take_snapshot(self, _: dict[str, Any]) -> dict[str, Any]:
        """Begin a snapshot, or name the one under way. UserError where none can be taken."""
        leadership = self.machine.leadership
        if leadership is None or not self.machine.state.has_weights:
            words = status.sentence(self.machine, time.monotonic())
            raise UserError(f"This syncer cannot take a snapshot now. {words}")
        self.driver.ask(self.recorded.take_snapshot)
        taking = leadership.snapshots.taking
        return {"snapshot": taking.snapshot if taking is not None else 0}
