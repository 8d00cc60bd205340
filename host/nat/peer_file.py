"""The hosts that a daemon knows from before, in a file of its home."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Sequence
from pathlib import Path

from host import addresses
from host.files.home import DaemonRole, Home
from host.runtime.atomic_files import write_atomically
from protocol.errors import ShoalError, TransientError
from protocol.ids import NodeKey
from protocol.peers.peer_book import FILE_BYTES_MAX, PeerBook

SAVE_EVERY_S = 30.0

log = logging.getLogger("shoal.peers")


def is_sound(key: NodeKey, text: str) -> bool:
    """Whether an address names this host, at a place that can be dialled."""
    with contextlib.suppress(ShoalError):
        return addresses.parse_peer(text).key == key
    return False


class PeerFile:
    """A book of hosts and the file that it is kept in; without a path it is not kept."""

    def __init__(self, path: Path | None = None, *, own: NodeKey | None = None) -> None:
        self.book = PeerBook(is_sound)
        self._own = own
        self._path = path
        self._is_changed = False
        self._saved_s = -SAVE_EVERY_S
        if path is not None:
            self._load(path)

    def saw(self, key: NodeKey, texts: Sequence[str]) -> None:
        """A host answered, and says or shows where it is reached."""
        if key != self._own:
            self._is_changed |= self.book.saw(key, texts, time.time())

    async def save(self, *, is_last: bool = False) -> None:
        """Writes the file if there is news; not too often, except at the end."""
        now_s = time.monotonic()
        if self._path is None or not (self._is_changed or is_last) or not len(self.book):
            return
        if not is_last and now_s - self._saved_s < SAVE_EVERY_S:
            return
        self._saved_s, self._is_changed = now_s, False
        try:
            await asyncio.to_thread(write_atomically, self._path, self.book.pack())
        except TransientError as error:
            log.warning("could not save the known hosts: %s", error)

    def _load(self, path: Path) -> None:
        try:
            with path.open("rb") as handle:
                content = handle.read(FILE_BYTES_MAX + 1)
        except FileNotFoundError:
            return
        except OSError as error:
            log.warning("cannot read %s (%s); finding hosts without it", path, error.strerror)
            return
        if trouble := self.book.read(content, time.time()):
            log.warning("%s: %s; the rest is used", path, trouble)


def peer_file(
    home: Home, project: bytes, role: DaemonRole, instance: str, *, own: NodeKey
) -> PeerFile:
    """The book of one daemon for one project."""
    return PeerFile(home.project(project) / f"peers-{role}-{instance}.json", own=own)


def places_known(home: Home, project: bytes, most: int) -> list[str]:
    """Addresses of hosts that any daemon of this home met in a project, at most so many hosts from
    each daemon's book, those that answered last first."""
    paths = sorted(home.project(project).glob("peers-*.json"))
    books = [PeerFile(path).book for path in paths]
    return [text for book in books for _, texts in book.best()[:most] for text in texts]
