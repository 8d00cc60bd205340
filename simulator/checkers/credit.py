"""What must hold of credit in every run, judged from the outside by the records that count it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from protocol import wire
from protocol.errors import FalseReceipt
from protocol.log.accounts import Counts
from protocol.log.receipts import Credit, prove_credit
from protocol.log.records import (
    AccountsNoted,
    CharterAdopted,
    FragmentMerged,
    PushProbed,
    Record,
    TokensGivenBack,
    TokensTakenBack,
    counted_tokens,
)
from protocol.messages import Envelope
from protocol.project import Charter
from protocol.trace import Fact, PushSettled
from simulator.checkers.ledger import Ledger, Violation
from simulator.hosts.learner import SimLearner
from simulator.hosts.syncer import SimSyncer
from simulator.stand_ins.tiny import sim_verify

Told = tuple[float, bytes, Fact]
"""When, by which host, what."""


def count(records: Iterable[Record], learner: bytes) -> Counts:
    """What these records count for a learner, added up again from each merge in them."""
    parts = [
        (part, tokens)
        for record in records
        if isinstance(record.body, FragmentMerged)
        for part, tokens in zip(
            record.body.contributions, counted_tokens(record.body.contributions), strict=True
        )
        if part.learner == learner
    ]
    clipped = sum(part.scale < 1.0 for part, _ in parts)
    return (len(parts), sum(tokens for _, tokens in parts), clipped)


def refusals(records: Iterable[Record]) -> Counter[bytes]:
    """By learner, pushes of which these records say that they did not count."""
    found: Counter[bytes] = Counter()
    for record in records:
        if isinstance(record.body, AccountsNoted):
            for one in record.body.refusals:
                found[one.learner] += one.pushes
    return found


def check_accounts(ledger: Ledger, syncers: Sequence[SimSyncer], facts: Iterable[Told]) -> None:
    """Every syncer's accounts are what the records up to where it stands say, leader or not.

    And no record tells of more refused pushes than leaders ever settled so.
    """
    leading = {host.key for host in syncers}
    for host in syncers:
        if not host.is_up or host.syncer.state.epoch != ledger.epoch:
            continue
        state = host.syncer.state
        records = ledger.records[: state.index]
        noted = refusals(records)
        for key, account in state.accounts.items():
            said = (*account.counts, account.refusals)
            counted = (*count(records, key), noted[key])
            if said != counted:
                raise Violation(f"{host.name} counts {said} for a learner, the log says {counted}")
        left_out = {key for key in noted if key not in state.accounts}
        if left_out:
            raise Violation(f"{host.name} has no account of {len(left_out)} learners")
    settled = Counter(
        fact.learner
        for _, who, fact in facts
        if who in leading
        and isinstance(fact, PushSettled)
        and fact.outcome not in ("merged", "clipped")
    )
    for learner, pushes in refusals(ledger.records).items():
        if pushes > settled[learner]:
            raise Violation(f"the log has {pushes} refused pushes, {settled[learner]} were settled")


def taken_back(records: Iterable[Record]) -> dict[bytes, int]:
    """By learner: tokens that by these records are no progress, summed over fragments.

    A Violation where more are taken back than counted for a learner.
    """
    counted: Counter[bytes] = Counter()
    found: dict[bytes, int] = {}
    for record in records:
        match record.body:
            case FragmentMerged(contributions=parts):
                for part, tokens in zip(parts, counted_tokens(parts), strict=True):
                    counted[part.learner] += tokens
                    if part.learner in found:
                        found[part.learner] += tokens
            case TokensTakenBack(learner, tokens):
                found.setdefault(learner, _at_most(tokens, counted[learner]))
            case PushProbed(learner=learner, withdrawn=tokens, suspends=True):
                found.setdefault(learner, _at_most(tokens, counted[learner]))
            case TokensGivenBack(learner):
                found.pop(learner, None)
            case CharterAdopted(envelope):
                charter = wire.decode(envelope.payload, Charter)
                for one in charter.reinstated:
                    if one.revision == charter.revision:
                        found.pop(one.learner, None)
    return found


def _at_most(tokens: int, counted: int) -> int:
    if tokens > counted:
        raise Violation(f"{tokens} tokens are taken back of {counted}")
    return tokens


def check_progress(ledger: Ledger, syncers: Sequence[SimSyncer]) -> None:
    """Every syncer holds back from progress what the records say, leader or not."""
    for host in syncers:
        if host.is_up and host.syncer.state.epoch == ledger.epoch:
            state = host.syncer.state
            said = taken_back(ledger.records[: state.index])
            if state.taken_back != said:
                raise Violation(f"{host.name} holds back {state.taken_back}, the log {said}")


def check_tallies(ledger: Ledger) -> None:
    """What merges say of the log, for those told in brief, is what its records add up to."""
    tokens: Counter[int] = Counter()
    for record in ledger.records:
        merged = record.body
        if not isinstance(merged, FragmentMerged):
            continue
        tokens[merged.fragment] += sum(counted_tokens(merged.contributions))
        said = merged.tally
        if said is None or said.fragment_tokens != tokens[merged.fragment]:
            raise Violation(f"merge {record.index} says {said}, the log {tokens}")


def check_receipts(ledger: Ledger, learners: list[SimLearner]) -> None:
    """Every receipt that was kept says what the log says, and proves it to a stranger.

    What a receipt of a former epoch says of records that the owner voided, no log says any more.
    """
    for host in learners:
        place = (0, 0)
        for _, receipt, envelope in host.kept:
            credit = _proven(host, receipt, envelope)
            if credit.place < place:
                raise Violation(f"{host.name} kept a receipt that is older than one before it")
            place = credit.place
            if credit.head != ledger.entries.get(credit.index):
                if credit.epoch == ledger.epoch:
                    raise Violation(f"{host.name} has a receipt for {credit}, a strange record")
                continue
            counted = count(ledger.records[: credit.index], host.key)
            if credit.counts != counted:
                told = f"a receipt for {credit.counts}, the log says {counted}"
                raise Violation(f"{host.name} has {told}")
        faults = host.learner.context.tally.faults
        if faults.get(FalseReceipt.reason):
            raise Violation(f"{host.name} calls receipts false: {faults}")


def _proven(host: SimLearner, receipt: Envelope, envelope: Envelope) -> Credit:
    charter = wire.decode(envelope.payload, Charter)
    return prove_credit(
        receipt,
        project=host.tiny.project,
        learner=host.key,
        charters={charter.revision: charter},
        verify=sim_verify,
    ).credit
