"""Where a project starts from a published model, nobody follows other first weights."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest

from node.machine.syncer_link import Link
from protocol.log.records import FragmentMerged, SeatTaken, WeightsInitialised
from protocol.project import BaseSpec, BaseTensor, FirstState
from protocol.trace import PeerMisbehaved
from tests.support.builders import (
    FRAGMENTS,
    SYNCER,
    LearnerBench,
    Log,
    facts,
    merged,
    project,
    state_digests,
    weights,
)


def based(first: WeightsInitialised):
    """The tiny project, beginning with these weights."""
    tiny = project()
    tensors = tuple(BaseTensor("BF16", bytes(32)) for _ in tiny.genesis.model.tensors)
    states = tuple(FirstState(one.theta, one.momentum) for one in first.fragments)
    base = BaseSpec("folder:model", tensors, states)
    genesis = msgspec.structs.replace(tiny.genesis, base=base)
    return dataclasses.replace(tiny, genesis=genesis)


OTHER = WeightsInitialised(tuple(state_digests("other", at) for at in range(FRAGMENTS)))


def test_the_named_weights_are_followed_and_merged_fragments_need_not_be_them():
    bench = LearnerBench(tiny=based(weights()))
    log = Log(SeatTaken(SYNCER.key), weights(), merged())
    assert isinstance(merged(), FragmentMerged)
    bench.follow(log)
    assert bench.machine.link is Link.FOLLOWING


@pytest.mark.parametrize("later", [(), (merged(),)])
def test_an_index_of_other_first_weights_is_refused(later):
    bench = LearnerBench(tiny=based(OTHER))
    effects = bench.greet().admit(Log(SeatTaken(SYNCER.key), weights(), *later))
    (said,) = facts(effects, PeerMisbehaved)
    assert "are not those of folder:model" in said.detail
    assert bench.machine.link is Link.WAITING
    assert not bench.machine.context.state.has_weights
