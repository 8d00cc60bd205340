"""Receipts: what the log counts for a contributor, signed by the leader, proven by anybody.

A receipt needs no syncer and no network to be checked: the project's id is the hash of its genesis,
which names the owner; the owner signed the charter; the charter names the voters; one of its
syncers signed the receipt. What a contributor keeps of them is a `Book`, signed by itself, so that
no byte of it can be changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from protocol import decoders, errors, limits, wire
from protocol.ids import Count, Digest, NodeKey, Signature
from protocol.log.accounts import Counts
from protocol.messages import Envelope
from protocol.project import Charter, Genesis, Name, project_id
from protocol.signing import Signer, Verify, open_envelope, seal, signed_digest

DAY_S = 86_400.0
RECEIPTS_MAX = 367
"""In one book: the newest, and the last of each day for a year."""

BOOK_BYTES_MAX = 3 * limits.GENESIS_BYTES_MAX
FORMAT_VERSION = 1


class Credit(Struct, frozen=True, array_like=True):
    """What the log up to record `index` counts for one contributor."""

    project: Digest
    epoch: Count
    term: Count
    index: Count
    head: Digest
    """Hash of that record: who has the log can count again."""
    revision: Count
    """Of the charter then in force, which names who may sign this."""
    learner: NodeKey
    name: Name
    """As the contributor called itself last."""
    merges: Count
    tokens: Count
    """Summed over fragments; divide by their number for tokens read."""
    clipped: Count
    at_s: Annotated[float, Meta(ge=0.0, le=1e12)]
    """The leader's wall clock, for people."""

    @property
    def place(self) -> tuple[int, int]:
        """Order of receipts: a later one of the same epoch never says less."""
        return (self.epoch, self.index)

    @property
    def counts(self) -> Counts:
        """Merges, tokens, clipped."""
        return (self.merges, self.tokens, self.clipped)


class Book(Struct, frozen=True, forbid_unknown_fields=True):
    """What a contributor keeps for one project, with all that proves it. A file of JSON."""

    format: Literal["shoal-contributions"]
    version: int
    project: Digest
    learner: NodeKey
    genesis: Annotated[bytes, Meta(max_length=limits.GENESIS_BYTES_MAX)]
    charters: Annotated[tuple[Envelope, ...], Meta(max_length=RECEIPTS_MAX)]
    """Those that receipts name."""
    receipts: Annotated[tuple[Envelope, ...], Meta(min_length=1, max_length=RECEIPTS_MAX)]
    """Oldest first."""
    signature: Signature
    """The contributor's, over everything else."""


@dataclass(frozen=True, slots=True)
class Proven:
    """A receipt that was checked, and which syncer signed it."""

    credit: Credit
    signer: bytes
    receipt: Envelope


@dataclass(frozen=True, slots=True)
class OpenedBook:
    """A book of which everything was checked."""

    genesis: Genesis
    book: Book
    proven: tuple[Proven, ...]

    @property
    def newest(self) -> Credit:
        """What counts."""
        return self.proven[-1].credit


def sign_credit(credit: Credit, signer: Signer) -> Envelope:
    """The receipt."""
    return seal("receipt", credit.project, wire.encode(credit), signer)


def prove_credit(
    receipt: Envelope,
    *,
    project: bytes,
    learner: bytes,
    charters: Mapping[int, Charter],
    verify: Verify,
) -> Proven:
    """The credit in a receipt, proven to be a syncer's word for this contributor.

    charters: of the owner, by revision. Raises BadSignature, WrongProject, FalseReceipt or
    MalformedMessage.
    """
    payload = open_envelope("receipt", project, receipt, verify, signer=receipt.signer)
    credit = wire.decode(payload, Credit)
    if credit.project != project:
        raise errors.WrongProject("receipt of another project")
    if credit.learner != learner:
        raise errors.FalseReceipt("it is for another contributor")
    charter = charters.get(credit.revision)
    if charter is None:
        raise errors.FalseReceipt(f"it names charter {credit.revision}, which is not here")
    if not any(v.key == receipt.signer and v.role == "syncer" for v in charter.voters):
        raise errors.BadSignature("receipt signed by a key that is no syncer of the charter")
    return Proven(credit, receipt.signer, receipt)


