from __future__ import annotations

import numpy as np
import pytest

from host.bulk.blob_store import BlobStore
from node.trainer_client.fragment_bank import FragmentBank
from protocol import limits
from protocol.errors import CorruptState, MalformedPayload
from protocol.numerics.chunks import blobs, manifest, root
from protocol.numerics.codecs import NonFinite, decode, encode
from protocol.numerics.outer import digest
from protocol.numerics.versions import next_version, state_manifests
from simulator.stand_ins.tiny import tiny_weights
from tests.support import array_places
from tests.support.builders import layout, merged, project, rounds

LAYOUT = layout()
NUMEL = LAYOUT.fragments[0].numel
OUTER = project().charter.outer


@pytest.fixture(params=array_places.PLACES, autouse=True)
def place(request, tmp_path, monkeypatch):
    return array_places.use(request.param, tmp_path / "weights", monkeypatch)


def new_bank():
    return FragmentBank(LAYOUT, BlobStore(), array_places.Place.keep)


def a_bank(apply="overwrite", up_codec="int4", **changes):
    bank = new_bank()
    bank.charter = project(rounds(apply=apply, up_codec=up_codec, **changes)).charter
    for fragment in LAYOUT.fragments:
        theta = tiny_weights(fragment.numel, fragment.index)
        momentum = np.zeros_like(theta)
        bank.install(fragment.index, 0, state_manifests(theta, momentum).digests, theta, momentum)
    return bank


@pytest.fixture
def bank():
    return a_bank()


def next_of(bank, seed=1, fragment=0):
    """A merge record and payload for the version after the held one."""
    held = bank._held[fragment]
    values = np.random.default_rng(seed).normal(size=held.theta.size).astype(np.float32)
    payload = encode("int4", values)
    _, _, manifests = next_version(
        held.theta,
        held.momentum,
        payload,
        codec="int4",
        learning_rate=OUTER.learning_rate,
        momentum_coefficient=OUTER.momentum,
    )
    return merged(
        fragment=fragment,
        version=held.version + 1,
        payload=digest(payload),
        payload_bytes=len(payload),
        state=manifests.digests,
        learning_rate=OUTER.learning_rate,
        momentum=OUTER.momentum,
    ), payload


def moved(bank, seed=9, fragment=0):
    """A local value some way off the anchor."""
    theta = bank.theta(fragment)
    return theta - np.random.default_rng(seed).normal(size=theta.size).astype(np.float32)


def assign(bank, fragment=0):
    return bank.deliver(fragment, is_assign=True, merged_sequence=None)


# Versions


def test_nothing_is_held_at_first():
    bank = new_bank()
    assert bank.version(0) == -1
    with pytest.raises(CorruptState, match="not held"):
        bank.theta(0)
    with pytest.raises(CorruptState):
        assign(bank)


def test_a_fetched_state_is_held_only_if_it_is_the_certified_one():
    bank = new_bank()
    theta = tiny_weights(NUMEL, 0)
    state = state_manifests(theta, np.zeros_like(theta)).digests
    with pytest.raises(MalformedPayload, match="certified content"):
        bank.install(0, 0, state, theta + 1, np.zeros_like(theta))
    with pytest.raises(MalformedPayload, match="elements"):
        bank.install(0, 0, state, theta[:128], np.zeros(128, np.float32))
    assert bank.version(0) == -1
    bank.install(0, 0, state, theta, np.zeros_like(theta))
    assert bank.version(0) == 0


def test_the_certified_payload_advances_by_one_version_and_is_offered(bank):
    former = bank._held[0].state
    record, payload = next_of(bank)
    bank.advance(record, payload)
    assert bank.version(0) == 1
    assert root(manifest(bank.theta(0))) == record.state.theta
    assert bytes(bank.blob_store.get(record.payload)) == payload
    assert bank.blob_store.get(record.state.theta) is not None
    assert bank.blob_store.get(former.theta) is None


def test_a_version_that_somebody_downloads_outlives_its_successor(bank):
    former = bank._held[0]
    wanted = {name for name, _ in blobs(manifest(former.theta), former.theta)}
    assert bank.blob_store.get(former.state.theta) is not None
    record, payload = next_of(bank)
    bank.advance(record, payload)
    assert all(bank.blob_store.get(name) is not None for name in wanted)
    assert bank.version(0) == 1


def test_a_wrong_payload_is_corrupt_and_changes_nothing(bank):
    record, _ = next_of(bank)
    _, other = next_of(bank, seed=2)
    before = bank.theta(0)
    with pytest.raises(CorruptState, match="differently than certified"):
        bank.advance(record, other)
    assert bank.version(0) == 0
    assert bank.theta(0) is before
    assert bank.blob_store.get(digest(other)) is None


