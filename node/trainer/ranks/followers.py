"""Rank 0's side of the other ranks of its trainer: starts them, tells them, notices their end.

They are children of rank 0 and end with it, however it ends: kill -9 of the daemon ends rank 0, and
that ends them. If one of them ends, the whole trainer does, with the reason of the one that began
it; the daemon then starts another.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from threading import Event, Thread
from typing import TYPE_CHECKING, Final

import msgspec

from host.runtime.memory_files import MeetingFile
from host.runtime.process_end import descriptor_of_end
from host.runtime.python_path import python_path
from node.trainer.failures import TrainerFailure
from node.trainer.link.endpoint import BlockingEnd
from node.trainer.link.messages import EXIT_OK, Configure, Failed, LinkClosed
from node.trainer.ranks import messages
from protocol.errors import InternalError

if TYPE_CHECKING:
    import torch

    from node.trainer.ranks.group import RankGroup

NOTICE_S: Final = 1.0
"""Rank 0 has so long to notice by itself that another rank ended; a device's collective may hang
instead of failing."""

CULPRIT_S: Final = 2.0
"""How long to look for the rank that ended first, once the ranks have lost each other."""

END_S: Final = 2.0
"""The kernel may need this long to free an accelerator."""


class Follower:
    """One other rank."""

    def __init__(self, rank: int, process: subprocess.Popen[bytes], end: socket.socket) -> None:
        self.rank = rank
        self.process = process
        self.end = BlockingEnd(end, messages.ANSWERS)
        self.ending = descriptor_of_end(process)
        """Readable once it has ended."""
        self.device = ""
        self.failed: Failed | None = None
        """What it said last."""

    def hear(self, timeout_s: float | None) -> None:
        """Takes what it said. LinkClosed at its end."""
        said = self.end.receive(timeout_s)
        if isinstance(said, Failed):
            self.failed = said
        elif said is not None:
            self.device = said.device

    def has_ended(self) -> bool:
        return bool(select.select([self.ending], [], [], 0.0)[0])

    def reason(self) -> Failed | None:
        """Why it ended, if the reason is its own; None if it lives, or went because others did."""
        with suppress(LinkClosed):  # Whatever it said came before.
            self.hear(0.0)
        if self.failed is not None:
            return Failed(self.failed.kind, f"Rank {self.rank}: {self.failed.message}")
        if not self.has_ended():
            return None
        code = self.process.wait()
        if code == EXIT_OK:
            return None
        how = f"exit code {code}"
        if code < 0:
            how = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        return Failed("internal", f"Rank {self.rank} of the trainer was ended by {how}.")

    def close(self) -> None:
        os.close(self.ending)
        self.end.close()


class Followers:
    """All other ranks of this trainer."""

    rank = 0

    def __init__(self, configure: Configure, on_lost: Callable[[Failed], None]) -> None:
        """Starts nothing yet. `on_lost` is called on another thread if this one does not notice
        that a rank ended."""
        self.ranks = configure.ranks
        self.duty_frac = configure.duty_frac
        """Share of the time in which they work, from the next local step on."""
        self.every: list[Follower] = []
        self._configure = configure
        self._on_lost = on_lost
        self._meeting: MeetingFile | None = None
        self._is_noticed = Event()
        """The trainer ends, or is about to."""
        self._watcher: Thread | None = None

    def begin(self) -> None:
        """Starts them; they load what rank 0 loads meanwhile.

        Must be called on the main thread: they end when the thread that started them does.
        """
        self._meeting = MeetingFile("shoal-ranks")
        for rank in range(1, self.ranks):
            follower = self._start(rank, self._meeting)
            self.every.append(follower)
            follower.end.send(messages.Follow(self._configure, rank))
        self._watcher = Thread(target=self._watch, name="ranks", daemon=True)
        self._watcher.start()

    def _start(self, rank: int, meeting: MeetingFile) -> Follower:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        handed = {"fd": theirs.fileno(), "meeting": meeting.path, "parent": os.getpid()}
        arguments = [part for name, one in handed.items() for part in (f"--{name}", str(one))]
        environ = {**os.environ, "PYTHONPATH": python_path()}
        try:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "node.trainer.ranks.follower", *arguments],
                env=environ,
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), *meeting.keep),
            )
        except OSError as error:
            ours.close()
            raise InternalError(f"rank {rank} cannot be started: {error}") from error
        finally:
            theirs.close()
        return Follower(rank, process, ours)

    def meet(self, device: torch.device) -> RankGroup:
        """The process group, once every rank is ready. TrainerFailure if one cannot be."""
        from node.trainer.ranks.group import RankGroup

        for follower in self.every:
            try:
                while not follower.device and follower.failed is None:
                    follower.hear(None)
            except LinkClosed:
                pass  # It ended, and the next line says why.
            if not follower.device:
                raise self.failure(CULPRIT_S)
        assert self._meeting is not None, "ranks begin before they meet"
        return RankGroup(0, self.ranks, device, self._meeting.path)

    def devices(self) -> tuple[str, ...]:
        """Theirs, by rank."""
        return tuple(one.device for one in self.every)

    # Orders.

    def share(
        self, local_step: int, pieces: tuple[tuple[int, int, int], ...], learning_rate: float
    ) -> None:
        """A local step begins on this batch."""
        self.tell(messages.Share(local_step, pieces, learning_rate, self.duty_frac))

    def abandon(self) -> None:
        """The local step under way shall not count."""
        self.tell(messages.Abandon())

    def spread_weights(self, fragment: int) -> None:
        """They take part in spreading rank 0's weights."""
        self.tell(messages.SpreadWeights(fragment))

    def spread_moments(self, fragment: int) -> None:
        """They take part in spreading rank 0's optimizer state."""
        self.tell(messages.SpreadMoments(fragment))

    def tell(self, order: messages.Order) -> None:
        """They carry it out in its turn. TrainerFailure if one is gone."""
        for follower in self.every:
            try:
                follower.end.send(order)
            except LinkClosed as error:
                raise self.failure(CULPRIT_S) from error

    # Their end.

    def failure(self, wait_s: float = CULPRIT_S) -> TrainerFailure:
        """Why the ranks lost each other: the reason of the one that went first, if it is found."""
        self._is_noticed.set()
        ends_s = time.monotonic() + wait_s
        while True:
            reasons = [found for one in self.every if (found := one.reason()) is not None]
            living = [one.ending for one in self.every if not one.has_ended()]
            left_s = ends_s - time.monotonic()
            if reasons or not living or left_s <= 0.0:
                break
            select.select(living, [], [], left_s)
        # One that ran out of memory takes the others with it; what it said helps most.
        reasons.sort(key=lambda one: one.kind == "internal")
        if not reasons:
            return TrainerFailure("internal", "The trainer's ranks lost contact with each other.")
        return TrainerFailure(reasons[0].kind, reasons[0].message)

    def end(self) -> None:
        """Ends them and waits until their memory is free, within bounds. They keep nothing."""
        self._is_noticed.set()
        for follower in self.every:
            follower.process.kill()
        ends_s = time.monotonic() + END_S
        for follower in self.every:
            left_s = max(0.0, ends_s - time.monotonic())
            if not select.select([follower.ending], [], [], left_s)[0]:
                print(f"rank {follower.rank} does not end", file=sys.stderr, flush=True)
        if self._watcher is not None:
            self._watcher.join()
        for follower in self.every:
            follower.close()
        self.every.clear()
        if self._meeting is not None:
            self._meeting.close()

    def _watch(self) -> None:
        """Notices the end of a rank where this one cannot, as it waits for that very rank."""
        endings = [one.ending for one in self.every]
        while not select.select(endings, [], [], NOTICE_S / 4)[0]:
            if self._is_noticed.is_set():
                return
        if not self._is_noticed.wait(NOTICE_S):
            failure = self.failure(0.0)
            self._on_lost(Failed(failure.kind, str(failure)))


def part_for(configure: Configure, ranks: int) -> Configure:
    """What one of several ranks may take of what the trainer may."""
    room = configure.ram_bytes_max
    return msgspec.structs.replace(
        configure,
        ranks=ranks,
        threads=max(1, configure.threads // ranks),
        ram_bytes_max=None if room is None else room // ranks,
    )
