"""Invites: the owner's signed word that somebody who brings it may take part.

An invite is a bearer's token: it travels in a join link and then in `Hello`. The leader binds it
to the key that brought it (`InviteUsed`), and counts different keys. It does not say who may not
take part any more: the charter does, by revoked invites and banned keys.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from protocol import limits, wire
from protocol.errors import LimitExceeded, MalformedMessage, WrongProject
from protocol.ids import Digest, InviteId, NodeKey
from protocol.messages import Envelope
from protocol.project import Name
from protocol.signing import Signer, Verify, open_envelope, seal


class Invite(Struct, frozen=True, array_like=True):
    """What an owner signs."""

    project: Digest
    id: InviteId
    name: Name
    """What the owner calls it."""
    uses: Annotated[int, Meta(ge=1, le=limits.INVITE_USES_MAX)]
    """Different keys that it may bring."""
    expires_s: Annotated[int, Meta(ge=1, le=2**37)]
    """Unix seconds from which on it brings nobody."""
    key: NodeKey | None = None
    """The only key that it may bring, if it is for one."""


def seal_invite(invite: Invite, owner: Signer) -> Envelope:
    """The invite as its owner signs it."""
    return seal("invite", invite.project, wire.encode(invite), owner)


def open_invite(envelope: Envelope, *, project: bytes, owner: bytes, verify: Verify) -> Invite:
    """The invite, proven to be the owner's for this project.

    Raises LimitExceeded, BadSignature, MalformedMessage or WrongProject.
    """
    if len(envelope.payload) > limits.INVITE_BYTES_MAX:
        raise LimitExceeded(f"an invite of {len(envelope.payload)} bytes")
    payload = open_envelope("invite", project, envelope, verify, signer=owner)
    invite = wire.decode(payload, Invite)
    if invite.project != project:
        raise WrongProject("an invite to another project")
    return invite


def named_project(envelope: Envelope) -> bytes | None:
    """The project that an unproven invite names; None if it is no invite. To tell a mix-up from a
    forgery, nothing more."""
    if len(envelope.payload) > limits.INVITE_BYTES_MAX:
        return None
    try:
        return wire.decode(envelope.payload, Invite).project
    except MalformedMessage:
        return None