def test_a_version_cannot_be_skipped_or_repeated(bank):
    record, payload = next_of(bank)
    bank.advance(record, payload)
    with pytest.raises(CorruptState, match="not at version 0"):
        bank.advance(record, payload)


def test_only_the_newest_payloads_are_offered(bank):
    names = []
    for seed in range(limits.PAYLOAD_RING + 2):
        record, payload = next_of(bank, seed)
        bank.advance(record, payload)
        names.append(record.payload)
    offered = [bank.blob_store.get(name) is not None for name in names]
    assert offered == [False] * 2 + [True] * limits.PAYLOAD_RING


# Pushes


def test_a_push_says_how_far_the_local_value_is_from_its_anchor(bank):
    assign(bank)
    local = moved(bank)
    push = bank.push(0, 1, local)
    decoded = decode("int4", bytes(bank.blob_store.get(push.digest)), NUMEL)
    assert (push.base_version, push.payload_bytes) == (0, len(bank.blob_store.get(push.digest)))
    np.testing.assert_allclose(decoded, bank.theta(0) - local, atol=0.4)


def test_the_anchor_of_a_push_is_what_was_delivered_not_what_is_newest(bank):
    assign(bank)
    anchor = bank.theta(0)
    record, payload = next_of(bank)
    bank.advance(record, payload)
    push = bank.push(0, 1, anchor)
    assert push.base_version == 0
    assert not decode("int4", bytes(bank.blob_store.get(push.digest)), NUMEL).any()


def test_a_local_value_that_is_not_finite_is_not_pushed(bank):
    assign(bank)
    local = moved(bank)
    local[3] = np.nan
    with pytest.raises(NonFinite):
        bank.push(0, 1, local)


@pytest.mark.parametrize("is_merged", [True, False])
def test_error_feedback_carries_on_only_after_the_push_was_merged(bank, is_merged):
    assign(bank)
    local = moved(bank)
    first = bank.push(0, 1, local)
    bank.settle(0, 1, is_merged=is_merged)
    again = bank.push(0, 2, local)
    assert (again.digest != first.digest) is is_merged


def test_error_feedback_of_void_weights_is_dropped(bank):
    assign(bank)
    local = moved(bank)
    first = bank.push(0, 1, local)
    bank.settle(0, 1, is_merged=True)
    bank.drop_error_feedback()
    assert bank.push(0, 2, local).digest == first.digest


def test_error_feedback_makes_two_pushes_say_more_than_one_repeated(bank):
    assign(bank)
    local = moved(bank)
    wanted = bank.theta(0) - local
    said = np.zeros_like(wanted)
    for sequence in range(1, 33):
        push = bank.push(0, sequence, local)
        said += decode("int4", bytes(bank.blob_store.get(push.digest)), NUMEL)
        bank.settle(0, sequence, is_merged=True)
    single = decode("int4", encode("int4", wanted), NUMEL)
    assert np.abs(said / 32 - wanted).max() < np.abs(single - wanted).max() / 4


def test_a_settled_push_is_no_longer_offered_and_settling_twice_is_harmless(bank):
    assign(bank)
    push = bank.push(0, 1, moved(bank))
    for is_merged in (True, True, False):
        bank.settle(0, 1, is_merged=is_merged)
    assert bank.blob_store.get(push.digest) is None
    bank.settle(0, 99, is_merged=True)


def test_a_dropped_push_settled_again_as_merged_stays_dropped(bank):
    assign(bank)
    local = moved(bank)
    first = bank.push(0, 1, local)
    bank.settle(0, 1, is_merged=False)
    bank.settle(0, 1, is_merged=True)
    assert bank.push(0, 2, local).digest == first.digest


# Deliveries


def test_overwriting_hands_over_the_held_value(bank):
    delivery = assign(bank)
    assert (delivery.version, delivery.is_assign) == (0, True)
    np.testing.assert_array_equal(delivery.values, bank.theta(0))


@pytest.mark.parametrize("up_codec", ["int4", "int8", "bf16", "f32"])
@pytest.mark.parametrize("is_merged", [True, False])
def test_a_rebase_keeps_the_displacement_but_for_what_was_merged(up_codec, is_merged):
    bank = a_bank("rebase", up_codec)
    assign(bank)
    local = moved(bank)
    push = bank.push(0, 1, local)
    said = decode(up_codec, bytes(bank.blob_store.get(push.digest)), NUMEL)
    local = local - np.float32(0.25)  # Local steps go on while the push is under way.
    before = bank.theta(0) - local
    bank.settle(0, 1, is_merged=is_merged)
    record, payload = next_of(bank)
    bank.advance(record, payload)
    delivery = bank.deliver(0, is_assign=False, merged_sequence=1 if is_merged else None)
    assert (delivery.version, delivery.is_assign) == (1, False)
    after = bank.theta(0) - (local + delivery.values)
    expected = before - said if is_merged else before
    np.testing.assert_allclose(after, expected, rtol=0, atol=3e-6)


