"""What a learner does with receipts: prove them, hold them against its own log, have them kept.

A receipt for a merge comes just before the record of that merge and waits for it. The log that a
learner follows says itself what was merged from it, so that each receipt must say as much more than
the one before as this learner saw merged between the two.
"""

from __future__ import annotations

from node.machine.context import LearnerContext
from node.machine.jobs import KeepReceipt
from protocol.errors import FalseReceipt, RemoteError
from protocol.log.accounts import Account, Counts
from protocol.log.receipts import Credit, check_growth, prove_credit
from protocol.messages import Envelope
from protocol.project import Charter
from protocol.trace import ReceiptTaken

CHARTERS_MAX = 64


class Receipts:
    """One learner's. A receipt that is wrong is told and not kept; training goes on."""

    def __init__(self, context: LearnerContext) -> None:
        self._context = context
        self.credit: Credit | None = context.setup.credit
        """The last that was proven."""
        self._charters: dict[int, tuple[Charter, Envelope]] = {}
        """By revision."""
        self._waiting: tuple[bytes, Envelope, Credit] | None = None
        """A receipt for the next record, and who sent it."""
        self._before: Counts | None = None
        """What was counted before the log that we hold begins; None until a receipt says it."""

    def learn(self, charter: Charter, envelope: Envelope) -> None:
        """A charter that the owner signed."""
        self._charters[charter.revision] = (charter, envelope)
        while len(self._charters) > CHARTERS_MAX:
            del self._charters[min(self._charters)]

    @property
    def is_complete(self) -> bool:
        """Whether the last receipt counts everything that the log does, as far as it is here."""
        state, key = self._context.state, self._context.setup.signer.key
        before = self._before[0] if self._before is not None else 0
        merges = before + state.accounts.get(key, Account()).merges
        return (self.credit.merges if self.credit is not None else 0) >= merges

    def restart(self) -> None:
        """The log that we hold begins anew: what was counted before is not known."""
        self._before = None
        self._waiting = None

    def take(self, leader: bytes, receipt: Envelope) -> None:
        """A receipt came. For the record where the log stands, or for the next one told here."""
        try:
            credit = self._proven(leader, receipt)
            state = self._context.state
            if credit.index == state.index:
                self._judge(leader, receipt, credit)
            elif credit.index == state.index + 1 or (state.is_brief and credit.index > state.index):
                self._waiting = (leader, receipt, credit)
            else:
                raise FalseReceipt(f"for record {credit.index}, where the log is at {state.index}")
        except RemoteError as error:
            self._context.blame(leader, error)

    def on_record(self) -> None:
        """The log went on by one record, or in brief by more."""
        if self._waiting is None or self._waiting[2].index > self._context.state.index:
            return
        leader, receipt, credit = self._waiting
        self._waiting = None
        try:
            self._judge(leader, receipt, credit)
        except RemoteError as error:
            self._context.blame(leader, error)

    def _proven(self, leader: bytes, receipt: Envelope) -> Credit:
        setup = self._context.setup
        if receipt.signer != leader:
            raise FalseReceipt("signed by another host than the leader")
        return prove_credit(
            receipt,
            project=setup.project,
            learner=setup.signer.key,
            charters={revision: one for revision, (one, _) in self._charters.items()},
            verify=setup.verify,
        ).credit

    def _judge(self, leader: bytes, receipt: Envelope, credit: Credit) -> None:
        """Hold it against the log, which stands at its record, and against the last one."""
        state = self._context.state
        if (credit.index, credit.head, credit.epoch) != (state.index, state.head, state.epoch):
            raise FalseReceipt(f"record {credit.index} differs from the one in our log")
        check_growth(self.credit, credit)
        seen = state.accounts.get(credit.learner, Account()).counts
        before = _less(credit.counts, seen)
        if self._before is not None and before != self._before:
            raise FalseReceipt(
                f"{credit.merges} merges and {credit.tokens} tokens up to record {credit.index}; "
                f"the log counts {self._before[0] + seen[0]} and {self._before[1] + seen[1]}"
            )
        self._before = before
        self.credit = credit
        charter = self._charters[credit.revision][1]
        self._context.effects.do(KeepReceipt(receipt, charter))
        self._context.effects.emit(ReceiptTaken(leader, credit.index, credit.merges, credit.tokens))


def _less(whole: Counts, part: Counts) -> Counts:
    """What was counted before; FalseReceipt if a receipt counts less than we saw merged."""
    merges, tokens, clipped = (all_of - seen for all_of, seen in zip(whole, part, strict=True))
    if min(merges, tokens, clipped) < 0:
        raise FalseReceipt(
            f"{whole[0]} merges and {whole[1]} tokens, but the log that we hold has {part[0]} and "
            f"{part[1]}"
        )
    return (merges, tokens, clipped)
