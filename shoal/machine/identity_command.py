"""The `identity` verbs: which keys this machine has, and taking one to a safe place or back.

A back-up is text: what the key is for, and the key as PKCS #8 in PEM, which other tools read too.
A passphrase comes from a file or the environment, never from the command line, which others see.
"""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, get_args

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from host.files import keystore
from host.files.home import DEFAULT_INSTANCE, Home, Role
from protocol.errors import ShoalError, UserError
from protocol.ids import NodeKey
from shoal.common.choices import HomeHere, area, option, switch
from shoal.common.writing import write_new, writing

PASSPHRASE_VARIABLE: Final = "SHOAL_PASSPHRASE"
PASSPHRASE_CHARS_MIN: Final = 8
FILE_BYTES_MAX: Final = 1 << 14

PURPOSES: Final[dict[Role, str]] = {
    "owner": "signs projects; without it they can never change again",
    "syncer": "votes for projects and leads them",
    "witness": "votes for projects",
    "learner": "counts a learner's merges",
}

identity_app = area("identity")
PassphraseFile = Annotated[
    Path | None, option("Its first line is the passphrase; SHOAL_PASSPHRASE otherwise.")
]

_HEADER = re.compile(r"^(role|instance|key): (\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class KeyFile:
    """A key file of a home."""

    role: Role
    instance: str
    path: Path

    @property
    def called(self) -> str:
        """Role and instance."""
        return f"{self.role} {self.instance}"


def key_files(home: Home) -> list[KeyFile]:
    """All keys of a home, sorted. Makes no directory."""
    found = []
    for path in sorted((home.root / "keys").glob("*.key")):
        name, _, instance = path.stem.partition("-")
        for role in get_args(Role):
            if role == name and instance:
                found.append(KeyFile(role, instance, path))
    return found


@identity_app.command
def show(*, home: HomeHere) -> list[str]:
    """Print the public keys of this machine and where the private ones are."""
    found = key_files(home)
    if not found:
        raise UserError(
            f"There is no key in {home.root} yet. The first `shoal join` or `shoal project sign` "
            "makes one."
        )
    lines: list[str] = []
    for one in found:
        lines += ["", f"{one.called}: {PURPOSES[one.role]}"]
        try:
            key = keystore.load_or_create(one.path).key
        except UserError as error:
            lines.append(f"  trouble  {error}")
            continue
        lines += [
            f"  key      {key.hex()}",
            f"  peer id  {keystore.peer_id(key)}",
            f"  file     {one.path}",
        ]
    return lines[1:]


@identity_app.command
def export(
    to: Annotated[Path, option("File to write; must not exist.")],
    *,
    role: Annotated[Role | None, option("Which key, if there are several.")] = None,
    instance: Annotated[str | None, option("Which instance's.")] = None,
    passphrase_file: PassphraseFile = None,
    home: HomeHere,
) -> list[str]:
    """Back up a key, encrypted if a passphrase is given."""
    chosen = _chosen(home, role, instance)
    identity = keystore.load_or_create(chosen.path)
    secret = passphrase(passphrase_file)
    if secret is not None and len(secret) < PASSPHRASE_CHARS_MIN:
        raise UserError(
            f"The passphrase has {len(secret)} characters. Use at least {PASSPHRASE_CHARS_MIN}."
        )
    text = _as_text(chosen, identity.key, identity.pem(secret))
    write_new(to, text, mode=0o600)
    how = "encrypted with the passphrase" if secret else "not encrypted: keep it private"
    return [
        f"wrote {to}: the key of {chosen.called}, {how}",
        f"restore it with: shoal identity import {to}",
    ]


@identity_app.command(name="import")
def bring_back(
    source: Annotated[Path, option("A file that `shoal identity export` wrote.")],
    *,
    instance: Annotated[
        str | None, option("For this instance instead of the one it was exported from.")
    ] = None,
    replace: Annotated[bool, switch("Move an existing key aside.")] = False,
    passphrase_file: PassphraseFile = None,
    home: HomeHere,
) -> list[str]:
    """Restore a key from its backup, on this machine or another."""
    role, named, private = _read(source, passphrase_file)
    key = private.public_key().public_bytes_raw()
    chosen = KeyFile(role, instance or named, home.identity(role, instance or named))
    if chosen.path.exists():
        try:
            is_same = keystore.load_or_create(chosen.path).key == key
        except ShoalError:
            is_same = False  # damaged, which is a reason to bring one back
        if is_same:
            return [f"{chosen.called} has this key already: {key.hex()}"]
        if not replace:
            raise UserError(
                f"{chosen.called} has another key in {chosen.path}. To use this one instead, and "
                "move the other aside: shoal identity import --replace. To have both: --instance "
                "NAME."
            )
    remedy = "Stop it first: shoal stop"
    with keystore.lock(chosen.path, remedy=remedy):
        lines = _move_aside(chosen.path)
        with writing(chosen.path):
            keystore.store(private, chosen.path)
    return [
        *lines,
        f"{chosen.called} has the key {key.hex()}",
        "one host per key: never run daemons with it on two machines",
    ]


def passphrase(file: Path | None) -> bytes | None:
    """The first line of the file, or $SHOAL_PASSPHRASE; None where neither is given."""
    if file is None:
        text = os.environ.get(PASSPHRASE_VARIABLE, "")
    else:
        try:
            lines = file.read_text().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"The passphrase file {file} cannot be read ({error}).") from error
        text = lines[0] if lines else ""
        if not text:
            raise UserError(f"The first line of the passphrase file {file} is empty.")
    return text.encode() or None


