"""Going on from what learners hold, when no syncer's disk is left.

Every learner can prove the state it follows: the head of its log and the origin of every fragment
are certified. The owner begins a new epoch behind the newest such head, and this machine's syncer
fetches the weights from whoever has them. What a learner says beside is compared, bounded, and
called its word.
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from msgspec import structs

from host.files import keystore
from host.files.signed_project import OpenedProject
from host.network.leader_discovery import holders_of_all, learners_topic, seat_topic
from host.network.streams import ControlStream
from host.options import BulkAt
from host.transport import Transport
from node.machine.index_proof import prove_index, read_charter
from protocol import limits, wire
from protocol.errors import (
    LimitExceeded,
    RemoteError,
    TransientError,
    UnexpectedMessage,
    UserError,
)
from protocol.ids import short
from protocol.log.accounts import Account
from protocol.log.records import (
    FragmentMerged,
    Record,
    WeightsRestored,
    open_record,
    read_record,
    record_hash,
)
from protocol.log.state import SwarmSummary
from protocol.messages import (
    AccountsPart,
    AdoptedCharter,
    AskState,
    CertifiedRecord,
    Envelope,
    FragmentIndex,
    IndexPart,
    StateHeld,
)
from protocol.project import Charter
from protocol.signing import verify_ed25519
from shoal.project.summary_checks import (
    check_bounds,
    differences,
    on_its_word,
    with_others,
    without_influence,
)

log = logging.getLogger("shoal.rescue")

ASKED_MAX = 64
ANSWER_S = 15.0
"""From one message of an answer to the next."""

ANSWERS_S = 180.0
"""For all of one: accounts of a hundred thousand contributors are 15 MB."""

CONNECT_S = 120.0
"""Some of the hosts that are known may be gone for good, and those that are left busy."""

LOOK_AGAIN_S = 1.0


@dataclass(frozen=True, slots=True)
class Rescued:
    """A state that a learner proved, and what it says beside."""

    donor: bytes
    entry: CertifiedRecord
    record: Record
    summary: SwarmSummary
    origins: tuple[CertifiedRecord, ...]

    @property
    def head(self) -> bytes:
        return self.summary.head

    @property
    def rank(self) -> tuple[int, int]:
        return (self.record.epoch, self.record.index)


@dataclass(frozen=True, slots=True)
class Found:
    """What the learners that answered prove, and what one of them is believed."""

    newest: Rescued
    lines: list[str]
    """What is certified, what is that learner's word, and who says otherwise."""


def find_newest(
    project: OpenedProject, addresses: tuple[str, ...], learner: str | None = None
) -> Found:
    """The newest state that learners prove, or that of one whose key begins so.

    addresses: of hosts through which the swarm may be found. UserError if no learner is found, if
    none of them can prove anything, or if they prove two histories.
    """
    return choose(asyncio.run(_find(project, addresses)), learner)


def choose(proven: list[Rescued], learner: str | None) -> Found:
    """The newest of these states; of several at the same record, that on which most agree.

    learner: how the key of the one to take begins, if it is named. UserError if they are of two
    histories and none is named.
    """
    named = [one for one in proven if learner and one.donor.hex().startswith(learner.lower())]
    if learner and not named:
        known = ", ".join(short(one.donor) for one in proven)
        raise UserError(f"No learner {learner} proved a state. Those that did: {known}")
    newest = max(named or proven, key=lambda one: one.rank)
    lines = [_of_two(newest, one) for one in proven if are_two_histories(newest, one)]
    if lines and not learner:
        raise UserError(" ".join([*lines, "Name the one to go on from with --learner KEY."]))
    peers = [one for one in named or proven if one.head == newest.head]
    chosen = max(peers, key=lambda one: _weight(one, peers))
    for other in peers:
        if found := differences(chosen.summary, other.summary):
            lines.append(f"learner {short(other.donor)} differs in {', '.join(found)}")
    count, who = len(proven), short(chosen.donor)
    lines = [
        f"{count} {'learner' if count == 1 else 'learners'} proved a state; the newest is record "
        f"{chosen.record.index:,}, global step {chosen.summary.global_step:,}",
        "certified: that record, and every fragment's version and weights",
        *(f"on the word of learner {who}: {words}" for words in on_its_word(chosen.summary)),
        *lines,
    ]
    summary = without_influence(chosen.summary, chosen.donor)
    if summary.is_brief:
        whole = _longest_whole(chosen, proven)
        summary = with_others(summary, whole.summary if whole is not None else None)
        lines.append(_of_others(whole))
    return Found(replace(chosen, summary=summary), lines)


