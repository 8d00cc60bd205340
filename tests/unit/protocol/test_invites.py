"""Invites: what an owner signed opens, and nothing else does."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from host.files.keystore import Identity
from protocol import limits
from protocol.errors import BadSignature, LimitExceeded, MalformedMessage, RemoteError, WrongProject
from protocol.invites import Invite, named_project, open_invite, seal_invite
from protocol.messages import Envelope
from protocol.signing import seal, verify_ed25519
from simulator.stand_ins.tiny import SimSigner, sim_verify
from tests.support.builders import digest_of

OWNER = SimSigner("owner")
PROJECT, OTHER = digest_of("project"), digest_of("other")
INVITE = Invite(PROJECT, bytes(range(16)), "friends", 3, 1_800_000_000)


def opened(envelope, *, project=PROJECT, owner=OWNER.key, verify=sim_verify):
    return open_invite(envelope, project=project, owner=owner, verify=verify)


@pytest.mark.parametrize("key", [None, digest_of("learner")])
def test_what_the_owner_signed_opens(key):
    invite = msgspec.structs.replace(INVITE, key=key)
    envelope = seal_invite(invite, OWNER)
    assert opened(envelope) == invite
    assert named_project(envelope) == PROJECT


def test_a_strangers_signature_is_none():
    stranger = SimSigner("stranger")
    forged = seal_invite(INVITE, stranger)
    with pytest.raises(BadSignature):
        opened(forged)
    with pytest.raises(BadSignature):
        opened(msgspec.structs.replace(forged, signer=OWNER.key))


def test_an_invite_to_another_project_opens_there_only():
    elsewhere = seal_invite(msgspec.structs.replace(INVITE, project=OTHER), OWNER)
    with pytest.raises(BadSignature):
        opened(elsewhere)
    assert named_project(elsewhere) == OTHER
    said = msgspec.msgpack.encode(msgspec.structs.replace(INVITE, project=OTHER))
    with pytest.raises(WrongProject):
        opened(seal("invite", PROJECT, said, OWNER))


@pytest.mark.parametrize("domain", ["charter", "push", "receipt", "record", "seat"])
def test_what_the_owner_signed_for_another_purpose_is_no_invite(domain):
    with pytest.raises(BadSignature):
        opened(seal(domain, PROJECT, msgspec.msgpack.encode(INVITE), OWNER))


@pytest.mark.parametrize(
    "values",
    [
        [PROJECT, bytes(15), "friends", 3, 1_800_000_000, None],
        [PROJECT, bytes(16), "", 3, 1_800_000_000, None],
        [PROJECT, bytes(16), "friends", 0, 1_800_000_000, None],
        [PROJECT, bytes(16), "friends", limits.INVITE_USES_MAX + 1, 1_800_000_000, None],
        [PROJECT, bytes(16), "friends", 3, 2**37 + 1, None],
        [PROJECT, bytes(16), "friends", 3, -1, None],
        [PROJECT, bytes(16), "friends", 3, 1_800_000_000, b"short"],
        [PROJECT, bytes(16), "friends", 3, 1_800_000_000, None, "more"],
        "text",
    ],
)
def test_values_out_of_bounds_are_malformed_whoever_signed_them(values):
    envelope = seal("invite", PROJECT, msgspec.msgpack.encode(values), OWNER)
    with pytest.raises(MalformedMessage):
        opened(envelope)
    assert named_project(envelope) is None


def test_a_long_one_is_refused_before_anything_is_computed():
    def unused(key, message, signature):
        raise AssertionError("nothing is verified")

    long = Envelope(bytes(limits.INVITE_BYTES_MAX + 1), OWNER.key, bytes(64))
    with pytest.raises(LimitExceeded):
        opened(long, verify=unused)
    assert named_project(long) is None


@given(at=st.integers(min_value=0), bit=st.integers(0, 7), where=st.sampled_from("psk"))
def test_no_alteration_verifies(at, bit, where):
    """One flipped bit anywhere, under the real signatures."""
    owner = _real_owner()
    sealed = seal_invite(INVITE, owner)
    field = {"p": "payload", "s": "signature", "k": "signer"}[where]
    content = bytearray(getattr(sealed, field))
    content[at % len(content)] ^= 1 << bit
    altered = msgspec.structs.replace(sealed, **{field: bytes(content)})
    assert opened(sealed, owner=owner.key, verify=verify_ed25519) == INVITE
    with pytest.raises(RemoteError):
        opened(altered, owner=owner.key, verify=verify_ed25519)


@given(
    name=st.text(min_size=1, max_size=limits.NAME_CHARS_MAX),
    uses=st.integers(1, limits.INVITE_USES_MAX),
    expires_s=st.integers(1, 2**37),
    key=st.none() | st.binary(min_size=32, max_size=32),
)
def test_every_invite_within_bounds_can_be_signed_and_opened(name, uses, expires_s, key):
    invite = Invite(PROJECT, bytes(16), name, uses, expires_s, key)
    try:
        name.encode()
    except UnicodeEncodeError:
        return  # No name that could be typed.
    assert opened(seal_invite(invite, OWNER)) == invite


def _real_owner() -> Identity:
    return Identity(Ed25519PrivateKey.from_private_bytes(bytes(range(32))), Path("owner.key"))
