"""The ledger of one syncer daemon: told every fact, kept on its disk, shown to who asks."""

from __future__ import annotations

import asyncio
import logging
import time
from functools import partial
from pathlib import Path
from typing import Any

from protocol.errors import CorruptState, TransientError
from protocol.status import ContributorRow
from protocol.trace import Fact
from syncer_node.ledger import (
    FILE_NAME,
    SAVE_EVERY_S,
    Ledger,
    StoredLedger,
    read_ledger,
    write_ledger,
)
from syncer_node.syncer import SyncerMachine
from syncer_node.work import Work

log = logging.getLogger("shoal.ledger")


class Bookkeeping:
    """What accompanies a syncer's machine: it writes down, and decides nothing."""

    def __init__(self, root: Path, project: bytes, name: str) -> None:
        self.path = root / FILE_NAME
        self.ledger = Ledger()
        self.machine: SyncerMachine | None = None
        self.work: Work
        self._project = project.hex()
        self._name = name
        self._kept = (-1, -1)
        """Record and notes that the file counts."""
        self._restore()

    def _restore(self) -> None:
        try:
            self.ledger.restore(read_ledger(self.path).contributors)
        except FileNotFoundError:
            pass  # A new store.
        except (OSError, CorruptState, ValueError) as error:
            aside = self.path.with_suffix(".damaged")
            log.warning("%s; notes begin anew, it is put aside as %s", error, aside.name)
            try:
                self.path.replace(aside)
            except OSError as trouble:
                log.warning("%s stays where it is: %s", self.path, trouble)

    def tell(self, fact: Fact) -> None:
        """Note a fact of the machine."""
        accounts = self.machine.state.accounts if self.machine is not None else {}
        self.ledger.tell(fact, time.time(), accounts)

    def rows(self) -> list[ContributorRow]:
        """All contributors, those with most tokens first."""
        machine = self._built()
        if machine.seat is None:
            self.ledger.away()
        return self.ledger.rows(machine.state)

    async def keep_saving(self) -> None:
        """Again and again: what a crash can lose is the notes of a few seconds."""
        while True:
            await asyncio.sleep(SAVE_EVERY_S)
            now = (self._built().state.index, self.ledger.changes)
            if now != self._kept:
                self._kept = now
                self.work.small(partial(write_ledger, self.path, self._stored()))

    async def answer(self, _: dict[str, Any]) -> dict[str, Any]:
        """The control verb `ledger`: the file is made new; where it is."""
        write = partial(write_ledger, self.path, self._stored())
        await asyncio.wrap_future(self.work.disk_pool.submit(write))
        return {"path": str(self.path)}

    def close(self) -> None:
        """Write the file a last time; nobody else writes any more."""
        for note in self.ledger.notes.values():
            note.is_here = False
        try:
            write_ledger(self.path, self._stored())
        except TransientError as error:
            log.warning("the ledger is not as new as it could be: %s", error)

    def _built(self) -> SyncerMachine:
        assert self.machine is not None, "the daemon is built"
        return self.machine

    def _stored(self) -> StoredLedger:
        return StoredLedger(
            project=self._project,
            project_name=self._name,
            log_index=self._built().state.index,
            at_s=time.time(),
            contributors=self.rows(),
        )
