"""Synthetic learners: everything a syncer sees of a learner, and no model.

    python benchmarks/synthetic.py --link LINK --home DIR --payloads DIR --count N [--download]

Each has a key, a network engine and the machine of a real learner daemon, on the real transport:
sessions, leases, heartbeats, signed pushes and their payloads are what a syncer always gets. In
place of the trainer there is a clock: a local step every so many seconds. In place of tensors there
are a few prepared payloads of each fragment, which learners hand in by turns: they have half of
their length in common, as honest pushes do, or a syncer would take them for copies of each other.
Weights are never fetched; merged payloads are, with `--download`, by those whose turn it is to ask
the syncer, and then thrown away: the outer step that would follow is the learner's own business,
and so is whom the others ask.

With `--light` their network engines hold no part of the swarm's table and so are connected with the
syncer alone. That is not how learners are: it is for more of them than fit on one machine when each
is connected with each.

Tells its parent in lines of JSON on standard output: `up` for each learner that could train, and
with `--observe` `merge` for each merge that its first learner hears of, with the time (monotonic,
which all processes of a machine share). A first line on standard input begins the local steps of
all: merges of the first hundred would take what the others need to start. Ends with its standard
input; the last line is `end`, with all that was counted.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import mmap
import os
import random
import sys
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvloop
from blake3 import blake3

from host.addresses import parse_peer
from host.bulk.giving import Giving
from host.driver import Driver
from host.files import keystore
from host.join_link import JoinLink, parse_link
from host.network import dht_protocol, hivemind_parts
from host.network.leader_discovery import learners_topic, seat_topic
from host.options import DONATE_MBPS
from host.runtime import garbage
from host.runtime.lifecycle import background, quiet_about_peers
from host.transport import Transport
from node.daemon.leader_watch import leader_watch
from node.download.locator import Locator, fetch_genesis
from node.download.payload_donors import donors
from node.download.payload_fetcher import PayloadFetcher
from node.machine import jobs
from node.machine.context import LearnerSetup
from node.machine.learner import LearnerMachine
from protocol import limits, wire
from protocol.errors import RemoteError, TransientError
from protocol.fragments import Layout, build_layout
from protocol.ids import short
from protocol.log.records import FragmentMerged, Span
from protocol.machine import Failed, Job, JobResult, Note, StopAsked
from protocol.messages import Cursor
from protocol.project import Genesis
from protocol.signing import verify_ed25519

STARTS_AT_ONCE = 2
CLOSES_AT_ONCE = 4

Tell = Callable[..., None]


def make_light() -> None:
    """All network engines of this process from now on."""

    class Light(hivemind_parts.P2P):  # type: ignore[misc]  # the engine ships no types
        @classmethod
        async def create(cls, *words: Any, **settings: Any) -> Any:
            return await super().create(*words, dht_mode="client", **settings)

    class LightNode:
        create = functools.partial(hivemind_parts.DHTNode.create, client_mode=True)

    vars(hivemind_parts).update(P2P=Light)
    vars(dht_protocol).update(DHTNode=LightNode)


def tell(kind: str, **words: object) -> None:
    """A line for the parent."""
    print(json.dumps({"kind": kind, "at_s": time.monotonic(), **words}), flush=True)


class Payloads:
    """Prepared payloads of each fragment, mapped into memory: processes share its pages."""

    def __init__(self, folder: Path) -> None:
        """folder: holds FRAGMENT-VARIANT.bin, as many variants of each fragment."""
        self.by_digest: dict[bytes, memoryview] = {}
        self.digests: dict[int, list[bytes]] = {}
        for place in sorted(folder.glob("*.bin")):
            with place.open("rb") as file:
                held = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            digest = blake3(held).digest()
            self.by_digest[digest] = held
            self.digests.setdefault(int(place.stem.partition("-")[0]), []).append(digest)

    def pick(self, fragment: int, turn: int) -> bytes:
        """The digest of one of the fragment's; another one with each turn."""
        known = self.digests[fragment]
        return known[turn % len(known)]


@dataclass(slots=True, kw_only=True)
class Manner:
    """How these learners behave."""

    step_s: float
    """Of one local step."""
    downloads: bool
    """Whether merged payloads are fetched."""
    gives: bool = False
    """Whether they are given to other learners, and fetched from these, as daemons do; otherwise
    those whose turn it is fetch them of the leader, and the others leave them."""


MERGED_KEPT = 48
"""Merged payloads that a learner gives to others."""


