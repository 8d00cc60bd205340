"""Finding things in the swarm: the seat, and who can give us a blob."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from host.addresses import parse_peer
from host.join_link import JoinLink
from host.network import leader_discovery
from host.runtime import lifecycle
from host.transport import Transport
from node.machine.jobs import SeatFound
from protocol import wire
from protocol.backoff import Backoff
from protocol.errors import NotHeld, RemoteError, TransientError
from protocol.ids import short
from protocol.messages import Envelope
from protocol.project import Charter

DONORS_FRESH_S = 5.0
SHUN_S = 30.0
"""A peer that failed us is passed over for this long."""

CHARTER_S_MAX = 4.0
"""A host that announces itself and does not answer must not delay finding the one that leads."""

GREET_S_MAX = 2.0
ASK_S_MAX = 3.0
ASK_EVERY_S = 1.0
"""Another leader is elected within seconds; the voters are asked again so often meanwhile."""

CHARTERS_KEPT = 16
GENESIS_AGAIN = Backoff((1.0, 2.0, 4.0, 8.0, 16.0, 30.0))
GENESIS_ASKED_MAX = 8

STRANGERS_ASKED_MAX = 8
"""Announcers that nobody vouches for; their charters are asked for side by side."""

_Ranked = tuple[tuple[int, int, int, bytes], SeatFound]

log = logging.getLogger("shoal.locator")

ASK_HOST = "if this goes on, ask the project's host whether a syncer runs, and for a fresh link"


async def fetch_genesis(
    transport: Transport, link: JoinLink, on_attempt: Callable[[str, float], None]
) -> bytes:
    """The project's genesis from a host that the link names; tries for ever, with growing pauses.

    `on_attempt` gets why a try failed and the seconds until the next.
    """
    named = [parse_peer(text).key for text in link.addresses]
    attempt = 0
    while True:
        # Whoever works for the project can give it; those that are named are surely there for it.
        others = sorted(transport.connected() - {*named, transport.key})
        reason = "nobody is connected"
        for peer in (*named, *others[:GENESIS_ASKED_MAX]):
            try:
                return bytes(await transport.fetch(peer, link.project, link.genesis_bytes))
            except (TransientError, RemoteError) as error:
                reason = str(error)
        pause_s = GENESIS_AGAIN.pause_s(attempt)
        on_attempt(
            f"the project's description cannot be fetched yet: {reason}; {ASK_HOST}", pause_s
        )
        await asyncio.sleep(pause_s)
        attempt += 1


@dataclass(slots=True)
class Locator:
    """Looks things up in the DHT and fetches blobs from whoever has them."""

    transport: Transport
    project: bytes
    genesis: bytes
    rng: random.Random
    named: frozenset[bytes]
    """Hosts that the join link names."""
    _asking: asyncio.Lock = field(default_factory=asyncio.Lock)
    _donors: list[bytes] = field(default_factory=list)
    _joiners: list[bytes] = field(default_factory=list)
    _donors_s: float = -1e9
    _shunned: dict[bytes, float] = field(default_factory=dict)
    _charters: dict[bytes, Envelope] = field(default_factory=dict)
    """By content address; what is in one is checked each time."""

    @classmethod
    def of(cls, transport: Transport, link: JoinLink, genesis: bytes) -> Locator:
        """For the project that a join link names."""
        named = frozenset(parse_peer(text).key for text in link.addresses)
        return cls(transport, link.project, genesis, random.Random(os.urandom(8)), named)

    async def find_seat(self, known: Charter | None, after: tuple[int, int] = (0, 0)) -> SeatFound:
        """Who may be asked to lead, and the newest charter that says so. Raises TransientError.

        after: epoch and term of a leader that is silent. The other syncers of the charter are
        asked directly meanwhile, and the first proof of a later term is the answer: a silent host
        costs a search of the whole table many seconds.
        """
        search = asyncio.ensure_future(self._search(known))
        direct = asyncio.ensure_future(self._ask_voters(known, after))
        async with lifecycle.ending((search, direct)):
            await asyncio.wait((search, direct), return_when=asyncio.FIRST_COMPLETED)
            return await (search if search.done() else direct)

    async def _ask_voters(self, known: Charter | None, after: tuple[int, int]) -> SeatFound:
        """A proof of a later term, once a syncer of the charter holds one. For ever, if none."""
        syncers = [v.key for v in known.voters if v.role == "syncer"] if known is not None else []
        while True:
            asked = [asyncio.ensure_future(self._ask_voter(key)) for key in syncers]
            try:
                async with lifecycle.ending(asked):
                    for answer in asyncio.as_completed(asked, timeout=ASK_S_MAX):
                        found = await answer
                        if found is not None and (found.epoch, found.term) > after:
                            return found
            except TimeoutError:
                log.info("a syncer does not say who leads")
            await asyncio.sleep(ASK_EVERY_S)

    async def _ask_voter(self, key: bytes) -> SeatFound | None:
        try:
            found = await self.transport.lookup(leader_discovery.seat_topic(self.project), at=key)
        except TransientError as error:
            log.info("cannot ask %s who leads: %s", short(key), error)
            return None
        notice = leader_discovery.read_notice(found[key], self.project) if key in found else None
        seat = await self._seat(key, notice) if notice is not None else None
        return None if seat is None else seat[1]

    async def _search(self, known: Charter | None) -> SeatFound:
        """The same from the whole table.

        Hosts that the charter at hand or the join link names are asked first, so that forged
        notices cost nothing; of what several say, the highest revision wins.
        """
        with contextlib.suppress(TimeoutError):  # Others may know what the named hosts do not say.
            async with asyncio.timeout(GREET_S_MAX):
                await self.transport.greet_bootstrap()
        found = await self.transport.lookup(leader_discovery.seat_topic(self.project))
        notices = {
            key: notice
            for key, value in found.items()
            if (notice := leader_discovery.read_notice(value, self.project)) is not None
        }
        for key, notice in notices.items():
            self.transport.relay.tell_relays(key, notice.relays)
        voters = {voter.key for voter in known.voters} if known is not None else set()
        trusted = [key for key in sorted(notices) if key in voters or key in self.named]
        others = [key for key in sorted(notices) if key not in voters and key not in self.named]
        for group in (trusted, others[:STRANGERS_ASKED_MAX]):
            answers = await asyncio.gather(*(self._seat(key, notices[key]) for key in group))
            seats = [seat for seat in answers if seat is not None]
            if seats:
                return max(seats, key=lambda seat: seat[0])[1]
        raise TransientError("no syncer of this project has announced itself yet")

    async def _seat(self, key: bytes, notice: leader_discovery.SeatNotice) -> _Ranked | None:
        envelope = await self._charter(key, notice)
        if envelope is None:
            return None
        charter = leader_discovery.elected_under(key, self.genesis, envelope, notice)
        if charter is None:
            return None
        rank = (notice.epoch, notice.term, charter.revision, key)
        return rank, SeatFound(key, envelope, notice.epoch, notice.term)

    async def _charter(self, key: bytes, notice: leader_discovery.SeatNotice) -> Envelope | None:
        """The charter that a notice names; one that is known already costs no question."""
        known = self._charters.get(notice.charter)
        if known is not None:
            return known
        try:
            async with asyncio.timeout(CHARTER_S_MAX):
                blob = await self.transport.fetch(key, notice.charter, notice.charter_bytes)
            envelope = wire.decode(bytes(blob), Envelope)
        except (TransientError, RemoteError, TimeoutError) as error:
            log.info("cannot fetch the charter of %s: %s", short(key), error)
            return None
        if len(self._charters) >= CHARTERS_KEPT:
            self._charters.clear()
        self._charters[notice.charter] = envelope
        return envelope

    async def donors_or_none(self) -> list[bytes]:
        """Learners that hold weights, in random order; those that failed us lately are left out.

        Empty when the swarm's table cannot be asked: the syncer still can.
        """
        async with self._asking:  # Many fragments are wanted at once, one question serves all.
            now_s = time.monotonic()
            if now_s - self._donors_s > DONORS_FRESH_S:
                topic = leader_discovery.learners_topic(self.project)
                try:
                    found = await self.transport.lookup(topic)
                except TransientError as error:
                    log.info("learners cannot be looked up: %s", error)
                    return []
                self._donors_s = now_s
                notices = leader_discovery.read_learners(found)
                for key, notice in notices.items():
                    self.transport.relay.tell_relays(key, notice.relays)
                self._donors = sorted(key for key, one in notices.items() if one.holds_all)
                self._joiners = sorted(notices.keys() - set(self._donors))
        self._shunned = {key: at_s for key, at_s in self._shunned.items() if at_s > now_s}
        return self._shuffled(self._donors)

    def joiners(self) -> list[bytes]:
        """Learners that hold some of the weights, in random order; as of the last look."""
        return self._shuffled(self._joiners)

    def _shuffled(self, keys: list[bytes]) -> list[bytes]:
        found = [key for key in keys if key not in self._shunned and key != self.transport.key]
        self.rng.shuffle(found)
        return found

    async def heads(self) -> list[bytes]:
        """Hosts that prove to the swarm's table that they hold the seat. Raises TransientError."""
        found = await self.transport.lookup(leader_discovery.seat_topic(self.project))
        notices = [
            (key, leader_discovery.read_notice(value, self.project))
            for key, value in sorted(found.items())
        ]
        proven = [
            await self._seat(key, notice)
            for key, notice in notices[:STRANGERS_ASKED_MAX]
            if notice is not None
        ]
        return [seat.leader for _, seat in filter(None, proven)]

    async def fetch_from(
        self,
        sources: list[bytes],
        wanted: list[tuple[bytes, int]],
        on_fault: Callable[[bytes, RemoteError], None],
    ) -> tuple[bytes, list[memoryview]]:
        """The first source that has every (digest, length) wanted, and the contents.

        Raises TransientError when none does, NotHeld where that was all that any of them said.
        """
        trouble, is_lacking = "no known host has it", bool(sources)
        for source in sources:
            try:
                return source, await self._fetch_all(source, wanted)
            except NotHeld as error:
                # No fault: fragments move on while they are asked for.
                trouble = f"{short(source)}: {error}"
                continue
            except TransientError as error:
                trouble = f"{short(source)}: {error}"
                self._shunned[source] = time.monotonic() + SHUN_S
            except RemoteError as error:
                trouble = f"{short(source)} sent something else: {error}"
                on_fault(source, error)
                self._shunned[source] = time.monotonic() + SHUN_S
            is_lacking = False
        raise NotHeld(trouble) if is_lacking else TransientError(trouble)

    async def _fetch_all(self, source: bytes, wanted: list[tuple[bytes, int]]) -> list[memoryview]:
        """Several blobs of one source at once; the first trouble ends all of them."""
        fetches = [self.transport.fetch(source, digest, length) for digest, length in wanted]
        tasks = [asyncio.ensure_future(fetch) for fetch in fetches]
        async with lifecycle.ending(tasks):
            return list(await asyncio.gather(*tasks))
