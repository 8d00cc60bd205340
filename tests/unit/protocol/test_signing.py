from __future__ import annotations

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from host.files.keystore import Identity
from protocol.errors import BadSignature
from protocol.signing import open_envelope, seal, signed_digest, verify_ed25519
from tests.support.builders import digest_of

PROJECT, OTHER_PROJECT = digest_of("one project"), digest_of("another project")
PAYLOAD = b"what is signed"


@pytest.fixture(scope="module")
def signer(tmp_path_factory):
    return _identity(1, tmp_path_factory.mktemp("key"))


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    return _identity(2, tmp_path_factory.mktemp("key"))


def _identity(seed, folder):
    return Identity(Ed25519PrivateKey.from_private_bytes(bytes([seed]) * 32), folder)


def opened(envelope, signer, *, domain="push", project=PROJECT):
    return open_envelope(domain, project, envelope, verify_ed25519, signer=signer.key)


def test_what_was_sealed_opens(signer):
    assert opened(seal("push", PROJECT, PAYLOAD, signer), signer) == PAYLOAD


def test_a_signature_for_another_purpose_means_nothing(signer):
    with pytest.raises(BadSignature, match="does not match"):
        opened(seal("charter", PROJECT, PAYLOAD, signer), signer)


def test_a_signature_for_another_project_means_nothing(signer):
    with pytest.raises(BadSignature, match="does not match"):
        opened(seal("push", OTHER_PROJECT, PAYLOAD, signer), signer)


def test_another_signer_than_expected_is_refused_even_with_a_sound_signature(signer, other):
    with pytest.raises(BadSignature, match="another key"):
        opened(seal("push", PROJECT, PAYLOAD, other), signer)


def test_naming_the_expected_signer_does_not_make_its_signature(signer, other):
    forged = msgspec.structs.replace(seal("push", PROJECT, PAYLOAD, other), signer=signer.key)
    with pytest.raises(BadSignature, match="does not match"):
        opened(forged, signer)


@pytest.mark.parametrize("at", [0, 31, 32, 63])
def test_a_flipped_bit_in_the_signature_is_noticed(signer, at):
    envelope = seal("push", PROJECT, PAYLOAD, signer)
    spoilt = bytearray(envelope.signature)
    spoilt[at] ^= 1
    with pytest.raises(BadSignature):
        opened(msgspec.structs.replace(envelope, signature=bytes(spoilt)), signer)


def test_a_flipped_bit_in_the_payload_is_noticed(signer):
    envelope = seal("push", PROJECT, PAYLOAD, signer)
    spoilt = bytes([PAYLOAD[0] ^ 1]) + PAYLOAD[1:]
    with pytest.raises(BadSignature):
        opened(msgspec.structs.replace(envelope, payload=spoilt), signer)


@pytest.mark.parametrize("key", [b"", bytes(31), b"\xff" * 32])
def test_a_key_that_is_none_verifies_nothing(signer, key):
    assert not verify_ed25519(key, b"message", signer.sign(b"message"))


def test_the_signed_digest_depends_on_domain_project_and_payload():
    digests = {
        signed_digest(domain, project, payload)
        for domain in ("charter", "record", "push")
        for project in (PROJECT, OTHER_PROJECT)
        for payload in (PAYLOAD, b"")
    }
    assert len(digests) == 12
    assert {len(digest) for digest in digests} == {32}
