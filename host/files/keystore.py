"""The Ed25519 identity of a host: its key file, the lock beside it, and the names made from it.

The file is the serialized libp2p private key that the network engine reads itself, so a host has
one key for everything: it signs with it and other hosts see it as the far end of their connections.
The few protobuf bytes are written by hand, because importing the engine for them takes seconds.
Source: https://github.com/libp2p/specs/blob/master/peer-ids/peer-ids.md
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shlex
import stat
import tempfile
from io import FileIO
from pathlib import Path

import base58
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)

from host.runtime.atomic_files import sync
from protocol.errors import MalformedMessage, UserError
from protocol.ids import NodeKey

_PRIVATE_PREFIX = bytes.fromhex("08011240")
"""PrivateKey{key_type: Ed25519, data: 64 bytes}; the seed and the public key follow."""

_PEER_ID_PREFIX = bytes.fromhex("002408011220")
"""Identity multihash of 36 bytes: PublicKey{key_type: Ed25519, data: 32 bytes}."""

_FILE_BYTES = len(_PRIVATE_PREFIX) + 64


class Identity:
    """A host's signing key. `key` is its public part; `path` is the file with the secret."""

    def __init__(self, private: Ed25519PrivateKey, path: Path) -> None:
        self._private = private
        self.key: NodeKey = private.public_key().public_bytes_raw()
        self.path = path

    def pem(self, passphrase: bytes | None) -> bytes:
        """The secret as PKCS #8 in PEM, encrypted where there is a passphrase."""
        cipher = BestAvailableEncryption(passphrase) if passphrase else NoEncryption()
        return self._private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, cipher)

    def sign(self, message: bytes) -> bytes:
        """The 64-byte Ed25519 signature of `message`; the caller puts a domain tag in front."""
        return self._private.sign(message)

    def certify(self, certificate: x509.CertificateBuilder) -> x509.Certificate:
        """A certificate, signed with this key."""
        return certificate.sign(self._private, None)


def load_or_create(path: Path) -> Identity:
    """The identity stored at `path`, made and stored first where there is none yet.

    Raises UserError when the file is readable by others, is not one of ours, or cannot be written.
    """
    try:
        return _load(path)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise UserError(f"The key file {path} cannot be read: {error.strerror}.") from error
    try:
        store(Ed25519PrivateKey.generate(), path)
        return _load(path)
    except OSError as error:
        raise UserError(
            f"The key file {path} cannot be created: {error.strerror}. "
            "Choose a directory that you may write to."
        ) from error


def store(private: Ed25519PrivateKey, path: Path) -> None:
    """Makes `private` the key at `path`, unless there is one already. Raises OSError.

    Durable, and whole at every moment: half a key would be refused at every later start, and a
    host that forgot it in a power failure would be somebody else.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    content = (
        _PRIVATE_PREFIX + private.private_bytes_raw() + private.public_key().public_bytes_raw()
    )
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    partial = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        _name(partial, path)
        sync(path.parent)
    finally:
        partial.unlink(missing_ok=True)


def _name(partial: Path, path: Path) -> None:
    """Give the file its name, unless another process was faster: then its key is the host's."""
    try:
        os.link(partial, path)
    except FileExistsError:
        return
    except OSError:  # This file system has no second names for a file.
        if not path.exists():
            partial.replace(path)


def _load(path: Path) -> Identity:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        mode = stat.S_IMODE(os.fstat(handle).st_mode)
        content = os.read(handle, _FILE_BYTES + 1)
    finally:
        os.close(handle)
    if mode & 0o077:
        raise UserError(
            f"The key file {path} can be read by other users (mode {mode:03o}). "
            f"Close it with: chmod 600 {shlex.quote(str(path))}"
        )
    seed, public = content[4:36], content[36:]
    if len(content) == _FILE_BYTES and content.startswith(_PRIVATE_PREFIX):
        private = Ed25519PrivateKey.from_private_bytes(seed)
        if private.public_key().public_bytes_raw() == public:
            return Identity(private, path)
    raise UserError(
        f"The key file {path} is damaged or is not a Shoal key. Move it away. If you have a "
        "backup: shoal identity import BACKUP. Without one the next start makes a new identity, "
        "which has nothing of this one: no vote, no contributions, no project."
    )


def lock(path: Path, *, remedy: str) -> FileIO:
    """The exclusive right to use the identity at `path`, until the result or the process ends.

    Two daemons with one key would share their calls at random, so the second is refused with a
    UserError that names the first and ends with `remedy`. The file stays when it is closed:
    removing it would let two holders lock two files.
    """
    beside = path.with_name(path.name + ".lock")
    try:
        beside.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise UserError(f"The lock file {beside} cannot be made: {error.strerror}.") from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = _holder(handle)
        os.close(handle)
        raise UserError(
            f"another shoal daemon ({holder}) is already running with this identity ({path}). "
            f"{remedy}"
        ) from error
    with contextlib.suppress(
        OSError
    ):  # the pid only serves the message; a full disk must not stop us
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
    return FileIO(handle, "r+")


def _holder(handle: int) -> str:
    text = os.pread(handle, 32, 0).decode("ascii", "replace").strip()
    return f"pid {text}" if text.isdigit() else "pid unknown"


def peer_id_bytes(key: bytes) -> bytes:
    """The libp2p PeerID of a host, 38 bytes."""
    return _PEER_ID_PREFIX + key


def peer_id(key: bytes) -> str:
    """The libp2p PeerID of a host as people see it at the end of an address (`12D3Koo...`)."""
    return base58.b58encode(peer_id_bytes(key)).decode()


def key_of_peer_id(raw: bytes) -> NodeKey:
    """The host key inside a binary PeerID. Raises MalformedMessage for any other kind of PeerID."""
    if len(raw) != 38 or not raw.startswith(_PEER_ID_PREFIX):
        raise MalformedMessage("the peer's id does not contain an Ed25519 key")
    return raw[len(_PEER_ID_PREFIX) :]


def key_of_peer_text(text: str) -> NodeKey:
    """The host key inside a PeerID as text. Raises MalformedMessage where there is none."""
    if len(text) > 64:
        raise MalformedMessage("a peer id has at most 64 characters")
    try:
        return key_of_peer_id(base58.b58decode(text))
    except ValueError as error:
        raise MalformedMessage(f"{text} is not a peer id") from error