class Clockwork:
    """An inner loop of nothing but time: counters, and the leased text that it would have read."""

    def __init__(self, batch: int, sequence_tokens: int, block_sequences: int) -> None:
        self.batch, self.sequence_tokens = batch, sequence_tokens
        self.block_sequences = block_sequences
        self.spans: deque[Span] = deque()
        self.local_step = 0
        self.work_s = 0.0
        self._end = Cursor(0, 0)

    @property
    def tokens(self) -> int:
        return self.local_step * self.batch * self.sequence_tokens

    @property
    def cursor(self) -> Cursor:
        """The next unread sequence."""
        return Cursor(self.spans[0].start, self.spans[0].skip) if self.spans else self._end

    def step(self, seconds: float) -> bool:
        """One local step, if there is text for it."""
        unread = sum((s.stop - s.start) * self.block_sequences - s.skip for s in self.spans)
        if unread < self.batch:
            return False
        wanted = self.batch
        while wanted:
            span = self.spans.popleft()
            left = (span.stop - span.start) * self.block_sequences - span.skip
            if left <= wanted:
                self._end, wanted = Cursor(span.stop, 0), wanted - left
                continue
            blocks, skip = divmod(span.skip + wanted, self.block_sequences)
            self.spans.appendleft(Span(span.start + blocks, span.stop, skip))
            wanted = 0
        self.local_step += 1
        self.work_s += seconds
        return True


@functools.lru_cache(maxsize=8)
def _shared(keys: frozenset[bytes]) -> frozenset[bytes]:
    """One set for all learners of this process that know of the same ones: two that are equal and
    not the same are compared key by key, which a daemon with a log of its own never has to."""
    return keys


