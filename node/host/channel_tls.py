"""The direct channel's TLS 1.3: both ends show a certificate that their Ed25519 key has signed.

A certificate here says one thing: this is the key. There is no authority, no name and no date in
it that means anything; who the key belongs to is known from the swarm. Each side learns the other's
certificate over the network engine, which has proven the same key, and trusts that one alone.
"""

from __future__ import annotations

import os
import ssl
import tempfile
from datetime import UTC, datetime
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from node.host.keystore import Identity
from protocol.errors import BadSignature, MalformedMessage
from protocol.ids import NodeKey

CERTIFICATE_BYTES_MAX: Final = 1024
"""Ours have under 400."""

TRUSTED_MAX: Final = 4096
"""Certificates in one store, which cannot forget single ones: after so many it is made anew."""

ALPN: Final = "shoal-bulk/1"

_ALWAYS_FROM: Final = datetime(2020, 1, 1, tzinfo=UTC)
_ALWAYS_TO: Final = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
"""The value that RFC 5280 (4.1.2.5) reserves for "no expiry"."""


def certificate(identity: Identity) -> bytes:
    """The certificate of a host, DER; the same bytes each time."""
    # A name of its own lets the store find one among thousands without trying them all.
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, identity.key.hex())])
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .serial_number(1)
        .not_valid_before(_ALWAYS_FROM)
        .not_valid_after(_ALWAYS_TO)
        .public_key(Ed25519PublicKey.from_public_bytes(identity.key))
    )
    return identity.certify(builder).public_bytes(Encoding.DER)


def key_of_certificate(der: bytes) -> NodeKey:
    """The key that a certificate is of, and that has signed it.

    Raises MalformedMessage for anything but an Ed25519 certificate of bounded size, BadSignature
    for one that another key has signed.
    """
    if not 0 < len(der) <= CERTIFICATE_BYTES_MAX:
        raise MalformedMessage(f"a certificate of {len(der)} bytes")
    try:
        found = x509.load_der_x509_certificate(der)
        key = found.public_key()
        if not isinstance(key, Ed25519PublicKey):
            raise MalformedMessage("a certificate without an Ed25519 key")
        key.verify(found.signature, found.tbs_certificate_bytes)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise MalformedMessage(f"not a certificate: {error}") from error
    except InvalidSignature as error:
        raise BadSignature("a certificate that its own key has not signed") from error
    return key.public_bytes_raw()


class Contexts:
    """What the TLS of one host needs: its key, and the certificates of hosts it was told of."""

    def __init__(self, identity: Identity) -> None:
        self.certificate = certificate(identity)
        self._identity = identity
        self._trusted: set[bytes] = set()
        self.server = self._context(ssl.PROTOCOL_TLS_SERVER)
        self.client = self._context(ssl.PROTOCOL_TLS_CLIENT)

    def trust(self, der: bytes) -> None:
        """From now on the holder of this certificate's key may connect, and be connected to."""
        if der in self._trusted:
            return
        if len(self._trusted) >= TRUSTED_MAX:
            self._trusted.clear()
            self.server = self._context(ssl.PROTOCOL_TLS_SERVER)
            self.client = self._context(ssl.PROTOCOL_TLS_CLIENT)
        self.server.load_verify_locations(cadata=der)
        self.client.load_verify_locations(cadata=der)
        self._trusted.add(der)

    def _context(self, side: int) -> ssl.SSLContext:
        context = ssl.SSLContext(side)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False  # The key is the name; it is compared after the handshake.
        context.verify_mode = ssl.CERT_REQUIRED
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        context.set_alpn_protocols([ALPN])
        if side == ssl.PROTOCOL_TLS_SERVER:
            context.num_tickets = 0  # Connections stand for long; nothing is resumed.
        self._load(context)
        return context

    def _load(self, context: ssl.SSLContext) -> None:
        # OpenSSL's binding takes keys from files only: ours lies there encrypted for a moment.
        secret = os.urandom(32).hex().encode()
        shown = ssl.DER_cert_to_PEM_cert(self.certificate).encode()
        with tempfile.NamedTemporaryFile(prefix="shoal-", suffix=".pem") as file:
            file.write(self._identity.pem(secret) + shown)
            file.flush()
            context.load_cert_chain(file.name, password=secret)


def key_of_connection(tls: ssl.SSLObject) -> NodeKey:
    """The key that the other end has proven. Raises MalformedMessage for another protocol."""
    der = tls.getpeercert(binary_form=True)
    if der is None or tls.version() != "TLSv1.3" or tls.selected_alpn_protocol() != ALPN:
        raise MalformedMessage("the other end does not speak the direct channel")
    return key_of_certificate(der)