def check_growth(former: Credit | None, credit: Credit) -> None:
    """Raise FalseReceipt if the later of two receipts of one epoch says less, or other things.

    A new epoch may begin from an older state: what came after that state is void.
    """
    if former is None or former.epoch != credit.epoch:
        return
    first, second = sorted((former, credit), key=lambda one: one.place)
    if first.index == second.index and first.head != second.head:
        raise errors.FalseReceipt(f"two receipts name different records {first.index}")
    for what in ("merges", "tokens", "clipped"):
        before, after = getattr(first, what), getattr(second, what)
        if after < before or (first.index == second.index and after != before):
            raise errors.FalseReceipt(
                f"{what}: {before} up to record {first.index}, {after} up to {second.index}"
            )


def thinned(proven: Iterable[Proven]) -> list[Proven]:
    """The last receipt of each epoch and day, at most `RECEIPTS_MAX`, oldest first."""
    ordered = sorted(proven, key=lambda one: one.credit.place)
    days = {(one.credit.epoch, int(one.credit.at_s // DAY_S)): one for one in ordered}
    return sorted(days.values(), key=lambda one: one.credit.place)[-RECEIPTS_MAX:]


def make_book(
    genesis: bytes, charters: Sequence[Envelope], proven: Iterable[Proven], signer: Signer
) -> Book:
    """The book with these receipts, thinned; charters that none of them names are left out."""
    kept = thinned(proven)
    named = {one.credit.revision for one in kept}
    by_revision = {wire.decode(one.payload, Charter).revision: one for one in charters}
    unsigned = Book(
        format="shoal-contributions",
        version=FORMAT_VERSION,
        project=project_id(genesis),
        learner=signer.key,
        genesis=genesis,
        charters=tuple(by_revision[revision] for revision in sorted(named & by_revision.keys())),
        receipts=tuple(one.receipt for one in kept),
        signature=bytes(64),
    )
    return msgspec.structs.replace(unsigned, signature=signer.sign(_signed_part(unsigned)))


def encode_book(book: Book) -> bytes:
    """The bytes of its file: one book has one encoding."""
    return msgspec.json.format(msgspec.json.encode(book), indent=1) + b"\n"


def open_book(content: bytes, verify: Verify) -> OpenedBook:
    """The book in these bytes, every byte of it accounted for.

    Raises MalformedMessage, LimitExceeded, BadSignature, WrongProject or FalseReceipt.
    """
    if len(content) > BOOK_BYTES_MAX:
        raise errors.LimitExceeded(f"{len(content)} bytes, at most {BOOK_BYTES_MAX}")
    book = _decoded(content)
    if project_id(book.genesis) != book.project:
        raise errors.WrongProject("the genesis is not that of the project")
    if not verify(book.learner, _signed_part(book), book.signature):
        raise errors.BadSignature(
            "it is not as its contributor signed it: something in it was changed"
        )
    genesis = wire.decode(book.genesis, Genesis, bytes_max=limits.GENESIS_BYTES_MAX)
    charters: dict[int, Charter] = {}
    for envelope in book.charters:
        payload = open_envelope("charter", book.project, envelope, verify, signer=genesis.owner)
        charter = wire.decode(payload, Charter)
        if charter.project != book.project:
            raise errors.WrongProject("charter of another project")
        charters[charter.revision] = charter
    proven: list[Proven] = []
    for receipt in book.receipts:
        one = prove_credit(
            receipt, project=book.project, learner=book.learner, charters=charters, verify=verify
        )
        former = proven[-1].credit if proven else None
        if former is not None and former.place >= one.credit.place:
            raise errors.FalseReceipt("receipts are not in order")
        check_growth(former, one.credit)
        proven.append(one)
    return OpenedBook(genesis, book, tuple(proven))


def _decoded(content: bytes) -> Book:
    try:
        book = decoders.json_decoder(Book).decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise errors.MalformedMessage(
            f"not a whole file of contributions: {str(error)[:160]}"
        ) from None
    if book.version != FORMAT_VERSION:
        raise errors.MalformedMessage(f"format {book.version}; this Shoal reads {FORMAT_VERSION}")
    if encode_book(book) != content:
        raise errors.MalformedMessage("it is not as Shoal writes it: something in it was changed")
    return book


def _signed_part(book: Book) -> bytes:
    unsigned = msgspec.structs.replace(book, signature=bytes(64))
    return signed_digest("contributions", book.project, msgspec.json.encode(unsigned))