def _weight(one: Rescued, peers: list[Rescued]) -> tuple[bool, int, int, bytes]:
    """Whether it was told of everybody, how many say the same, and how long its memory of
    contributors is."""
    agreeing = sum(not differences(one.summary, other.summary) for other in peers)
    return not one.summary.is_brief, agreeing, _merges_known(one), one.donor


def _merges_known(one: Rescued) -> int:
    return sum(account.merges for account in one.summary.accounts.values())


def _longest_whole(chosen: Rescued, proven: list[Rescued]) -> Rescued | None:
    """Of those on the same history that were told of everybody, the one that remembers most."""
    whole = [
        one
        for one in proven
        if not one.summary.is_brief
        and one.rank <= chosen.rank
        and not are_two_histories(chosen, one)
    ]
    return max(whole, key=lambda one: (_merges_known(one), one.rank), default=None)


def _of_others(whole: Rescued | None) -> str:
    """What is known of contributors where the newest state is one that was told in brief."""
    if whole is None:
        return (
            "that learner was told nothing of others, and nobody answered who was: what they gave "
            "is counted anew; until here, their own receipts say it"
        )
    return (
        f"what others gave and which text they hold: on the word of learner {short(whole.donor)}, "
        f"up to record {whole.record.index:,}"
    )


def are_two_histories(one: Rescued, other: Rescued) -> bool:
    """Whether both cannot be of one log, whoever is further."""
    if one.record.epoch != other.record.epoch:
        return False  # The owner began the later one.
    if one.record.index == other.record.index:
        return one.head != other.head
    older, newer = sorted((one, other), key=lambda state: state.rank)
    pairs = zip(older.summary.fragments, newer.summary.fragments, strict=True)
    return any(
        then.version > now.version or (then.version == now.version and then.state != now.state)
        for then, now in pairs
    )


def _of_two(one: Rescued, other: Rescued) -> str:
    return (
        f"Learners prove two histories: {short(one.donor)} has record {one.record.index:,} at "
        f"global step {one.summary.global_step:,}, {short(other.donor)} another one with record "
        f"{other.record.index:,} at global step {other.summary.global_step:,}."
    )


