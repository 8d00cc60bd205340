"""Where a learner looks for another leader when its own is silent."""

from __future__ import annotations

import asyncio
import random

import msgspec
import pytest

from host.network.leader_discovery import SeatNotice, read_notice
from node.download import locator as locating
from node.download.locator import Locator
from protocol import wire
from protocol.errors import PeerUnreachable, TransientError
from protocol.ids import short
from protocol.messages import Envelope
from protocol.project import Voter
from protocol.wire import decode
from tests.support.builders import ONE, SYNCER, TWO, project, sealed_charter

CHARTER = msgspec.structs.replace(
    project().charter,
    voters=tuple(Voter(signer.key, "syncer", 50) for signer in (SYNCER, ONE, TWO)),
)
ENVELOPE = sealed_charter(CHARTER)
SILENT, LATER = (0, 3), (0, 4)


class Table:
    """The swarm's table while one host is silent: searching it takes for ever."""

    def __init__(self) -> None:
        self.held: dict[bytes, SeatNotice] = {}
        self.asked: list[bytes] = []
        self.searched = asyncio.Event()
        self.trouble: TransientError | None = None
        self.second = asyncio.Event()
        self.relays: dict[bytes, tuple[bytes, ...]] = {}
        self.relay = self

    def tell_relays(self, key: bytes, relays: tuple[bytes, ...]) -> None:
        self.relays[key] = relays

    async def greet_bootstrap(self) -> None:
        await asyncio.sleep(0)

    async def lookup(self, topic: str, at: bytes | None = None) -> dict[bytes, bytes]:
        if at is None:
            await self.searched.wait()
            return {key: wire.encode(notice) for key, notice in self.held.items()}
        self.asked.append(at)
        if self.asked.count(at) > 1:
            self.second.set()
        if at == SYNCER.key:
            raise PeerUnreachable(f"{short(at)} does not answer")
        return {at: wire.encode(self.held[at])} if at in self.held else {}

    async def fetch(self, peer: bytes, digest: bytes, length: int) -> bytes:
        return wire.encode(ENVELOPE)


def notice(epoch: int, term: int, relays: tuple[bytes, ...] = ()) -> SeatNotice:
    size = len(wire.encode(ENVELOPE))
    return SeatNotice(project().project, epoch, term, 9, bytes(32), size, (), relays)


@pytest.fixture
def table(monkeypatch) -> Table:
    def proven(key: bytes, genesis: bytes, envelope: Envelope, said: SeatNotice):
        return CHARTER if decode(wire.encode(envelope), Envelope) == ENVELOPE else None

    monkeypatch.setattr(locating.leader_discovery, "elected_under", proven)
    monkeypatch.setattr(locating, "ASK_EVERY_S", 0.0)
    return Table()


def found(table: Table, after: tuple[int, int], **limits: float):
    locator = Locator(table, project().project, b"", random.Random(1), frozenset())

    async def main():
        async with asyncio.timeout(limits.get("within_s", 120.0)):
            return await locator.find_seat(CHARTER, after)

    return main


def test_a_voter_that_leads_in_a_later_term_is_found_without_the_table(table):
    table.held = {TWO.key: notice(*LATER)}
    seat = asyncio.run(found(table, SILENT)())
    assert (seat.leader, seat.epoch, seat.term) == (TWO.key, *LATER)


def test_the_voters_are_asked_again_until_one_leads(table):
    async def main():
        finding = asyncio.ensure_future(found(table, SILENT)())
        await table.second.wait()
        table.held = {ONE.key: notice(*LATER)}
        return await finding

    assert asyncio.run(main()).leader == ONE.key
    assert table.asked.count(TWO.key) > 1


def test_the_term_of_the_silent_leader_is_no_answer_of_a_voter(table):
    table.held = {ONE.key: notice(*SILENT)}

    async def main():
        finding = asyncio.ensure_future(found(table, SILENT)())
        await table.second.wait()
        assert not finding.done()
        table.searched.set()
        return await finding

    # The table is the word on who leads at all.
    assert asyncio.run(main()).term == SILENT[1]


def test_who_carries_streams_to_a_hidden_leader_is_known_before_it_is_asked(table):
    table.held = {ONE.key: notice(*LATER, relays=(TWO.key,))}
    table.searched.set()
    seat = asyncio.run(found(table, (0, 0))())
    assert seat.leader == ONE.key
    assert table.relays == {ONE.key: (TWO.key,)}


def test_a_notice_of_before_there_were_relays_is_read():
    fields = msgspec.msgpack.decode(wire.encode(notice(*LATER)))
    *former, relays = fields
    assert relays == []
    read = read_notice(msgspec.msgpack.encode(former), project().project)
    assert read == notice(*LATER)
