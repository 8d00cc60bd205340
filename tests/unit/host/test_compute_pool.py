"""Pieces of work on real threads: all done once, in the order asked for, and failures told."""

from __future__ import annotations

import os
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pytest

from host.runtime import compute_pool
from host.runtime.compute_pool import Cores
from protocol.errors import MalformedPayload
from protocol.fragments import BLOCK, Fragment, TensorSpan
from protocol.numerics import buffers, codecs, outer, versions
from protocol.numerics.codecs import NonFinite
from protocol.numerics.merge import Contribution, merge_fragment, norm
from protocol.numerics.workers import ALONE, PIECE, pieces
from tests.support.choices import spread

SIZE = 3 * PIECE + 5 * BLOCK
CODECS = ["f32", "bf16", "int8", "int4", "int2", "int1"]


@pytest.fixture
def four():
    made = Cores(4)
    yield made
    made.close()


class Shuffled:
    """Workers that take the pieces in any order."""

    def __init__(self, seed):
        self.rng = random.Random(seed)

    def map(self, work, pieces):
        order = list(range(len(pieces)))
        self.rng.shuffle(order)
        done = {at: work(pieces[at]) for at in order}
        return [done[at] for at in range(len(pieces))]


def draw(seed, size=SIZE):
    return np.random.default_rng(seed).standard_normal(size, dtype=np.float32)


def test_every_piece_is_done_once_and_answers_in_its_place(four):
    done = []

    def work(piece):
        done.append(piece)
        return piece * piece

    assert four.map(work, range(1000)) == [at * at for at in range(1000)]
    assert sorted(done) == list(range(1000))


def test_more_than_one_thread_works_and_the_caller_is_one_of_them(four):
    meeting = threading.Barrier(4, timeout=60)

    def work(_):
        meeting.wait()
        return threading.get_ident()

    assert threading.get_ident() in set(four.map(work, range(4)))


def test_several_callers_share_the_threads(four):
    with ThreadPoolExecutor(3) as callers:
        results = list(callers.map(lambda by: four.map(lambda at: by * at, range(50)), range(3)))
    assert results == [[by * at for at in range(50)] for by in range(3)]


def test_a_caller_does_not_wait_for_a_busy_pool():
    pair = Cores(2)
    free, begun = threading.Event(), threading.Event()

    def hold(at):
        if threading.current_thread().name.startswith("core"):
            begun.set()
            free.wait(60)
        else:
            begun.wait(60)
        return at

    with ThreadPoolExecutor(1) as other:
        busy = other.submit(pair.map, hold, range(2))
        begun.wait(60)
        assert pair.map(lambda at: at + 1, range(5)) == [1, 2, 3, 4, 5]
        free.set()
        assert busy.result(10) == [0, 1]
    pair.close()


def test_what_a_piece_raises_is_raised(four):
    def work(at):
        if at >= 3:
            raise ValueError(at)
        return at

    with pytest.raises(ValueError, match=r"[3-6]"):
        four.map(work, range(7))
    assert four.map(lambda at: at, range(9)) == list(range(9)), "the threads are still there"


@pytest.mark.skipif(not hasattr(os, "setpriority"), reason="this system has no niceness")
def test_the_threads_stand_behind_the_caller_and_it_stays_where_it_is(four):
    meeting = threading.Barrier(4, timeout=60)

    def work(_):
        meeting.wait()
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    mine = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    found = sorted(four.map(work, range(4)))
    assert found == [mine, *[min(mine + compute_pool.NICE, 19)] * 3]


def test_pieces_cover_everything_on_borders_of_blocks():
    found = pieces(SIZE, 7 * BLOCK)
    assert found[0][0] == 7 * BLOCK
    assert found[-1][1] == 7 * BLOCK + SIZE
    assert all(stop == start for (_, stop), (start, _) in pairwise(found))
    assert all(stop % BLOCK == 0 for _, stop in found)


def everything(codec, workers):
    """What encoding, decoding, merging and stepping make of the same input."""
    values, residual, base = draw(1), draw(2) * np.float32(0.1), draw(3)
    payload = codecs.encode(codec, values, workers=workers)
    told, left = outer.encode_with_feedback(codec, values, residual, minus=base, workers=workers)
    first = 2 * PIECE + 130
    spans = (
        TensorSpan("radial", (first,), first + 126, "rda", 0),
        TensorSpan("mean", (SIZE - first - 126,), SIZE - first - 126, "mean", first + 126),
    )
    parts = [
        Contribution((bytes(32), 0, at), codecs.encode(codec, draw(10 + at)), codec, 1.0 + at)
        for at in range(9)
    ]
    merged = merge_fragment(parts, Fragment(0, spans, SIZE), 1.5, workers=workers)
    alone = merge_fragment(parts[:1], Fragment(0, spans, SIZE), 1.5, workers=workers)
    rates = {"learning_rate": 0.7, "momentum_coefficient": 0.9}
    stepped = versions.next_version(values, base, payload, codec=codec, workers=workers, **rates)
    plain = outer.outer_step(values, base, residual, workers=workers, **rates)
    return [
        bytes(payload),
        codecs.decode(codec, payload, SIZE, workers=workers).tobytes(),
        bytes(told),
        left.tobytes(),
        merged.values.tobytes(),
        merged.norms,
        merged.scales,
        alone.values.tobytes(),
        *(array.tobytes() for array in (*stepped[:2], *plain)),
        stepped[2],
        norm(values, workers=workers),
    ]


@pytest.mark.parametrize("codec", spread(2, CODECS))
def test_the_same_bits_come_out_whoever_works_and_in_whatever_order(codec, four):
    expected = everything(codec, ALONE)
    for workers in (four, Shuffled(1), Shuffled(2)):
        for mine, others in zip(everything(codec, workers), expected, strict=True):
            assert mine == others


@pytest.mark.parametrize("codec", ["int8", "int4"])
def test_the_same_bits_are_written_past_the_caches(codec, four, monkeypatch):
    monkeypatch.setattr(buffers, "STREAMED_MIN", 1 << 40)
    expected = everything(codec, ALONE)
    monkeypatch.setattr(buffers, "STREAMED_MIN", 1)
    assert buffers.is_streamed(buffers.empty(SIZE))
    for workers in (ALONE, four):
        for mine, others in zip(everything(codec, workers), expected, strict=True):
            assert mine == others


def test_trouble_in_one_piece_is_trouble(four):
    values = draw(1)
    values[PIECE + 3] = np.nan
    with pytest.raises(NonFinite):
        codecs.encode("int4", values, workers=four)
    with pytest.raises(NonFinite):
        outer.encode_with_feedback("int4", draw(2), values, workers=four)
    payload = bytearray(codecs.encode("int4", draw(1)))
    payload[-1] = 0xFF
    with pytest.raises(MalformedPayload):
        codecs.decode("int4", payload, SIZE, workers=four)
