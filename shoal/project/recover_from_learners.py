"""Going on from what learners hold, when no syncer's disk is left.

Every learner can prove the state it follows: the head of its log and the origin of every fragment
are certified. The owner begins a new epoch behind the newest such head, and this machine's syncer
fetches the weights from whoever has them.
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
from dataclasses import dataclass
from pathlib import Path

from host.files import keystore
from host.files.signed_project import OpenedProject
from host.join_link import JoinLink
from host.network.leader_discovery import learners_topic, seat_topic
from host.network.streams import ControlStream
from host.options import BulkAt
from host.transport import Transport
from node.machine.index_proof import prove_index, read_charter
from protocol import wire
from protocol.errors import RemoteError, TransientError, UnexpectedMessage, UserError
from protocol.ids import short
from protocol.log.records import Record, open_record, record_hash
from protocol.log.state import SwarmSummary
from protocol.messages import AskState, CertifiedRecord, FragmentIndex, IndexPart, StateHeld
from protocol.project import Charter
from protocol.signing import verify_ed25519

log = logging.getLogger("shoal.rescue")

ASKED_MAX = 64
ANSWER_S = 15.0
CONNECT_S = 30.0


@dataclass(frozen=True, slots=True)
class Rescued:
    """The newest state that somebody could prove."""

    donor: bytes
    entry: CertifiedRecord
    record: Record
    summary: SwarmSummary
    origins: tuple[CertifiedRecord, ...]

    @property
    def rank(self) -> tuple[int, int]:
        return (self.record.epoch, self.record.index)


def find_newest(project: OpenedProject, link: JoinLink) -> tuple[Rescued, int]:
    """The newest proven state among the learners, and how many proved one.

    UserError if no learner is found, or none of them can prove anything.
    """
    return asyncio.run(_find(project, link))


async def _find(project: OpenedProject, link: JoinLink) -> tuple[Rescued, int]:
    with tempfile.TemporaryDirectory(prefix="shoal-rescue-") as folder:
        transport = Transport(
            keystore.load_or_create(Path(folder) / "rescue.key"),
            port=0,
            bootstrap=(),
            topics=(seat_topic(project.id), learners_topic(project.id)),
            on_state=lambda state: None,
            hints=link.addresses,
            bulk=BulkAt(is_on=False),
        )
        try:
            async with asyncio.timeout(CONNECT_S):
                await transport.start_with_retry(lambda reason, _: log.info("%s", reason))
                await transport.greet_bootstrap()
            found = await transport.lookup(learners_topic(project.id))
            answers = await asyncio.gather(
                *(_ask(transport, project, key) for key in sorted(found)[:ASKED_MAX])
            )
        except (TransientError, TimeoutError) as error:
            raise UserError(
                f"The swarm was not reached through this link ({error or 'no answer'}). Use a "
                "link with the address of a host that still runs, such as a learner's: "
                "/ip4/.../tcp/.../p2p/... from its `shoal status`."
            ) from error
        finally:
            await transport.close()
    proven = [answer for answer in answers if answer is not None]
    if not proven:
        raise UserError(
            f"{len(found)} learners were found, and none could prove a state. Learners prove what "
            "they followed since they joined; ask one that was there while the swarm still merged."
        )
    return max(proven, key=lambda one: one.rank), len(proven)


async def _ask(transport: Transport, project: OpenedProject, key: bytes) -> Rescued | None:
    """What this learner proves, or None."""
    try:
        async with asyncio.timeout(ANSWER_S):
            stream = await transport.open_control(key)
            try:
                stream.send(wire.encode(AskState(project.id)))
                return verified(project, key, *await _answer(stream))
            finally:
                stream.close()
    except (TransientError, RemoteError, TimeoutError) as error:
        log.info("%s proves nothing: %s", short(key), error or "no answer")
        return None


async def _answer(stream: ControlStream) -> tuple[list[CertifiedRecord], StateHeld]:
    origins: list[CertifiedRecord] = []
    while True:
        match wire.decode_message(await stream.recv()):
            case IndexPart(entries):
                origins.extend(entries)
            case StateHeld() as held:
                return origins, held
            case other:
                raise UnexpectedMessage(f"{type(other).__name__} instead of a state")


def verified(
    project: OpenedProject, donor: bytes, origins: list[CertifiedRecord], held: StateHeld
) -> Rescued:
    """The state, once head and origins are proven under charters of the owner's.

    Raises RemoteError if they are not.
    """
    summary = wire.decode(held.summary, SwarmSummary)
    charters: list[Charter] = [project.charter]
    for one in summary.charters:
        charters.append(
            read_charter(
                one.charter,
                project=project.id,
                owner=project.genesis.owner,
                verify=verify_ed25519,
            )
        )
    record = open_record(held.entry, project.id, charters[-1], verify_ed25519)
    head = record_hash(held.entry.record)
    if (record.index, head) != (summary.index, summary.head):
        raise UnexpectedMessage("the state is not that of its head")
    index = FragmentIndex(summary.index, summary.head, held.summary)
    prove_index(
        index,
        origins,
        charters=charters,
        fragments=project.genesis.fragments,
        block_sequences=project.genesis.data.block_sequences,
        verify=verify_ed25519,
    )
    return Rescued(donor, held.entry, record, summary, tuple(origins))
