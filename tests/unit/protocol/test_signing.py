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


def test_a_key_under_which_anybody_can_sign_verifies_nothing():
    neutral = bytes([1]) + bytes(31)  # The neutral point of the curve, as a key and as a nonce.
    assert not verify_ed25519(neutral, b"message", neutral + bytes(32))


def test_what_other_software_signed_verifies():
    """The second test vector of RFC 8032, section 7.1."""
    key = bytes.fromhex("3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c")
    signature = bytes.fromhex(
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
        "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"
    )
    assert verify_ed25519(key, b"\x72", signature)
    assert not verify_ed25519(key, b"\x73", signature)


def test_the_signed_digest_depends_on_domain_project_and_payload():
    digests = {
        signed_digest(domain, project, payload)
        for domain in ("charter", "record", "push")
        for project in (PROJECT, OTHER_PROJECT)
        for payload in (PAYLOAD, b"")
    }
    assert len(digests) == 12
    assert {len(digest) for digest in digests} == {32}