def test_a_merged_push_is_given_back_once(bank):
    bank = a_bank("rebase")
    assign(bank)
    bank.push(0, 1, moved(bank))
    bank.settle(0, 1, is_merged=True)
    first = bank.deliver(0, is_assign=False, merged_sequence=1)
    again = bank.deliver(0, is_assign=False, merged_sequence=1)
    assert first.values.any()
    assert not again.values.any()


def test_after_a_lost_trainer_even_a_rebase_assigns():
    bank = a_bank("rebase")
    assign(bank)
    bank.trainer_lost()
    delivery = bank.deliver(0, is_assign=False, merged_sequence=None)
    assert delivery.is_assign
    np.testing.assert_array_equal(delivery.values, bank.theta(0))


def test_a_rebase_over_several_versions_moves_by_all_of_them():
    bank = a_bank("rebase")
    assign(bank)
    start = bank.theta(0)
    for seed in (1, 2, 3):
        bank.advance(*next_of(bank, seed))
    delivery = bank.deliver(0, is_assign=False, merged_sequence=None)
    assert delivery.version == 3
    np.testing.assert_array_equal(delivery.values, bank.theta(0) - start)


# Blending


def blended(local, delivery):
    kept = np.float32(delivery.kept_frac)
    return kept * local + (1 - kept) * delivery.values


@pytest.mark.parametrize("is_merged", [True, False])
def test_a_blend_leaves_the_share_alpha_of_the_displacement_and_no_counter(is_merged):
    bank = a_bank("blend", alpha=0.25)
    assign(bank)
    local = moved(bank)
    bank.push(0, 1, local)
    bank.settle(0, 1, is_merged=is_merged)
    bank.advance(*next_of(bank))
    delivery = bank.deliver(
        0, is_assign=True, merged_sequence=1 if is_merged else None, kept_frac=0.25
    )
    assert (delivery.version, delivery.is_assign, delivery.kept_frac) == (1, True, 0.25)
    after = blended(local, delivery)
    np.testing.assert_allclose(
        bank.theta(0) - after, 0.25 * (bank.theta(0) - local), rtol=0, atol=1e-6
    )
    push = bank.push(0, 2, after)
    assert push.base_version == 1


def test_a_blend_feeds_back_what_it_took_away_of_the_quantisation_error(bank):
    blending = a_bank("blend", alpha=0.25)
    for each in (bank, blending):
        assign(each)
        each.push(0, 1, moved(each))
        each.settle(0, 1, is_merged=True)
    np.testing.assert_allclose(blending._residual[0], 0.75 * bank._residual[0], rtol=1e-6)


def test_a_blend_that_keeps_nothing_is_an_overwrite_bit_for_bit(bank):
    blending = a_bank("blend", alpha=0.0)
    digests = []
    for each in (bank, blending):
        assign(each)
        for sequence in (1, 2, 3):
            digests.append(each.push(0, sequence, moved(each, sequence)).digest)
            each.settle(0, sequence, is_merged=True)
            each.advance(*next_of(each, sequence))
            each.deliver(0, is_assign=True, merged_sequence=None, kept_frac=0.0)
    assert digests[:3] == digests[3:]


def test_after_a_lost_trainer_even_a_blend_keeps_nothing():
    bank = a_bank("blend", alpha=0.25)
    assign(bank)
    bank.trainer_lost()
    delivery = bank.deliver(0, is_assign=True, merged_sequence=None, kept_frac=0.25)
    assert delivery.kept_frac == 0.0


# Checkpoints


def test_frozen_values_stay_while_newer_versions_come(bank):
    kept = bank.theta(0).copy()
    for fragment in range(4):
        bank.freeze(7, fragment)
    bank.advance(*next_of(bank))
    np.testing.assert_array_equal(bank.frozen(7)[0], kept)
    bank.thaw(7)
    with pytest.raises(CorruptState, match="not completely frozen"):
        bank.frozen(7)


def test_a_checkpoint_that_is_not_completely_frozen_is_not_evaluated(bank):
    bank.freeze(7, 0)
    with pytest.raises(CorruptState):
        bank.frozen(7)
