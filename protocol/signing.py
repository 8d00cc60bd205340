"""Signatures over bytes as sent: verify first, decode afterwards.

Only what is stored or forwarded is signed (push headers, records, charters, receipts, DHT values);
messages on a stream are authenticated by the transport. Every signature covers a domain, so that
bytes signed for one purpose mean nothing for another, and the project id.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol

from blake3 import blake3
from nacl.bindings import crypto_sign_BYTES, crypto_sign_open, crypto_sign_PUBLICKEYBYTES
from nacl.exceptions import BadSignatureError

from protocol.errors import BadSignature
from protocol.messages import Envelope

Domain = Literal[
    "charter", "record", "seat", "push", "receipt", "contributions", "invite", "nearby"
]
Verify = Callable[[bytes, bytes, bytes], bool]
"""(key, message, signature) -> whether the signature is that key's over that message."""


class Signer(Protocol):
    """Holder of a host's private key; the simulator has a cheaper one."""

    @property
    def key(self) -> bytes: ...

    def sign(self, message: bytes) -> bytes: ...


def verify_ed25519(key: bytes, message: bytes, signature: bytes) -> bool:
    """Whether `signature` is the Ed25519 signature of `message` by `key`; malformed is a no.

    By libsodium: a syncer verifies each push on the thread that decides, and every learner each
    record. Keys of small order are refused, under which anybody can sign.
    """
    if len(key) != crypto_sign_PUBLICKEYBYTES or len(signature) != crypto_sign_BYTES:
        return False
    try:
        crypto_sign_open(signature + message, key)
    except BadSignatureError:
        return False
    return True


def signed_digest(domain: Domain, project: bytes, payload: bytes) -> bytes:
    """The 32 bytes that are signed: a hash bound to the purpose and to the project."""
    return blake3(project + payload, derive_key_context=f"shoal 1 {domain}").digest()


def seal(domain: Domain, project: bytes, payload: bytes, signer: Signer) -> Envelope:
    """The payload in a signed envelope."""
    signature = signer.sign(signed_digest(domain, project, payload))
    return Envelope(payload=payload, signer=signer.key, signature=signature)


def open_envelope(
    domain: Domain, project: bytes, envelope: Envelope, verify: Verify, *, signer: bytes
) -> bytes:
    """The payload, proven to be signed by `signer`. Raises BadSignature."""
    if envelope.signer != signer:
        raise BadSignature(f"{domain} signed by another key than expected")
    if not verify(signer, signed_digest(domain, project, envelope.payload), envelope.signature):
        raise BadSignature(f"{domain} signature does not match")
    return envelope.payload
