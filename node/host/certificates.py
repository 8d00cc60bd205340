"""Certificates for host keys: what TLS wants to see in place of a bare key."""

from __future__ import annotations

import datetime

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding

from protocol.errors import MalformedMessage
from protocol.ids import NodeKey, short


def check_key(certificate: bytes, key: NodeKey) -> None:
    """MalformedMessage unless it is one for this Ed25519 key."""
    try:
        found = x509.load_der_x509_certificate(certificate).public_key()
    except ValueError as error:
        raise MalformedMessage(f"what {short(key)} shows is no certificate: {error}") from error
    if not isinstance(found, Ed25519PublicKey) or found.public_bytes_raw() != key:
        raise MalformedMessage(f"the certificate of {short(key)} is for another key")


def self_signed(key: Ed25519PrivateKey, name: str) -> bytes:
    """A certificate, DER, that an Ed25519 private key signs for itself; it does not expire."""
    called = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    begins, ends = datetime.datetime(2000, 1, 1), datetime.datetime(9999, 12, 31)
    built = (
        x509.CertificateBuilder()
        .subject_name(called)
        .issuer_name(called)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(begins)
        .not_valid_after(ends)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, None)
    )
    return built.public_bytes(Encoding.DER)