def _chosen(home: Home, role: Role | None, instance: str | None) -> KeyFile:
    """The one key that fits."""
    found = key_files(home)
    fitting = [
        one for one in found if role in (None, one.role) and instance in (None, one.instance)
    ]
    if len(fitting) == 1:
        return fitting[0]
    known = ", ".join(one.called for one in found) or "none"
    if not fitting:
        wanted = " ".join(word for word in (role, instance) if word)
        of = f"of {wanted} " if wanted else ""
        raise UserError(f"There is no key {of}in {home.root}; there is: {known}.")
    raise UserError(
        f"Several keys fit: {', '.join(one.called for one in fitting)}. Name one with --role and "
        "--instance."
    )


def _as_text(chosen: KeyFile, key: NodeKey, pem: bytes) -> bytes:
    head = (
        "A key of Shoal. Whoever has it can act in its place.\n"
        f"role: {chosen.role}\ninstance: {chosen.instance}\nkey: {key.hex()}\n\n"
    )
    return head.encode() + pem


def _read(source: Path, file: Path | None) -> tuple[Role, str, Ed25519PrivateKey]:
    """Role, instance and key of a back-up."""
    try:
        with source.open("rb") as handle:
            content = handle.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise UserError(f"{source} cannot be read ({error.strerror}).") from error
    head, mark, body = content.partition(b"-----BEGIN ")
    said = dict(_HEADER.findall(head.decode(errors="replace")))
    role = next((one for one in PURPOSES if one == said.get("role")), None)
    if role is None or not mark or len(content) > FILE_BYTES_MAX:
        raise UserError(f"{source} was not written by `shoal identity export`.")
    private = _decrypted(mark + body, source, file)
    if private.public_key().public_bytes_raw().hex() != said.get("key"):
        raise UserError(f"{source} is damaged: the key in it is not the one that it names.")
    return role, said.get("instance", DEFAULT_INSTANCE), private


def _decrypted(pem: bytes, source: Path, file: Path | None) -> Ed25519PrivateKey:
    is_encrypted = pem.startswith(b"-----BEGIN ENCRYPTED")
    secret = passphrase(file)
    if is_encrypted and secret is None:
        raise UserError(
            f"{source} is encrypted. Give its passphrase with --passphrase-file FILE or "
            f"{PASSPHRASE_VARIABLE}."
        )
    try:
        private = load_pem_private_key(pem, secret if is_encrypted else None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        cause = "the passphrase is not the right one, or the file" if is_encrypted else "the file"
        raise UserError(f"{source} cannot be read: {cause} is damaged.") from error
    if not isinstance(private, Ed25519PrivateKey):
        raise UserError(f"{source} holds a key of another kind; Shoal's are Ed25519.")
    return private


def _move_aside(path: Path) -> list[str]:
    if not path.exists():
        return []
    aside = path.with_name(f"{path.name}.replaced-{time.strftime('%Y%m%d-%H%M%S')}")
    try:
        path.rename(aside)
    except OSError as error:
        raise UserError(f"{path} cannot be moved aside ({error.strerror}).") from error
    return [f"moved the former key to {aside}"]