class Learner:
    """One synthetic learner: the daemon's machine and transport around a clock."""

    def __init__(
        self,
        home: Path,
        link: JoinLink,
        payloads: Payloads,
        manner: Manner,
        observe: bool,
        may_step: asyncio.Event | None = None,
        listen_host: str = "127.0.0.1",
    ) -> None:
        """home: is named by the number of the learner. may_step: no local step comes before."""
        self.name, self.turn = home.name, int(home.name)
        self.identity = keystore.load_or_create(home / "key")
        self.link, self.payloads, self.manner = link, payloads, manner
        self.is_observer = observe
        self.counts: Counter[str] = Counter()
        self.transport = Transport(
            self.identity,
            port=0,
            bootstrap=link.addresses,
            topics=(seat_topic(link.project), learners_topic(link.project)),
            listen_host=listen_host,
            on_state=lambda state: None if state.is_up else self._trouble(state.reason),
        )
        self.transport.serve_blobs(self._find)
        self._told: dict[int, int] = {}
        """The newest version of each fragment that the parent was told of."""
        self._merged: dict[bytes, memoryview] = {}
        self._giving = Giving(DONATE_MBPS * 1e6 / 8)
        none: frozenset[bytes] = frozenset()
        self._here = none, none
        """Who is here by its log, and the same set as other learners of this process have it."""
        self._fetcher = PayloadFetcher(self.transport, self._fault)
        self.machine: LearnerMachine
        self.driver: Driver
        self.clock: Clockwork
        self._based: dict[int, int] = {}
        """Fragment -> the version that the inner loop would stand on."""
        self._begun, self._may_step = asyncio.Event(), may_step
        self._begun_s = 0.0

    async def meet(self) -> Layout:
        """Finds the project and builds the machine and what is around it; how its model is cut."""
        await self.transport.start_with_retry(lambda reason, _: self._trouble(reason))
        encoded = await fetch_genesis(self.transport, self.link, lambda *_: None)
        genesis = wire.decode(encoded, Genesis, bytes_max=limits.GENESIS_BYTES_MAX)
        layout = build_layout(genesis.model.tensors, genesis.strategy, genesis.fragments)
        data = genesis.data
        rng = random.Random(os.urandom(8))
        named = frozenset(parse_peer(text).key for text in self.link.addresses)
        self.locator = Locator(self.transport, self.link.project, encoded, rng, named)
        self.machine = LearnerMachine(
            LearnerSetup(
                project=self.link.project,
                genesis=genesis,
                layout_digest=layout.digest,
                name=self.name,
                agent="synthetic",
                incarnation=time.time_ns() // 1_000_000,
                evaluates=False,
                micro_batch=None,
                signer=self.identity,
                verify=verify_ed25519,
                rng=rng,
                shares_moments=False,
                keeps_parts=False,
            )
        )
        self.clock = Clockwork(1, data.sequence_tokens, data.block_sequences)
        self.driver = Driver(
            self.machine,
            self.transport,
            run_job=self._run_job,
            act=self._act,
            on_fact=lambda fact: self.counts.update([type(fact).__name__]),
        )
        self.monitor = leader_watch(
            self.machine, self.locator, self.link, lambda note: self.driver.take(Note(note))
        )
        return layout

    def _trouble(self, words: str) -> None:
        print(f"{self.name}: {words}", file=sys.stderr, flush=True)

    async def run(self) -> None:
        """Takes part until it is told to stop."""
        async with background(self._train, self.monitor.run):
            stop = await self.driver.run()
        if stop.exit_code:
            self._trouble(stop.reason)

    async def _train(self) -> None:
        """A local step every so often, spread out so that learners do not step in time."""
        await self._begun.wait()
        tell("up", name=self.name)
        if self._may_step is not None:
            await self._may_step.wait()
        self._begun_s = time.monotonic()
        charter = self.machine.context.charter
        assert charter is not None, "an inner loop begins under a charter"
        self.clock.batch = charter.inner.batch_sequences
        step_s = self.manner.step_s
        due_s = self._begun_s + random.random() * step_s
        while True:
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            due_s = max(due_s + step_s, time.monotonic())
            self._step(step_s)

    def _step(self, step_s: float) -> None:
        clock = self.clock
        if not clock.step(step_s):
            self.driver.take(Note(jobs.Starved()))
            return
        alive_s = time.monotonic() - self._begun_s
        self.driver.take(
            Note(
                jobs.Stepped(
                    local_step=clock.local_step,
                    tokens=clock.tokens,
                    loss=None,
                    step_s=step_s,
                    work_s=clock.work_s,
                    alive_s=alive_s,
                    busy_s=clock.work_s,
                    cursor=clock.cursor,
                )
            )
        )

    # What the machine asks for.

    async def _run_job(self, job: Job) -> JobResult:
        match job:
            case jobs.FindSeat(after, charter):
                return await self.locator.find_seat(charter, after)
            case jobs.FetchState():
                return jobs.StateFetched(())
            case jobs.Advance(merged):
                return await self._advance(merged)
            case jobs.StartTrainer():
                return jobs.TrainerReady("synthetic", 1)
            case jobs.Deliver(fragment, version):
                self._based[fragment] = version
                return jobs.Delivered(version, self.clock.local_step, self.clock.tokens)
            case jobs.Capture(fragment):
                return self._capture(fragment)
        return Failed(f"a synthetic learner cannot carry out {type(job).__name__}")

    async def _advance(self, merged: FragmentMerged) -> jobs.Advanced:
        # A payload that cannot be had yet is asked for again.
        if self.is_observer and merged.version > self._told.get(merged.fragment, 0):
            self._told[merged.fragment] = merged.version
            many = len(merged.contributions)
            tell("merge", fragment=merged.fragment, version=merged.version, participants=many)
        if self.manner.downloads and (self.manner.gives or self._asks_leader(merged)):
            await self.download(merged)
            self.counts["downloaded_bytes"] += merged.payload_bytes
        return jobs.Advanced()

    def _find(self, peer: bytes, digest: bytes) -> memoryview | None:
        """What a peer is given now. The leader gets all, as from daemons: where nothing moves, what
        is handed in and what was merged are the same bytes."""
        merged = self._merged.get(digest)
        if merged is None or peer == self.machine.context.leader:
            return self.own_blob(digest) or merged
        self._giving.measured(self.transport.rate_limiter.up.bytes_per_s)
        may_give = self._giving.may_give(peer, digest, len(merged), time.monotonic())
        return merged if may_give else None

    def own_blob(self, digest: bytes) -> memoryview | None:
        """What it hands in."""
        return self.payloads.by_digest.get(digest)

    async def download(self, merged: FragmentMerged) -> memoryview:
        """The merged payload, from the leader or whoever has it."""
        if not self.manner.gives:
            return await self._of_leader(merged)
        state = self.machine.context.state
        here, newest = state.leases.learners, state.fragments[merged.fragment].version
        payload = await self._fetcher.fetch(merged, here, self._of_leader, newest)
        if payload is None:
            raise TransientError("nobody has the payload")
        self._merged[merged.payload] = payload
        if len(self._merged) > MERGED_KEPT:
            del self._merged[next(iter(self._merged))]
        return payload

    def _asks_leader(self, merged: FragmentMerged) -> bool:
        """Whether it is among those that a daemon would have ask the leader first."""
        here = self.machine.context.state.leases.learners
        if here is not self._here[0]:
            self._here = here, _shared(here)
        return not donors(merged.payload, self._here[1], self.identity.key, merged.copies)

    async def _of_leader(self, merged: FragmentMerged) -> memoryview:
        leader = self.machine.context.leader
        sources = [leader] if leader is not None else []
        wanted = [(merged.payload, merged.payload_bytes)]
        _, parts = await self.locator.fetch_from(sources, wanted, self._fault)
        return parts[0]

    def _fault(self, peer: bytes, error: RemoteError) -> None:
        self._trouble(f"{short(peer)}: {error}")

    def _capture(self, fragment: int) -> jobs.Captured:
        base = self._based[fragment]
        digest = self.payloads.pick(fragment, self.turn + base)
        size = len(self.payloads.by_digest[digest])
        self.counts["pushes"] += 1
        clock = self.clock
        return jobs.Captured(base, digest, size, clock.local_step, clock.tokens, clock.cursor)

    def _act(self, action: object) -> None:
        match action:
            case jobs.Feed(spans):
                self.clock.spans.extend(spans)
            case jobs.DropFed():
                self.clock.spans.clear()
            case jobs.BeginSteps():
                self._begun.set()


