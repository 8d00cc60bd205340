"""Certificates that say one thing: this is the key. There is no authority, no name and no date in
them that means anything; who the key belongs to is known from the swarm.
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

from host.files.keystore import Identity
from protocol.errors import BadSignature, MalformedMessage
from protocol.ids import NodeKey

CERTIFICATE_BYTES_MAX: Final = 1024
"""Ours have under 400."""

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
    except (ValueError, UnsupportedAlgorithm, x509.InvalidVersion) as error:
        raise MalformedMessage(f"not a certificate: {error}") from error
    except InvalidSignature as error:
        raise BadSignature("a certificate that its own key has not signed") from error
    return key.public_bytes_raw()


def tls_context(identity: Identity, shown: bytes, *, is_server: bool) -> ssl.SSLContext:
    """TLS 1.3 in the name of a host, with its certificate; it trusts nobody yet.

    Both sides must show a certificate. Whoever uses it compares the key after the handshake.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if is_server else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # The key is the name.
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if is_server:
        context.num_tickets = 0  # Nothing is resumed.
    # OpenSSL's binding takes keys from files only: ours lies there encrypted for a moment.
    secret = os.urandom(32).hex().encode()
    pem = identity.pem(secret) + ssl.DER_cert_to_PEM_cert(shown).encode()
    with tempfile.NamedTemporaryFile(prefix="shoal-", suffix=".pem") as file:
        file.write(pem)
        file.flush()
        context.load_cert_chain(file.name, password=secret)
    return context
