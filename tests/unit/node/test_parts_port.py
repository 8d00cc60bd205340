"""What a trainer that goes on from a snapshot has to read: as much as it had, once."""

from __future__ import annotations

import asyncio

import numpy as np

from host.bulk.blob_store import BlobStore
from node.machine import jobs
from node.machine.moments import moments_numel
from node.machine.snapshot_part import PartState
from node.trainer.link.messages import LoopState
from node.trainer_client.client import with_queued
from node.trainer_client.fragment_bank import FragmentBank
from node.trainer_client.parts_port import LoadedPart, PartMeta, PartsPort
from protocol.log.records import Span
from protocol.snapshots.manifest import FileSum
from tests.support.builders import ONE, digest_of, layout, project

LAYOUT = layout()
INNER = project().charter.inner
STATE = LoopState(7, 700, 0.1, False, ((3, 5, 2), (9, 12, 0)), 3, 2, b"random")


class FakeTrainer:
    """Takes up whatever it is given."""

    def __init__(self):
        self.bank = FragmentBank(LAYOUT, BlobStore())
        self.state = None

    async def restore_part(self, values, state):
        self.state = state
        return True


def restored(tmp_path, feed):
    numel = sum(one.numel + moments_numel(one) for one in LAYOUT.fragments)
    part = PartState(digest_of("project"), 1, ONE.key, 5, 0, 9, 4, INNER, ())
    meta = PartMeta(part, STATE, (), FileSum("arrays", 0, 1, b""))
    loaded = LoadedPart(meta, {"trainer": np.zeros(numel, np.float32)}, bytes(32))
    trainer = FakeTrainer()
    port = PartsPort(
        folder=tmp_path,
        project=part.project,
        key=ONE.key,
        trainer=trainer,
        block_sequences=4,
        loaded=loaded,
        feed=feed,
    )
    ready = asyncio.run(port.restore(jobs.TrainerReady("cpu", 2), INNER))
    return trainer.state, ready


def test_a_trainer_on_its_own_text_has_what_it_had(tmp_path):
    state, ready = restored(tmp_path, None)
    assert state == STATE
    assert ready.unread == 5 * 4 - 2


def test_a_trainer_on_published_text_gets_it_by_way_of_the_shards(tmp_path):
    fed = []
    state, ready = restored(tmp_path, fed.append)
    assert state.ranges == ()
    assert (state.position, state.sequence) == (3, 2)
    assert fed == [jobs.Feed((Span(3, 5, 2), Span(9, 12, 0)))]
    assert ready.unread == 5 * 4 - 2


def test_text_that_waits_for_its_shards_is_cut_behind_what_the_trainer_has():
    cut = with_queued(STATE, (Span(20, 21, 3),))
    assert cut.ranges == (*STATE.ranges, (20, 21, 3))
    assert with_queued(STATE, ()) == STATE
