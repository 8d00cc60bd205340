"""The signed form of a project: one file with its genesis and the owner's charter.

Written where the project is signed, read by the syncer, and kept as a copy by every daemon that
works for the project. Nothing is trusted in it but the owner's signature.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import Meta, Struct

from host.files.keystore import Identity
from host.runtime.atomic_files import replace_file
from protocol import decoders, errors, limits, signing, wire
from protocol.messages import Envelope
from protocol.project import Charter, Genesis, encode, project_id

log = logging.getLogger("shoal.project")

SUFFIX = ".shoal"
FORMAT_VERSION = 1
_FILE_BYTES_MAX = limits.GENESIS_BYTES_MAX + 2 * limits.FRAME_BYTES_MAX + limits.TOKENIZER_BYTES_MAX


class SignedProject(Struct, frozen=True, array_like=True):
    """The content of a signed project file."""

    magic: Literal["shoal-project"]
    version: int
    genesis: Annotated[bytes, Meta(max_length=limits.GENESIS_BYTES_MAX)]
    charter: Envelope
    files: Annotated[
        tuple[Annotated[bytes, Meta(max_length=limits.TOKENIZER_BYTES_MAX)], ...],
        Meta(max_length=limits.PINNED_FILES_MAX),
    ] = ()
    """What the genesis pins by digest, so that a syncer elsewhere can give it to learners."""


class OpenedProject(NamedTuple):
    """A project whose signature was verified."""

    genesis: Genesis
    genesis_bytes: bytes
    charter: Charter
    envelope: Envelope
    files: tuple[bytes, ...] = ()
    """Beside it in its file; whoever uses one compares it with its digest."""

    @property
    def id(self) -> bytes:
        """The project's id."""
        return project_id(self.genesis_bytes)

    def stored(self) -> SignedProject:
        """The form that `write_signed` takes."""
        return SignedProject(
            "shoal-project", FORMAT_VERSION, self.genesis_bytes, self.envelope, self.files
        )


def seal_project(genesis: Genesis, charter: Charter, owner: Identity) -> SignedProject:
    """The project, its charter signed by its owner."""
    assert genesis.owner == owner.key, "only the owner signs"
    content = encode(genesis)
    assert charter.project == project_id(content), "the charter speaks of this genesis"
    envelope = signing.seal("charter", charter.project, encode(charter), owner)
    return SignedProject("shoal-project", FORMAT_VERSION, content, envelope)


def open_project(genesis_bytes: bytes, envelope: Envelope) -> OpenedProject:
    """The project that these bytes describe, proven to be its owner's word.

    One that a former version wrote may lack last fields, which then have their defaults. Raises
    MalformedMessage (not canonical, or not decodable), LimitExceeded, BadSignature, WrongProject.
    """
    genesis = wire.decode(genesis_bytes, Genesis, bytes_max=limits.GENESIS_BYTES_MAX)
    project = project_id(genesis_bytes)
    payload = signing.open_envelope(
        "charter", project, envelope, signing.verify_ed25519, signer=genesis.owner
    )
    charter = wire.decode(payload, Charter)
    if charter.project != project:
        raise errors.WrongProject("the charter was written for another project")
    return OpenedProject(genesis, genesis_bytes, charter, envelope)


def newest_of(project: OpenedProject, *kept: Envelope | None) -> OpenedProject:
    """The project under the newest charter: its own, or one that was kept elsewhere.

    A kept one that is not the owner's word about this project does not count.
    """
    for envelope in kept:
        if envelope is None:
            continue
        try:
            opened = open_project(project.genesis_bytes, envelope)
        except errors.RemoteError as error:
            log.warning("ignoring a stored charter: %s", error)
            continue
        if opened.charter.revision > project.charter.revision:
            project = opened._replace(files=project.files)
    return project


def write_signed(path: Path, project: SignedProject) -> None:
    """Stores the project at `path` in one piece: a reader sees the old file or the new one.

    Files that are there for this genesis stay, if `project` has none.
    """
    if not project.files:
        project = msgspec.structs.replace(project, files=_files_at(path, project.genesis))
    try:
        replace_file(path, msgspec.msgpack.encode(project))
    except OSError as error:
        raise errors.UserError(
            f"{path} cannot be written ({error.strerror}). Free disk space or choose another "
            "directory."
        ) from error


def _files_at(path: Path, genesis: bytes) -> tuple[bytes, ...]:
    try:
        known = read_signed(path)
    except errors.UserError:
        return ()  # Nothing is there yet, or nothing that could be used.
    return known.files if known.genesis_bytes == genesis else ()


def read_signed(path: Path) -> OpenedProject:
    """The project stored at `path`. UserError if it is absent, damaged or not its owner's word."""
    try:
        with path.open("rb") as handle:
            content = handle.read(_FILE_BYTES_MAX + 1)
    except FileNotFoundError as error:
        raise errors.UserError(f"There is no file {path}. {_remedy(path)}") from error
    except OSError as error:
        raise errors.UserError(f"{path} cannot be read ({error.strerror}).") from error
    try:
        stored = decoders.msgpack_decoder(SignedProject).decode(content)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:  # ValueError: no UTF-8
        raise errors.UserError(
            f"{path} is not a signed project, or is damaged. {_remedy(path)}"
        ) from error
    if stored.version != FORMAT_VERSION:
        raise errors.UserError(
            f"{path} is of format {stored.version}; this Shoal reads {FORMAT_VERSION}. "
            f"{_remedy(path)}"
        )
    try:
        opened = open_project(stored.genesis, stored.charter)
    except errors.BadSignature as error:
        raise errors.UserError(
            f"{path} is not what its owner signed: {error}. {_remedy(path)}"
        ) from error
    except errors.ShoalError as error:
        raise errors.UserError(f"{path} is damaged: {error}. {_remedy(path)}") from error
    if opened.genesis.wire_version != limits.WIRE_VERSION:
        raise errors.UserError(
            f"{path} was signed for version {opened.genesis.wire_version} of Shoal's protocol; "
            f"this Shoal speaks {limits.WIRE_VERSION}. {_remedy(path)}"
        )
    return opened._replace(files=stored.files)


def _remedy(path: Path) -> str:
    source = path.with_suffix(".toml") if path.suffix == SUFFIX else path
    return f"Sign it again with: shoal project sign {source}"
