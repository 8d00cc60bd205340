"""The one string a volunteer pastes: which project, and where some of its hosts listen.

`shoal:` and then base64url, without padding, of a MessagePack array and its checksum. A link proves
nothing: what it leads to is checked against the project id it names. It is no secret either, unless
it carries an invite.
"""

from __future__ import annotations

import base64
import binascii
from typing import Annotated

import msgspec
from blake3 import blake3
from msgspec import Meta, Struct

from protocol import decoders, limits
from protocol.errors import UserError
from protocol.ids import Digest
from protocol.messages import Envelope
from protocol.project import Name

PREFIX = "shoal:"
LINK_VERSION = 1
SURPLUS_MAX = 8
"""Characters that are looked for behind a pasted link."""

CHECKSUM_BYTES = 4
"""Enough against slips of the mouse; against malice the project id itself protects."""

_AGAIN = "Copy it again, whole, from `shoal:` to its end."


class JoinLink(Struct, frozen=True, array_like=True, tag=LINK_VERSION):
    """What a join link says."""

    project: Digest
    genesis_bytes: Annotated[int, Meta(ge=1, le=limits.GENESIS_BYTES_MAX)]
    """Length of the genesis, which is fetched under the project's id."""
    name: Name
    """What the project is called, to be shown before its genesis has arrived."""
    addresses: Annotated[
        tuple[Annotated[str, Meta(max_length=512)], ...],
        Meta(min_length=1, max_length=limits.ADDRESSES_MAX),
    ]
    """Whole addresses, each ending in `/p2p/ID`; any one that answers is enough."""
    invite: Envelope | None = None
    """An `invites.Invite` as the owner signed it: who holds such a link may use it up."""


def format_link(link: JoinLink) -> str:
    """The link as one word.

    UserError if it names no address, a wrong one, or so many that it would be too long.
    """
    if not link.addresses:
        raise UserError("A join link needs an address. Name one with --announce.")
    for address in link.addresses:
        check_address(address)
    payload = msgspec.msgpack.encode(link)
    coded = base64.urlsafe_b64encode(payload + _checksum(payload)).decode("ascii").rstrip("=")
    text = PREFIX + coded
    if len(link.addresses) > limits.ADDRESSES_MAX or len(text) > limits.LINK_CHARS_MAX:
        raise UserError(
            f"A join link with these {len(link.addresses)} addresses is too long. Name fewer of "
            "them with --announce."
        )
    return text


def parse_link(text: str) -> JoinLink:
    """What a pasted link says; blanks and line breaks inside it do not matter.

    UserError, in one line, for everything that is not a whole link with sound addresses.
    """
    if len(text) > 2 * limits.LINK_CHARS_MAX:
        raise UserError(_too_long(len(text)))
    link = "".join(text.split()).strip("\"'<>")
    if len(link) > limits.LINK_CHARS_MAX:
        raise UserError(_too_long(len(link)))
    if not link.startswith(PREFIX):
        raise UserError(f"A join link begins with `{PREFIX}`; this text does not. {_AGAIN}")
    found = _decode(_payload(link.removeprefix(PREFIX)))
    for address in found.addresses:
        check_address(address)
    if found.invite is not None and len(found.invite.payload) > limits.INVITE_BYTES_MAX:
        raise UserError(
            "The join link carries an invite that is too long. Ask the project's host for a new "
            "link."
        )
    return found


def _payload(coded: str) -> bytes:
    """The bytes in front of the checksum, once they agree with it."""
    if not coded:
        raise UserError(f"The join link is cut off after `{PREFIX}`. {_AGAIN}")
    if not coded.isascii() or any(not (char.isalnum() or char in "-_") for char in coded):
        raise UserError(f"The join link contains foreign characters. {_AGAIN}")
    if (surplus := _surplus(coded)) is not None:
        more = "1 character" if surplus == 1 else f"{surplus} characters"
        raise UserError(f"The join link has {more} too many at its end. {_AGAIN}")
    try:
        padding = "=" * (-len(coded) % 4)
        raw = base64.b64decode(coded + padding, altchars=b"-_", validate=True)
    except binascii.Error as error:
        raise UserError(f"The join link is cut off: its end is missing. {_AGAIN}") from error
    payload, checksum = raw[:-CHECKSUM_BYTES], raw[-CHECKSUM_BYTES:]
    if checksum != _checksum(payload):
        if _is_cut_off(raw):
            raise UserError(f"The join link is cut off: its end is missing. {_AGAIN}")
        raise UserError(f"The join link is damaged: its checksum does not match. {_AGAIN}")
    return payload


def _surplus(coded: str) -> int | None:
    """How many characters at the end do not belong to the link; None if that is not what it is."""
    for surplus in range(1, SURPLUS_MAX + 1):
        kept = coded[:-surplus]
        try:
            raw = base64.b64decode(kept + "=" * (-len(kept) % 4), altchars=b"-_", validate=True)
        except binascii.Error:
            continue
        # The last characters of a whole link hold no bits but those of its last byte.
        is_canonical = base64.urlsafe_b64encode(raw).decode("ascii").rstrip("=") == kept
        payload, checksum = raw[:-CHECKSUM_BYTES], raw[-CHECKSUM_BYTES:]
        if is_canonical and payload and checksum == _checksum(payload):
            return surplus
    return None


def _is_cut_off(raw: bytes) -> bool:
    """Whether the bytes begin like a link and end before the array they announce does."""
    try:
        msgspec.msgpack.decode(raw)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        return "truncated" in str(error)
    return True  # a whole array, but nothing behind it


def _decode(payload: bytes) -> JoinLink:
    try:
        version = decoders.msgpack_decoder(list[object]).decode(payload)[0]
        if isinstance(version, int) and version != LINK_VERSION:
            raise UserError(
                f"The join link is of version {version}; this Shoal reads version {LINK_VERSION}. "
                "Use the version of Shoal that the project's host uses."
            )
        return decoders.msgpack_decoder(JoinLink).decode(payload)
    except (msgspec.MsgspecError, ValueError, IndexError, RecursionError) as error:
        raise UserError(
            f"The join link is invalid ({error}). Ask the project's host for a new one."
        ) from error


def check_address(text: str) -> None:
    """UserError for an address that no join link may name."""
    from multiaddr import Multiaddr
    from multiaddr.exceptions import Error as MultiaddrError

    from host import addresses

    remedy = "Ask the project's host for a new link."
    try:
        protocols = [protocol.name for protocol in Multiaddr(text).protocols()]
    except (MultiaddrError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise UserError(
            f"The address {text!r} in the join link is not one ({reason}). {remedy}"
        ) from error
    if not protocols or protocols[-1] != "p2p":
        raise UserError(
            f"The address {text!r} in the join link does not end in a host's id (/p2p/...). "
            f"{remedy}"
        )
    addresses.parse_peer(text)


def _checksum(payload: bytes) -> bytes:
    return blake3(payload, derive_key_context="shoal 1 join link").digest(CHECKSUM_BYTES)


def _too_long(chars: int) -> str:
    return (
        f"This text has {chars} characters, a join link at most {limits.LINK_CHARS_MAX}. "
        "Paste the link alone."
    )