async def _find(project: OpenedProject, addresses: tuple[str, ...]) -> list[Rescued]:
    with tempfile.TemporaryDirectory(prefix="shoal-rescue-") as folder:
        transport = Transport(
            keystore.load_or_create(Path(folder) / "rescue.key"),
            port=0,
            bootstrap=(),
            topics=(seat_topic(project.id), learners_topic(project.id)),
            on_state=lambda state: None,
            hints=addresses,
            bulk=BulkAt(is_on=False),
        )
        trouble = ""

        def note(reason: str, pause_s: float) -> None:
            nonlocal trouble
            trouble = reason

        try:
            async with asyncio.timeout(CONNECT_S):
                await transport.start_with_retry(note)
                trouble = ""
                found = await _learners(transport, learners_topic(project.id))
            answers = await asyncio.gather(
                *(ask(transport, project, key) for key in found[:ASKED_MAX])
            )
        except (TransientError, TimeoutError) as error:
            answered = "the swarm answers, but no learner announces itself there"
            nobody = "none of the hosts that are known answers"
            why = str(error) or trouble or (answered if transport.peers() else nobody)
            raise UserError(
                f"No learner was found ({why}). In place of the link, give "
                "the address of a host that still runs, such as a learner's: "
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
    return proven


async def _learners(transport: Transport, topic: str) -> list[bytes]:
    """Who announces itself; asked again until somebody is found. TransientError if it cannot be."""
    while True:
        await transport.greet_bootstrap()
        if found := holders_of_all(await transport.lookup(topic), whole_first=True):
            return found
        await asyncio.sleep(LOOK_AGAIN_S)


async def ask(transport: Transport, project: OpenedProject, key: bytes) -> Rescued | None:
    """What this learner proves, or None."""
    try:
        async with asyncio.timeout(ANSWERS_S):
            stream = await transport.open_control(key)
            try:
                question = wire.encode(AskState(project.id))
                stream.send(question)
                told = await _answer(stream, question, _reader(project))
                return verified(project, key, told)
            finally:
                stream.close()
    except (TransientError, RemoteError, TimeoutError) as error:
        log.info("%s proves nothing: %s", short(key), error or "no answer")
        return None


def _reader(project: OpenedProject) -> Callable[[Envelope], Charter]:
    """What opens a charter of the owner's. It raises BadSignature or WrongProject."""
    return partial(
        read_charter, project=project.id, owner=project.genesis.owner, verify=verify_ed25519
    )


@dataclass(frozen=True, slots=True)
class Told:
    """What a learner said of a state."""

    held: StateHeld
    origins: Sequence[CertifiedRecord]
    charters: Sequence[AdoptedCharter]
    """Oldest first."""
    accounts: Mapping[bytes, Account] = field(default_factory=dict)
    """Those that came ahead of it."""


async def _answer(stream: ControlStream, again: bytes, read: Callable[[Envelope], Charter]) -> Told:
    """again: the question, which asks for one piece more wherever one came."""
    origins: list[CertifiedRecord] = []
    charters: dict[int, AdoptedCharter] = {}
    accounts: dict[bytes, Account] = {}
    while True:
        async with asyncio.timeout(ANSWER_S):
            frame = await stream.recv()
        match wire.decode_message(frame):
            case IndexPart(entries, charters=some_charters):
                origins.extend(entries)
                for one in some_charters:
                    # The owner's signature is what bounds them: one can be of 700 kB.
                    charters[read(one.charter).revision] = one
                if len(origins) > limits.INDEX_ENTRIES_MAX:
                    raise LimitExceeded(f"more than {limits.INDEX_ENTRIES_MAX} index entries")
            case AccountsPart(some):
                accounts |= some
                if len(accounts) > limits.ACCOUNTS_MAX:
                    raise LimitExceeded(f"more than {limits.ACCOUNTS_MAX} accounts")
            case StateHeld() as held:
                return Told(held, origins, [one for _, one in sorted(charters.items())], accounts)
            case other:
                raise UnexpectedMessage(f"{type(other).__name__} instead of a state")
        stream.send(again)


def verified(
    project: OpenedProject,
    donor: bytes,
    told: Told,
) -> Rescued:
    """The state, once head and origins are proven under charters of the owner's, and what is said
    beside does not contradict them.

    Raises RemoteError otherwise.
    """
    held, origins = told.held, list(told.origins)
    said = wire.decode(held.summary, SwarmSummary)
    accounts = {**said.accounts, **told.accounts}
    summary = structs.replace(said, accounts=accounts, charters=tuple(told.charters))
    read = _reader(project)
    charters = [project.charter, *(read(one.charter) for one in told.charters)]
    record = open_record(held.entry, project.id, charters[-1], verify_ed25519)
    head = record_hash(held.entry.record)
    if (record.index, head) != (summary.index, summary.head):
        raise UnexpectedMessage("the state is not that of its head")
    index = FragmentIndex(summary.index, summary.head, held.summary)
    prove_index(
        index,
        origins,
        adopted=told.charters,
        charters=charters,
        fragments=project.genesis.fragments,
        block_sequences=project.genesis.data.block_sequences,
        verify=verify_ed25519,
    )
    bodies = [read_record(one.record, may_be_brief=True).body for one in origins]
    newest = {(at, one.version) for at, one in enumerate(summary.fragments)}
    made = [
        body
        for body in bodies
        if isinstance(body, WeightsRestored)
        or (isinstance(body, FragmentMerged) and (body.fragment, body.version) in newest)
    ]
    budget = max(charter.limits.tokens for charter in charters)
    check_bounds(summary, record, made, budget)
    return Rescued(donor, held.entry, record, summary, tuple(origins))