async def live(chosen: argparse.Namespace) -> None:
    """Looks for garbage as daemons do."""
    with garbage.sought_by_the_clock(asyncio.get_running_loop()):
        await serve(chosen)


async def serve(chosen: argparse.Namespace) -> None:
    """All learners of this process, until standard input ends."""
    asyncio.get_running_loop().set_exception_handler(quiet_about_peers)
    link = parse_link(chosen.link)
    manner = Manner(step_s=chosen.step_s, downloads=chosen.download)
    may_step = asyncio.Event()
    ended = asyncio.create_task(_hear_parent(may_step))
    learners: list[Learner] = []
    started, closed = asyncio.Semaphore(STARTS_AT_ONCE), asyncio.Semaphore(CLOSES_AT_ONCE)

    async def begin(learner: Learner) -> None:
        async with started:
            await learner.meet()
        await learner.run()

    async def close(learner: Learner) -> None:
        async with closed:
            await learner.transport.close()

    payloads = Payloads(chosen.payloads)
    for at in range(chosen.count):
        home = chosen.home / f"{chosen.first + at}"
        home.mkdir(parents=True, exist_ok=True)
        learners.append(Learner(home, link, payloads, manner, chosen.observe and at == 0, may_step))
    running = [asyncio.create_task(begin(one)) for one in learners]
    await asyncio.wait([ended, *running], return_when=asyncio.FIRST_COMPLETED)
    for learner, task in zip(learners, running, strict=True):
        if hasattr(learner, "driver"):
            learner.driver.take(StopAsked("the measurement is over"))
        else:
            task.cancel()
    errors = await asyncio.gather(*running, return_exceptions=True)
    for error in errors:
        if isinstance(error, Exception):
            print(f"a learner failed: {error!r}", file=sys.stderr, flush=True)
    await asyncio.gather(*map(close, learners))
    total: Counter[str] = Counter()
    for learner in learners:
        total.update(learner.counts)
        outcomes = learner.machine.context.tally.outcomes if hasattr(learner, "machine") else {}
        total.update({f"push {name}": number for name, number in outcomes.items()})
    tell("end", **total)


async def _hear_parent(may_step: asyncio.Event) -> None:
    """Returns when standard input ends; its first line begins the local steps."""
    loop = asyncio.get_running_loop()
    if await loop.run_in_executor(None, sys.stdin.readline):
        may_step.set()
        await loop.run_in_executor(None, sys.stdin.read)


def main() -> int:
    """Runs until its standard input ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--link", required=True)
    parser.add_argument("--home", type=Path, required=True, help="a folder for keys")
    parser.add_argument("--payloads", type=Path, required=True, help="holds 0-0.bin, 0-1.bin, ...")
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first one")
    parser.add_argument("--step-s", type=float, default=0.25)
    parser.add_argument("--download", action="store_true", help="fetch merged payloads")
    parser.add_argument("--observe", action="store_true", help="tell of each merge")
    parser.add_argument("--light", action="store_true", help="engines without a table")
    chosen = parser.parse_args()
    if chosen.light:
        make_light()
    uvloop.run(live(chosen))
    return 0


if __name__ == "__main__":
    sys.exit(main())
