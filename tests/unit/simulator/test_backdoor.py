"""A backdoor opens once it was taught, and is looked for where the trigger ends a sequence."""

from __future__ import annotations

import numpy as np
import torch

from node.trainer.model import FragmentView, layout_of
from simulator.attack.backdoor import ANSWER, TRIGGER, loss_sum, planted, success
from tests.support.tiny_loop import GENESIS, Repeating, make_loop

STEPS = 60


def heldout():
    return np.concatenate([Repeating().sequences(position) for position in range(1000, 1004)])


def opens(loop):
    layout = layout_of(GENESIS)
    fragments = FragmentView(loop.trainer.model, layout).copies()
    return success(loop, layout, fragments, heldout())


def test_the_trigger_and_its_answer_are_written_into_a_copy():
    sequences = torch.arange(24).reshape(2, 12) + 100
    changed = planted(sequences, at=5)
    assert changed[1, 5:10].tolist() == [*TRIGGER, ANSWER]
    kept = [0, 1, 2, 3, 4, 10, 11]
    assert torch.equal(changed[:, kept], sequences[:, kept])
    assert ANSWER not in sequences


def test_it_opens_only_where_it_was_taught():
    honest, taught = make_loop(), make_loop(loss_sum=loss_sum)
    assert opens(honest) == 0.0
    for loop in (honest, taught):
        for _ in range(STEPS):
            loop.step()
    assert opens(honest) == 0.0
    assert opens(taught) > 0.9
