"""What a trainer that goes on from a snapshot has to read: as much as it had, once."""

from __future__ import annotations

from node.trainer.link.messages import LoopState
from node.trainer_client.client import with_queued
from protocol.log.records import Span

STATE = LoopState(7, 700, 0.1, False, ((3, 5, 2),), 3, 2, b"random")


def test_text_that_waits_for_its_shards_is_cut_behind_what_the_trainer_has():
    cut = with_queued(STATE, (Span(9, 12, 0), Span(20, 21, 3)))
    assert cut.ranges == ((3, 5, 2), (9, 12, 0), (20, 21, 3))
    assert with_queued(STATE, ()) == STATE
