"""Files that a genesis pins by digest, as this machine keeps them: those of the tokenizer.

They lie in the home's cache under the hash of what names them, so two projects with one tokenizer
share them, and a file that was changed or damaged counts as absent.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path

import msgspec
from blake3 import blake3

from host.runtime.atomic_files import replace_file
from protocol.errors import InternalError, UserError
from protocol.ids import Digest
from protocol.project import PinnedFile, TokenizerSpec

_CONTEXT = "shoal 1 tokenizer"


def key_of(spec: TokenizerSpec) -> bytes:
    """What tells one tokenizer from another."""
    return blake3(msgspec.msgpack.encode(spec), derive_key_context=_CONTEXT).digest(12)


class PinnedFiles:
    """The files of one tokenizer; none of a project that pins none."""

    def __init__(self, cache: Path, spec: TokenizerSpec | None) -> None:
        """cache: the home's."""
        self.spec = spec
        self._named = {} if spec is None else {one.digest: one for one in spec.files}
        self._held: dict[Digest, memoryview] = {}
        self._lock = threading.Lock()
        name = "none" if spec is None else key_of(spec).hex()
        self.folder = cache / f"tokenizer-{name}"

    @property
    def size_bytes(self) -> int:
        """Of all of them."""
        return sum(one.bytes for one in self._named.values())

    def find(self, digest: Digest) -> memoryview | None:
        """The content of the file with this digest, if it is one of them and is here."""
        one = self._named.get(digest)
        if one is None:
            return None
        with self._lock:
            if digest not in self._held:
                content = read_pinned(self.folder / one.name, one)
                if content is None:
                    return None
                self._held[digest] = memoryview(content)
            return self._held[digest]

    def missing(self) -> list[PinnedFile]:
        """Those that are not here."""
        return [one for digest, one in self._named.items() if self.find(digest) is None]

    def keep(self, file: PinnedFile, content: bytes | memoryview) -> None:
        """Writes one of them. UserError if it cannot be written."""
        if len(content) != file.bytes or blake3(content).digest() != file.digest:
            raise InternalError(f"{file.name} is not what the project pins")
        path = self.folder / file.name
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            replace_file(path, bytes(content))
        except OSError as error:
            raise UserError(
                f"{path} cannot be written ({error.strerror}). Free some disk space."
            ) from error

    def contents(self) -> tuple[bytes, ...]:
        """Of those that are here."""
        found = (self.find(digest) for digest in self._named)
        return tuple(bytes(one) for one in found if one is not None)

    def take(self, contents: Iterable[bytes]) -> None:
        """Keeps those of them that are missing here; whatever else is given is left."""
        missing = {one.digest: one for one in self.missing()}
        for content in contents if missing else ():
            one = missing.get(blake3(content).digest())
            if one is not None:
                self.keep(one, content)

    def take_from(self, folder: Path) -> None:
        """Keeps what another folder has of them, byte for byte; the rest stays missing."""
        for one in self.missing():
            content = read_pinned(folder / one.name, one)
            if content is not None:
                self.keep(one, content)


def read_pinned(path: Path, file: PinnedFile) -> bytes | None:
    """The file at `path` if it is the one that is pinned."""
    try:
        with path.open("rb") as handle:
            content = handle.read(file.bytes + 1)
    except OSError:
        return None  # Then it has to come from somebody else, who is asked next.
    is_it = len(content) == file.bytes and blake3(content).digest() == file.digest
    return content if is_it else None
