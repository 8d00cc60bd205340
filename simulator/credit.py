"""What must hold of credit in every run, judged from the outside by the records that count it."""

from __future__ import annotations

from collections.abc import Iterable

from protocol import wire
from protocol.errors import FalseReceipt
from protocol.messages import Envelope
from protocol.project import Charter
from protocol.receipts import Credit, prove_credit
from protocol.records import FragmentMerged, Record
from simulator.hosts import SimLearner
from simulator.ledger import Ledger, Violation
from simulator.tiny import sim_verify

Counts = tuple[int, int, int]
"""Merges, tokens, clipped."""


def count(records: Iterable[Record], learner: bytes) -> Counts:
    """What these records count for a learner, added up again from each merge in them."""
    parts = [
        part
        for record in records
        if isinstance(record.body, FragmentMerged)
        for part in record.body.contributions
        if part.learner == learner
    ]
    clipped = sum(part.scale < 1.0 for part in parts)
    return (len(parts), sum(part.tokens for part in parts), clipped)


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
            said = (credit.merges, credit.tokens, credit.clipped)
            counted = count(ledger.records[: credit.index], host.key)
            if said != counted:
                raise Violation(f"{host.name} has a receipt for {said}, the log says {counted}")
        faults = host.learner.shared.tally.faults
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
