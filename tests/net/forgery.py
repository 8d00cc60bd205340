"""A contributor that signs itself more than it gave: everything fits but who signed."""

from __future__ import annotations

from pathlib import Path

import msgspec

from host.files import keystore
from protocol.log.receipts import Proven, encode_book, make_book, open_book, sign_credit
from protocol.signing import verify_ed25519


def forged_book(content: bytes, key: Path) -> bytes:
    """The file of another contributor, which signed its own receipt of a thousand times as much."""
    opened = open_book(content, verify_ed25519)
    thief = keystore.load_or_create(key)
    newest = opened.newest
    credit = msgspec.structs.replace(
        newest, learner=thief.key, tokens=1000 * newest.tokens, merges=1000 * newest.merges
    )
    receipt = Proven(credit, thief.key, sign_credit(credit, thief))
    return encode_book(make_book(opened.book.genesis, opened.book.charters, (receipt,), thief))
