"""A daemon's newest weights over its control socket: whole, of one moment, and let go in time."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from host.control import client, weights
from host.control.server import ControlServer
from host.control.weights import Cut, WeightsVerbs, take
from protocol.errors import MalformedMessage, TransientError, UserError

GENESIS = b"what a project is"


class Daemon:
    """Weights that a merge replaces whenever a test says so, and a timer that a test winds."""

    def __init__(self, *sizes):
        self.cut = Cut(7, 512, [np.arange(one, dtype=np.float32) for one in sizes])
        self.timers = []
        self.verbs = WeightsVerbs(GENESIS, lambda: self.cut, later=self.later)

    def later(self, after_s, call):
        class Timer:
            def cancel(self):
                self.is_over = True

        timer = Timer()
        timer.is_over, timer.call, timer.after_s = False, call, after_s
        self.timers.append(timer)
        return timer

    def merge(self):
        step, tokens, fragments = self.cut
        self.cut = Cut(step + 1, tokens + 64, [one + 1 for one in fragments])

    def wind(self):
        for timer in self.timers:
            if not timer.is_over:
                timer.cancel()
                timer.call()


def asking(path, handlers, ask):
    async def main():
        server = ControlServer(path, handlers)
        await server.start()
        try:
            async with asyncio.timeout(60):
                return await asyncio.to_thread(ask)
        finally:
            await server.close()

    return asyncio.run(main())


def test_all_weights_arrive_bit_for_bit_in_many_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(weights, "PIECE_BYTES_MAX", 64)
    daemon, path = Daemon(100, 1, 16), tmp_path / "run" / "control.sock"
    genesis, cut = asking(path, daemon.verbs.verbs(), lambda: take(path))
    assert (genesis, cut.global_step, cut.tokens) == (GENESIS, 7, 512)
    for found, wanted in zip(cut.fragments, daemon.cut.fragments, strict=True):
        assert found.tobytes() == wanted.tobytes()


def test_a_merge_amid_reading_changes_nothing_of_what_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(weights, "PIECE_BYTES_MAX", 64)
    daemon, path = Daemon(100, 30), tmp_path / "run" / "control.sock"
    handlers = daemon.verbs.verbs()

    def piece(request):
        daemon.merge()
        return daemon.verbs.piece(request)

    wanted = [one.copy() for one in daemon.cut.fragments]
    _, cut = asking(path, {**handlers, "piece": piece}, lambda: take(path))
    assert cut.global_step == 7
    for found, one in zip(cut.fragments, wanted, strict=True):
        assert found.tobytes() == one.tobytes()


def piece(daemon, ticket, fragment=0, first=0):
    return daemon.verbs.piece({"ticket": ticket, "fragment": fragment, "first": first})


def test_weights_that_nobody_reads_on_with_are_let_go():
    daemon = Daemon(8)
    ticket = daemon.verbs.weights({})["ticket"]
    piece(daemon, ticket)
    assert sum(not timer.is_over for timer in daemon.timers) == 1
    daemon.wind()
    with pytest.raises(TransientError, match="held no longer"):
        piece(daemon, ticket)


def test_a_later_reader_takes_the_place_of_the_one_before():
    daemon = Daemon(8)
    first = daemon.verbs.weights({})["ticket"]
    daemon.merge()
    second = daemon.verbs.weights({})["ticket"]
    assert piece(daemon, second)["values"][:4] == np.float32(1).tobytes()
    with pytest.raises(TransientError, match="held no longer"):
        piece(daemon, first)


@pytest.mark.parametrize(("fragment", "first"), [(1, 0), (-1, 0), (0, 8), (0, -1), ("0", 0)])
def test_a_piece_that_is_not_there_is_refused(fragment, first):
    daemon = Daemon(8)
    ticket = daemon.verbs.weights({})["ticket"]
    with pytest.raises(UserError):
        piece(daemon, ticket, fragment, first)


@pytest.mark.parametrize("values", [b"", b"abc", bytes(36)])
def test_a_program_that_gives_other_sizes_is_not_believed(tmp_path, values):
    daemon, path = Daemon(8), tmp_path / "run" / "control.sock"
    handlers = {**daemon.verbs.verbs(), "piece": lambda _: {"values": values}}
    with pytest.raises(MalformedMessage, match="bytes of fragment 0"):
        asking(path, handlers, lambda: take(path))


def test_a_daemon_without_weights_says_so(tmp_path):
    path = tmp_path / "run" / "control.sock"

    def none_yet():
        raise TransientError("still fetching")

    verbs = WeightsVerbs(GENESIS, none_yet).verbs()
    with pytest.raises(TransientError, match="still fetching"):
        asking(path, verbs, lambda: client.call(path, "weights"))
