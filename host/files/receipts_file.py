"""What this machine can prove it gave: a file for each project and key, below the home.

The newest receipt, and one a day for a year, with the genesis and the charters that prove them.
Written in one piece; a damaged file is put aside and begun anew, for the next receipt counts all.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from pathlib import Path

from host.files.keystore import Identity
from host.runtime.atomic_files import replace_file
from protocol import wire
from protocol.errors import RemoteError, TransientError
from protocol.log import receipts
from protocol.messages import Envelope
from protocol.signing import verify_ed25519
from protocol.status import ReceiptStatus

log = logging.getLogger("shoal.contributions")


def read_book(path: Path) -> receipts.OpenedBook:
    """The book in this file. Raises OSError, or RemoteError if anything in it is not proven."""
    with path.open("rb") as handle:
        return receipts.open_book(handle.read(receipts.BOOK_BYTES_MAX + 1), verify_ed25519)


class Contributions:
    """One daemon's book of one project. Not thread-safe: one thread at a time."""

    def __init__(self, folder: Path, genesis: bytes, project: bytes, identity: Identity) -> None:
        self.path = folder / f"{project.hex()}-{identity.key.hex()[:16]}.json"
        self._genesis = genesis
        self._identity = identity
        self._proven: tuple[receipts.Proven, ...] = ()
        self._charters: tuple[Envelope, ...] = ()
        self._read()

    @property
    def newest(self) -> receipts.Credit | None:
        """Of the newest receipt that is kept."""
        return self._proven[-1].credit if self._proven else None

    def status(self, fragments: int) -> ReceiptStatus | None:
        """The newest receipt, for screens."""
        if not self._proven:
            return None
        credit, signer = self._proven[-1].credit, self._proven[-1].signer
        return ReceiptStatus(
            index=credit.index,
            merges=credit.merges,
            tokens=credit.tokens // fragments,
            clipped=credit.clipped,
            at_s=credit.at_s,
            signer=signer.hex(),
        )

    def _read(self) -> None:
        try:
            opened = read_book(self.path)
        except FileNotFoundError:
            return
        except (OSError, RemoteError) as error:
            aside = self.path.with_suffix(".damaged")
            log.warning("ignoring %s: %s; moved it to %s", self.path, error, aside.name)
            with contextlib.suppress(OSError):
                self.path.replace(aside)
            return
        self._proven, self._charters = opened.proven, opened.book.charters

    def keep(self, receipt: Envelope, charter: Envelope) -> None:
        """Add a receipt that was proven, durably. TransientError where it cannot be written."""
        one = receipts.Proven(
            wire.decode(receipt.payload, receipts.Credit), receipt.signer, receipt
        )
        proven = (*(old for old in self._proven if old.credit.place != one.credit.place), one)
        book = receipts.make_book(self._genesis, (*self._charters, charter), proven, self._identity)
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(self.path, receipts.encode_book(book))
        except OSError as error:
            raise TransientError(f"{self.path} cannot be written: {error.strerror}") from error
        opened = {old.receipt: old for old in proven}
        self._proven = tuple(opened[kept] for kept in book.receipts)
        self._charters = book.charters

    def keep_or_tell(
        self, receipt: Envelope, charter: Envelope, notice: Callable[[str], None]
    ) -> None:
        """`keep`, at once, for this host may be leaving; what cannot be written is told."""
        try:
            self.keep(receipt, charter)
        except TransientError as error:
            notice(f"a receipt could not be kept: {error}; the next one counts it too")
