"""A real trainer process measures a push that another learner made, and trains on meanwhile."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
import uvloop

from node.machine.jobs import Capture, Captured, NotProbed, ProbePush, PushProbed, Starved
from node.trainer.builtin import builtin_loop
from node.trainer.gain import Change, measure_gain
from node.trainer.loop import make_accelerator
from node.trainer.model import build_model, layout_of
from node.trainer.text.corpus import open_corpus
from node.trainer.text.reader import BlockReader, read_places
from node.trainer_client.probe_port import ProbePort
from protocol.errors import NotHeld
from protocol.messages import SequencePlace
from protocol.numerics.codecs import decode, encode
from protocol.numerics.outer import digest
from tests.support.builders import SYNCER
from tests.support.tiny_project import BLOCK_SEQUENCES, INNER, tiny_genesis
from tests.support.trainer_bench import bench

pytestmark = pytest.mark.net

FRAGMENT = 1


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("probing")


@pytest.fixture(scope="module")
def genesis(folder):
    return tiny_genesis(folder)


class Shelf:
    """What the leader holds."""

    def __init__(self):
        self.blobs = {}

    async def fetch_from(self, sources, wanted, on_fault):
        ((name, _),) = wanted
        if name not in self.blobs:
            raise NotHeld("gone")
        return sources[0], [memoryview(self.blobs[name])]


def places(first, last):
    return tuple(
        SequencePlace(at, number) for at in range(first, last) for number in range(BLOCK_SEQUENCES)
    )


def probe(payload):
    own, other = places(0, 2), places(20, 22)
    return ProbePush(SYNCER.key, FRAGMENT, "int4", digest(payload), len(payload), own, other)


def measured_here(genesis, folder, weights, displacement, job):
    """The same in this process."""
    layout = layout_of(genesis)
    corpus = open_corpus(genesis.data, seed=genesis.seed, cache=folder / "cache")
    loop = builtin_loop(
        build_model(genesis.model, seed=genesis.seed),
        BlockReader(corpus, block_sequences=BLOCK_SEQUENCES),
        INNER,
        accelerator=make_accelerator("cpu"),
        micro_batch=2,
    )
    texts = [
        read_places(corpus, [(place.position, place.sequence) for place in text])
        for text in (job.own, job.other)
    ]
    change = Change(FRAGMENT, weights[FRAGMENT] - displacement)
    return measure_gain(loop, layout, np.concatenate(weights), change, tuple(texts), lambda _: None)


def test_a_push_is_measured_by_a_process_that_trains(genesis, folder):
    async def run():
        async with bench(genesis, folder) as one:
            await one.begin()
            await one.until(lambda: len(one.steps) >= 6)
            captured = await one.port.capture(Capture(FRAGMENT, 1))
            assert isinstance(captured, Captured)
            shelf = Shelf()
            payload = bytes(one.bank.blob_store.get(captured.digest))
            shelf.blobs[captured.digest] = payload
            prober = ProbePort(shelf, one.port, lambda peer, error: pytest.fail(str(error)))
            told, again = await asyncio.gather(
                prober.run_job(probe(payload)), one.port.capture(Capture(FRAGMENT, 2))
            )
            assert isinstance(again, Captured)
            assert isinstance(told, PushProbed)
            nothing = bytes(encode("int4", np.zeros_like(one.bank.theta(FRAGMENT))))
            shelf.blobs[digest(nothing)] = nothing
            none = await prober.run_job(probe(nothing))
            assert (none.own.mean, none.own.deviation, none.other.mean) == (0.0, 0.0, 0.0)
            gone = await prober.run_job(probe(b"gone" * (len(payload) // 4)))
            assert isinstance(gone, NotProbed)
            assert gone.trouble == "no payload"
            await one.until(lambda: Starved() in one.notes)
            assert one.steps == list(range(1, len(one.steps) + 1))
            return told, payload, [one.bank.theta(at) for at in range(genesis.fragments)]

    told, payload, weights = uvloop.run(run())
    displacement = decode("int4", payload, weights[FRAGMENT].size)
    own, other = measured_here(genesis, folder, weights, displacement, probe(payload))
    for seen, expected in ((told.own, own), (told.other, other)):
        assert seen.loss == pytest.approx(expected.loss, rel=1e-5)
        assert seen.mean == pytest.approx(expected.mean, abs=1e-5)
        assert seen.sequences == expected.sequences == 2 * BLOCK_SEQUENCES
    assert told.own.mean > 0.0
