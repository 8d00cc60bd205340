"""What a trainer's measurement means: a wrecked model is news, a pause is none."""

from __future__ import annotations

import math

from node.machine.jobs import EvaluatedLoss
from node.trainer.link.messages import Evaluated
from node.trainer_client.client import loss_of
from protocol.machine import Failed


def test_a_loss_that_is_no_number_is_told():
    assert loss_of(Evaluated(1, 2.5, 64, 0.1)) == EvaluatedLoss(2.5, 64, 0.1)
    told = loss_of(Evaluated(1, math.nan, 64, 0.1))
    assert isinstance(told, EvaluatedLoss)
    assert math.isnan(told.loss)


def test_one_that_a_pause_cut_short_says_nothing_of_the_model():
    assert isinstance(loss_of(Evaluated(1, math.nan, 64, 0.1, is_cut=True)), Failed)
