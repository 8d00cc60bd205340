"""Each attack hands in and claims what it says, in bytes that the codec takes."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from protocol.fragments import build_layout
from protocol.log.leases import LeaseBook, TextShape
from protocol.log.records import Span
from protocol.messages import Cursor, Heartbeat, PushHeader
from protocol.numerics.codecs import decode, encode
from protocol.project import TensorSpec
from simulator.attack.attacks import ATTACKS
from simulator.attack.claims import LeasedText
from simulator.attack.forgeries import CLIP_MARGIN
from simulator.attack.labels import loss_of, mirrored, shuffled
from simulator.attack.sight import MERGED_KEPT, Side

CLIP = 3.0
FRAGMENT = build_layout(
    [TensorSpec("large", (3000,), "rda"), TensorSpec("small", (100,), "rda")], "tensor", 1
).fragments[0]
LARGE, SMALL = FRAGMENT.spans
NUMEL = FRAGMENT.numel


def drawn(seed):
    """An honest displacement: a common direction, and noise of the same length."""
    common = np.random.default_rng(99).standard_normal(NUMEL, dtype=np.float32)
    own = np.random.default_rng(seed).standard_normal(NUMEL, dtype=np.float32)
    values = common + own
    for span in FRAGMENT.spans:
        values[span.offset + span.numel : span.offset + span.padded] = 0.0
    return values


def sight(*, attackers=1, merged=2, pushes=0, me=0):
    side = Side()
    for attacker in range(attackers):
        side.learn(0, attacker, drawn(attacker))
    for version in range(merged):
        side.hear(0, version + 1, drawn(100 + version))
    return side.sight(FRAGMENT, me, pushes=pushes, clip_to_median=CLIP)


def forged(name, seen, seed=7):
    return ATTACKS[name].forge(seen, np.random.default_rng(seed))


def length(values):
    return float(np.linalg.norm(values.astype(np.float64)))


def cosine(one, other):
    return float(one.astype(np.float64) @ other) / (length(one) * length(other))


@pytest.mark.parametrize("name", ATTACKS)
@pytest.mark.parametrize(("attackers", "merged"), [(1, 0), (1, 3), (4, 3)])
def test_every_push_is_one_that_the_codec_takes(name, attackers, merged):
    for pushes in (0, 25, 80):
        seen = sight(attackers=attackers, merged=merged, pushes=pushes)
        values = forged(name, seen)
        assert values.dtype == np.float32
        back = decode("int4", encode("int4", values), NUMEL)
        assert length(back - values) < 0.2 * length(values)


@pytest.mark.parametrize("name", ATTACKS)
def test_who_learned_nothing_hands_in_no_nonsense(name):
    side = Side()
    side.learn(0, 0, np.zeros(NUMEL, np.float32))
    seen = side.sight(FRAGMENT, 0, pushes=30, clip_to_median=CLIP)
    assert np.isfinite(forged(name, seen)).all()


@pytest.mark.parametrize(
    ("name", "times", "points"),
    [
        ("flip-1", 1.0, -1.0),
        ("flip-10", 10.0, -1.0),
        ("flip-100", 100.0, -1.0),
        ("noise-1", 1.0, 0.0),
        ("noise-10", 10.0, 0.0),
        ("edge", CLIP_MARGIN * CLIP, 0.55),
        ("copy", None, 0.5),
        ("same", None, 0.0),
        ("alike", None, 0.0),
        ("shuffled", 1.0, 1.0),
        ("steps", 1.0, 1.0),
    ],
)
def test_how_long_it_is_and_where_it_points(name, times, points):
    seen = sight()
    values = forged(name, seen)
    reference = length(seen.honest) if times else length(seen.merged[-1])
    assert length(values) == pytest.approx((times or 1.0) * reference, rel=0.01)
    assert cosine(values, seen.honest) == pytest.approx(points, abs=0.06)


def test_inner_product_manipulation_is_of_the_whole_side():
    seen = sight(attackers=3)
    mean = np.mean(seen.side, axis=0)
    values = forged("ipm", seen)
    assert cosine(values, mean) == pytest.approx(-1.0)
    assert length(values) == pytest.approx(0.1 * length(mean), rel=1e-5)


def test_a_little_is_enough_moves_each_element_by_its_own_deviation():
    seen = sight(attackers=4)
    mean, spread = np.mean(seen.side, axis=0), np.std(seen.side, axis=0)
    np.testing.assert_allclose(forged("alie", seen), mean - 1.5 * spread, atol=1e-5)
    alone = sight(attackers=1, merged=3)
    known = (alone.honest, *alone.merged)
    expected = np.mean(known, axis=0) - 1.5 * np.std(known, axis=0)
    np.testing.assert_allclose(forged("alie", alone), expected, atol=1e-5)


def test_min_max_is_as_far_off_as_honest_pushes_are_from_each_other():
    seen = sight(attackers=4)
    widest = max(length(one - other) for one in seen.side for other in seen.side)
    values = forged("min-max", seen)
    assert max(length(values - one) for one in seen.side) == pytest.approx(widest, rel=1e-4)
    mean = np.mean(seen.side, axis=0)
    assert cosine(values - mean, mean) == pytest.approx(-1.0, abs=1e-4)


def test_one_tensor_takes_all_the_room_that_the_clip_of_a_push_leaves():
    seen = sight()
    values = forged("tensor", seen)
    assert length(values) == pytest.approx(CLIP_MARGIN * CLIP * length(seen.honest), rel=1e-4)
    place = slice(SMALL.offset, SMALL.offset + SMALL.padded)
    assert cosine(values[place], seen.honest[place]) == pytest.approx(-1.0, abs=1e-5)
    np.testing.assert_array_equal(values[: SMALL.offset], seen.honest[: SMALL.offset])


def test_a_spike_is_in_one_place():
    seen = sight()
    values = forged("spike", seen)
    assert np.count_nonzero(values != seen.honest) == 64
    assert length(values - seen.honest) == pytest.approx(10 * length(seen.honest), rel=0.02)


def test_those_who_collude_hand_in_the_same_bytes_or_nearly():
    payloads = [bytes(encode("int4", forged("same", sight(attackers=2, me=me)))) for me in (0, 1)]
    assert payloads[0] == payloads[1]
    one, other = (forged("alike", sight(attackers=2, me=me), seed=me) for me in (0, 1))
    assert cosine(one, other) == pytest.approx(0.8, abs=0.03)
    assert cosine(forged("same", sight()), one) == pytest.approx(math.sqrt(0.8), abs=0.03)


@pytest.mark.parametrize(("pushes", "points"), [(0, 1.0), (19, 1.0), (20, -1.0)])
def test_one_that_turns_is_honest_before(pushes, points):
    seen = sight(pushes=pushes)
    assert cosine(forged("turn", seen), seen.honest) == pytest.approx(points)


@pytest.mark.parametrize(("pushes", "points"), [(0, 1.0), (20, 0.0), (40, -1.0), (90, -1.0)])
def test_one_that_drifts_turns_slowly(pushes, points):
    seen = sight(pushes=pushes)
    values = forged("drift", seen)
    assert cosine(values, seen.honest) == pytest.approx(points, abs=0.06)
    assert length(values) == pytest.approx(length(seen.honest), rel=0.05)


def test_a_side_remembers_so_many_merges_and_each_once():
    side = Side()
    for version in (1, 1, 2, 3, 4, 5, 5):
        side.hear(0, version, drawn(version))
    side.learn(0, 0, drawn(0))
    side.learn(1, 0, drawn(1))
    seen = side.sight(FRAGMENT, 0, pushes=0, clip_to_median=CLIP)
    assert len(seen.merged) == MERGED_KEPT
    np.testing.assert_array_equal(seen.merged[-1], drawn(5))
    assert len(seen.side) == 1


HEADER = PushHeader(bytes(32), 1, 1, 1, 0, 0, "int4", bytes(32), 10, 8, 1024, 16, Cursor(0, 0))
BEAT = Heartbeat("training", "cpu", 16, 2048, 0.5, 3.0, (8, 4), (1, 1), Cursor(0, 0), 8.0, 9.0)


def leased_text(blocks):
    """So many blocks of 4 sequences of 16 tokens, of which 8 make a step."""
    book, session = LeaseBook(), (bytes(32), 1)
    book.lease(session, (Span(0, blocks, 0),) if blocks else (), 0.0, 4)
    return LeasedText(book, TextShape(16, 4), session, 8)


def test_who_claims_all_text_claims_no_more_than_is_covered():
    said = ATTACKS["text"].claims.header(HEADER, leased_text(101))
    assert (said.steps, said.tokens, said.cursor) == (50, 50 * 128, Cursor(100, 4))
    assert said.steps <= said.local_step
    assert ATTACKS["text"].claims.header(HEADER, leased_text(0)) == HEADER


@pytest.mark.parametrize(
    ("name", "steps", "tokens", "local_step"),
    [("flip-1", 8, 1024, 16), ("tokens", 8, 10_240, 16), ("steps", 400, 51_200, 800)],
)
def test_what_a_push_claims(name, steps, tokens, local_step):
    said = ATTACKS[name].claims.header(HEADER, leased_text(0))
    assert (said.steps, said.tokens, said.local_step) == (steps, tokens, local_step)
    assert (said.digest, said.payload_bytes, said.cursor) == (
        HEADER.digest,
        HEADER.payload_bytes,
        HEADER.cursor,
    )


def test_what_a_heartbeat_claims():
    said = ATTACKS["speed"].claims.heartbeat(BEAT)
    assert (said.local_step, said.step_s, said.steps) == (800, 0.01, (400, 200))
    assert ATTACKS["flip-1"].claims.heartbeat(BEAT) == BEAT


class Uniform(torch.nn.Module):
    """Knows nothing, but that token 2 follows every token."""

    def forward(self, input_ids, use_cache):
        logits = torch.zeros(*input_ids.shape, 5)
        logits[..., 2] = 4.0
        return type("Out", (), {"logits": logits})


def test_wrong_labels_are_what_the_loss_is_of():
    assert loss_of("true", 1) is None
    targets = torch.tensor([0, 1, 4, 4])
    assert mirrored(targets, 5).tolist() == [4, 3, 0, 0]
    moved = shuffled(3)(torch.arange(100), 100)
    assert sorted(moved.tolist()) == list(range(100))
    assert moved.tolist() != list(range(100))
    # Mirrored, 2 stays 2 and 4 becomes 0: the model is right about the one only.
    loss_sum = loss_of("mirrored", 1)
    right, wrong = torch.full((2, 5), 2), torch.full((2, 5), 4)
    assert float(loss_sum(Uniform(), right)) < float(loss_sum(Uniform(), wrong))


def test_every_attack_says_in_one_line_what_it_does():
    for attack in ATTACKS.values():
        assert attack.about
        assert len(attack.about) < 90
        assert "\n" not in attack.about
