from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest

from node.machine.moments import (
    STEPS_MAX,
    check_moments,
    chunk_lengths,
    moments_numel,
    pieces,
    ratio_max,
    steps_of,
)
from protocol import limits
from protocol.errors import MalformedPayload
from protocol.project import InnerSpec
from tests.support.builders import layout

INNER = InnerSpec("adamw", 1e-3, 0.1, 0.9, 0.95, 1.0, 2, 0.05, 0.1, 0)
CUT = layout()
FRAGMENT = CUT.fragments[0]
N = FRAGMENT.numel


def after(gradients):
    """What AdamW keeps of these gradients of one fragment."""
    values = np.zeros(moments_numel(FRAGMENT), np.float32)
    for gradient in gradients:
        values[:N] += np.float32(1 - INNER.beta1) * (gradient - values[:N])
        values[N : 2 * N] *= np.float32(INNER.beta2)
        values[N : 2 * N] += np.float32(1 - INNER.beta2) * gradient * gradient
        values[2 * N :] += 1
    return values


def gradients(steps, *, seed=0, size=1.0):
    """Random ones of this norm, which the project's clipping would leave alone."""
    chance = np.random.default_rng(seed)
    for _ in range(steps):
        values = chance.normal(size=N).astype(np.float32)
        yield values * np.float32(size / np.linalg.norm(values))


def refused(values, inner=INNER):
    with pytest.raises(MalformedPayload) as caught:
        check_moments(FRAGMENT, values, inner)
    return str(caught.value)


@pytest.mark.parametrize("steps", [1, 2, 7, 60])
def test_what_training_leads_to_passes(steps):
    check_moments(FRAGMENT, after(gradients(steps)), INNER)


@pytest.mark.parametrize("size", [1e-12, 1e-22, 0.0])
def test_vanishing_gradients_pass(size):
    constant = np.full(N, size, np.float32)
    check_moments(FRAGMENT, after([constant] * 40), INNER)


def test_the_worst_history_there_is_just_passes():
    share = INNER.beta1 / INNER.beta2
    worst = [np.full(N, share ** (30 - at) / N, np.float32) for at in range(1, 31)]
    values = after(worst)
    check_moments(FRAGMENT, values, INNER)
    values[:N] *= np.float32(1.01)
    assert "too large" in refused(values)


@pytest.mark.parametrize("steps", [1, 5, 1000])
def test_the_bound_is_the_sum_it_stands_for(steps):
    b1, b2 = INNER.beta1, INNER.beta2
    terms = sum((b1 * b1 / b2) ** at for at in range(steps))
    assert ratio_max(INNER, steps) == pytest.approx((1 - b1) ** 2 / (1 - b2) * terms)
    assert math.sqrt(ratio_max(INNER, steps)) < 1.17


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("at", [0, N, -1])
def test_what_is_not_finite_is_refused(bad, at):
    values = after(gradients(5))
    values[at] = bad
    assert "not finite" in refused(values)


def test_negative_second_moments_are_refused():
    values = after(gradients(5))
    values[N + 3] = -1e-12
    assert "negative" in refused(values)


def test_first_moments_without_second_ones_are_refused():
    values = after(gradients(5))
    values[N : 2 * N] = 0.0
    assert "too large for the second" in refused(values)


def test_first_moments_in_the_padding_are_refused_too():
    values = after(gradients(5))
    padding = FRAGMENT.spans[0].numel
    values[padding], values[N + padding] = 1.0, 0.0
    assert "too large for the second" in refused(values)


def test_second_moments_beyond_clipping_are_refused():
    values = after(gradients(5))
    values[N] = 1.01
    assert "clipping" in refused(values)
    wider = msgspec.structs.replace(INNER, grad_norm_max=2.0)
    check_moments(FRAGMENT, values, wider)


@pytest.mark.parametrize("steps", [0.0, -1.0, 1.5, 2.0 * STEPS_MAX])
def test_impossible_step_counters_are_refused(steps):
    values = after(gradients(5))
    values[2 * N] = steps
    assert "steps" in refused(values)


@pytest.mark.parametrize("by", [-1, 1])
def test_another_length_is_refused(by):
    assert "shape" in refused(np.zeros(moments_numel(FRAGMENT) + by, np.float32))


def test_the_largest_counter_is_told():
    arrays = [np.zeros(moments_numel(fragment), np.float32) for fragment in CUT.fragments]
    arrays[1][-1] = 7.0
    assert steps_of(CUT, arrays) == 7


def test_blobs_are_cut_and_named_by_length_alone(monkeypatch):
    monkeypatch.setattr(limits, "MOMENTS_CHUNK_BYTES", 100)
    assert chunk_lengths(250) == [100, 100, 50]
    assert chunk_lengths(0) == []
    content = np.arange(63, dtype=np.float32)
    assert [len(piece) for piece in pieces(content)] == [100, 100, 52]
    assert b"".join(pieces(content)) == content.tobytes()


@pytest.mark.parametrize(("beta1", "beta2", "is_bounded"), [(0.9, 0.95, True), (0.99, 0.95, False)])
def test_not_every_choice_of_betas_bounds_first_moments(beta1, beta2, is_bounded):
    inner = msgspec.structs.replace(INNER, beta1=beta1, beta2=beta2)
    assert inner.bounds_moments == is_bounded


def test_where_moments_come_from_is_no_other_training():
    assert INNER.trains_as(msgspec.structs.replace(INNER, moments="peer"))
    assert not INNER.trains_as(msgspec.structs.replace(INNER, beta1=0.8))
