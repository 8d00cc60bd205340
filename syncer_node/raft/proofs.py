"""Certificates that must be on this disk before anything relies on them.

Most are made again when they are lost: the voters that signed are there. Who signed for a charter
may be no voter under it, above all where a sole voter is left. So the record that adopts a charter
is applied only once its certificate is fsynced.
"""

from __future__ import annotations

from protocol.machine import Failed
from syncer_node.raft.context import Context
from syncer_node.raft.jobs import KeepProofs, ProofsKept

RETRY_S = 5.0


class Proofs:
    """Has the disk keep what `RaftLog.unkept_proofs` names."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.trouble = ""
        """Why they cannot be written, in words; empty when they can."""
        self._writing: KeepProofs | None = None
        self._retry_s: float | None = None

    def keep(self) -> None:
        """Begin to write what is to be kept, if there is something and nothing is under way."""
        if self._writing is not None or self._retry_s is not None:
            return
        if certificates := self.context.log.unkept_proofs():
            self._writing = KeepProofs(certificates)
            self.context.effects.start(self._writing)

    def on_kept(self, job: KeepProofs, result: object) -> None:
        """The disk answered; the log may go on."""
        self._writing = None
        if not isinstance(result, ProofsKept):
            self._retry_s = self.context.now_s + RETRY_S
            self.trouble = result.reason if isinstance(result, Failed) else "not written"
            return
        log, newest = self.context.log, job.certificates[-1]
        self.trouble = ""
        if log.holds(newest.index) and log.digest_at(newest.index) == newest.record:
            log.proofs_kept = max(log.proofs_kept, newest.index)

    def look(self) -> None:
        """Time passes: write again."""
        if self._retry_s is not None and self.context.now_s >= self._retry_s:
            self._retry_s = None
            self.keep()

    def deadline_s(self) -> float:
        return 1e18 if self._retry_s is None else self._retry_s
