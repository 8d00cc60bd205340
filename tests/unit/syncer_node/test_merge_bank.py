from __future__ import annotations

import dataclasses
import mmap

import msgspec
import numpy as np
import pytest

from host.bulk.blob_store import BlobStore
from protocol import limits
from protocol.errors import CorruptState, MalformedPayload
from protocol.log.records import FragmentMerged
from protocol.merge_rules import MERGES_COMPARED, MergeRules
from protocol.numerics.codecs import decode, encode, payload_bytes
from protocol.numerics.outer import digest
from simulator.stand_ins.tiny import tiny_weights
from syncer_node.machine.jobs import Against, Merge, Merged, MergePart
from syncer_node.storage.merge_bank import MergeBank
from tests.support import array_places
from tests.support.builders import ONE, TWO, contribution, layout, project, push_header

LAYOUT = layout()
OUTER = project().charter.outer


@pytest.fixture(params=array_places.PLACES, autouse=True)
def place(request, tmp_path, monkeypatch):
    return array_places.use(request.param, tmp_path / "weights", monkeypatch)


def a_bank():
    bank = MergeBank(LAYOUT, project().charter, BlobStore(), keep=array_places.Place.keep)
    for fragment in LAYOUT.fragments:
        theta = tiny_weights(fragment.numel, fragment.index)
        bank.initialise(fragment.index, 0, theta, np.zeros_like(theta))
    return bank


@pytest.fixture
def bank():
    return a_bank()


def merge(bank, number, *, fragment=0, learners=(ONE, TWO), outer=OUTER):
    """Pushes of these learners, merged into version `number`; what a record would say."""
    parts = []
    for at, learner in enumerate(learners):
        draw = np.random.default_rng([number, at])
        values = draw.normal(size=LAYOUT.fragments[fragment].numel).astype(np.float32)
        payload = encode("int4", values)
        header = push_header(sequence=number, fragment=fragment, digest=digest(payload))
        parts.append(MergePart(learner.key, header, 1.0 + at))
        bank.keep_push(parts[-1].push, fragment, payload, "int4")
    outcome = bank.merge(Merge(number, fragment, number, "int4", outer, tuple(parts)))
    return outcome, FragmentMerged(
        round=number,
        global_step=number,
        fragment=fragment,
        version=number,
        payload=outcome.payload_digest,
        payload_bytes=len(outcome.payload),
        codec="int4",
        learning_rate=OUTER.learning_rate,
        momentum=OUTER.momentum,
        state=outcome.state,
        contributions=(contribution(),),
    )


def lies_in_a_file(values):
    while isinstance(values, np.ndarray):
        values = values.base
    return isinstance(getattr(values, "obj", values), mmap.mmap)


def test_what_stays_lies_where_it_is_kept(bank, place):
    follower, in_files = a_bank(), place == "files"
    outcome, record = merge(bank, 1)
    bank.adopt(0, 1, outcome.payload_digest)
    follower.replay(record, bytes(outcome.payload))
    led, followed, untouched = bank.current(0), follower.current(0), bank.current(1)
    kept = (led.theta, led.momentum, led.residual, followed.theta, followed.momentum)
    assert [lies_in_a_file(one) for one in (*kept, untouched.theta)] == [in_files] * 6
    assert led.theta.tobytes() == followed.theta.tobytes()


def test_there_is_no_version_before_the_first():
    with pytest.raises(CorruptState, match="no version yet"):
        MergeBank(LAYOUT, project().charter, BlobStore()).current(0)


def test_a_candidate_is_not_current_before_it_is_adopted_and_only_its_payload_is_served(bank):
    served = len(bank.blob_store)
    outcome, _ = merge(bank, 1)
    assert bank.current(0).number == 0
    assert len(bank.blob_store) == served + 1
    assert bytes(bank.blob_store.get(outcome.payload_digest)) == outcome.payload
    for name in (outcome.state.theta, outcome.state.momentum):
        assert bank.blob_store.get(name) is None


@pytest.mark.parametrize("codec", ["int4", "int8", "f32", "bf16", "int2"])
@pytest.mark.parametrize("size", [2.0**41, 2.0**90])
def test_a_push_that_no_merge_could_hold_is_refused_before_it_meets_others(bank, codec, size):
    values = np.zeros(LAYOUT.fragments[0].numel, np.float32)
    values[5] = size
    push = (ONE.key, 1, 1)
    with pytest.raises(MalformedPayload, match="no merge could hold"):
        bank.keep_push(push, 0, encode(codec, values), codec)
    values[5] = 1.0
    bank.keep_push(push, 0, encode(codec, values), codec)


def test_the_largest_values_that_are_taken_can_be_merged(bank):
    values = np.full(LAYOUT.fragments[0].numel, 2.0**39, np.float32)
    payload = encode("int4", values)
    header = push_header(sequence=1, fragment=0, digest=digest(payload))
    part = MergePart(ONE.key, header, 1.0)
    bank.keep_push(part.push, 0, payload, "int4")
    outcome = bank.merge(Merge(1, 0, 1, "int4", OUTER, (part,)))
    bank.adopt(0, 1, outcome.payload_digest)
    assert np.isfinite(bank.current(0).theta).all()


def test_of_two_candidates_for_a_version_the_committed_one_counts_and_the_other_is_void(bank):
    lost, _ = merge(bank, 1)
    won, _ = merge(bank, 1, learners=(TWO,))
    assert lost.payload_digest != won.payload_digest
    bank.adopt(0, 1, won.payload_digest)
    assert bank.current(0).state == won.state
    assert bank.blob_store.get(lost.payload_digest) is None
    assert bytes(bank.blob_store.get(won.payload_digest)) == won.payload
    with pytest.raises(KeyError):
        bank.adopt(0, 1, lost.payload_digest)


def test_what_another_leader_merged_voids_the_candidate_here(bank):
    other = a_bank()
    theirs, body = merge(other, 1, learners=(TWO,))
    ours, _ = merge(bank, 1)
    bank.replay(body, theirs.payload)
    assert bank.current(0).state == theirs.state
    assert bank.blob_store.get(ours.payload_digest) is None
    assert bank.blob_store.get(theirs.payload_digest) is not None


def test_a_merge_takes_its_codec_and_outer_step_from_the_job_and_not_from_the_charter(bank):
    payload = encode("int4", np.ones(LAYOUT.fragments[0].numel, np.float32))
    part = MergePart(ONE.key, push_header(digest=digest(payload)), 1.0)
    bank.keep_push(part.push, 0, payload, "int4")
    still = msgspec.structs.replace(OUTER, learning_rate=0.0, momentum=0.0)
    outcome = bank.merge(Merge(1, 0, 1, "int8", still, (part,)))
    assert len(outcome.payload) == payload_bytes("int8", LAYOUT.fragments[0].numel)
    assert outcome.state.theta == bank.current(0).state.theta


@pytest.mark.parametrize("nesterov", [True, False])
def test_a_replay_steps_as_the_record_says_with_nesterov_or_without(bank, nesterov):
    other = a_bank()
    outer = msgspec.structs.replace(OUTER, nesterov=nesterov)
    for number in (1, 2):
        outcome, body = merge(bank, number, outer=outer)
        bank.adopt(0, number, outcome.payload_digest)
        other.replay(msgspec.structs.replace(body, nesterov=nesterov), outcome.payload)
    assert other.current(0).state == bank.current(0).state
    outcome, body = merge(bank, 3, outer=outer)
    with pytest.raises(CorruptState):
        other.replay(msgspec.structs.replace(body, nesterov=not nesterov), outcome.payload)


def test_an_adopted_version_is_served_under_the_digests_of_its_record(bank):
    former = bank.current(0).state
    outcome, _ = merge(bank, 1)
    bank.adopt(0, 1, outcome.payload_digest)
    assert bank.current(0).number == 1
    assert bytes(bank.blob_store.get(outcome.payload_digest)) == outcome.payload
    for name in (outcome.state.theta, outcome.state.momentum):
        assert digest(bytes(bank.blob_store.get(name))) == name
    assert bank.blob_store.get(former.theta) is None


def test_the_zero_momentum_that_fragments_share_outlives_one_of_them(bank):
    # All fragments start with the same zeros under one digest.
    outcome, _ = merge(bank, 1)
    bank.adopt(0, 1, outcome.payload_digest)
    assert bank.blob_store.get(bank.current(1).state.momentum) is not None


def test_a_replay_of_the_payload_gives_the_bits_of_the_merge(bank):
    replayer = a_bank()
    for number in (1, 2, 3):
        outcome, body = merge(bank, number)
        bank.adopt(0, number, outcome.payload_digest)
        replayer.replay(body, outcome.payload)
        assert replayer.current(0).theta.tobytes() == bank.current(0).theta.tobytes()
        assert replayer.current(0).momentum.tobytes() == bank.current(0).momentum.tobytes()


def test_a_replay_of_another_payload_is_corrupt_and_changes_nothing(bank):
    _, body = merge(bank, 1)
    other = encode("int4", np.ones(LAYOUT.fragments[0].numel, np.float32))
    replayer = a_bank()
    with pytest.raises(CorruptState, match="differently than certified"):
        replayer.replay(body, other)
    assert replayer.current(0).number == 0


def test_versions_cannot_be_skipped(bank):
    with pytest.raises(CorruptState, match="is at 0, not 1"):
        merge(bank, 2)
    outcome, body = merge(bank, 1)
    bank.adopt(0, 1, outcome.payload_digest)
    with pytest.raises(CorruptState, match="is at 1, not 0"):
        bank.replay(body, b"")


def test_what_quantising_lost_goes_into_the_next_merge(bank):
    first, _ = merge(bank, 1)
    bank.adopt(0, 1, first.payload_digest)
    residual = bank.current(0).residual
    assert residual.any()
    fresh = a_bank()
    outcome, body = merge(fresh, 1)
    fresh.adopt(0, 1, outcome.payload_digest)
    # The same pushes again, with and without the memory of what was lost.
    forgetful = a_bank()
    forgetful.replay(body, outcome.payload)
    with_memory, _ = merge(bank, 2)
    without, _ = merge(forgetful, 2)
    assert with_memory.payload != without.payload
    gap = decode("int4", with_memory.payload, residual.size) - decode(
        "int4", without.payload, residual.size
    )
    assert np.dot(gap, residual) > 0


def test_a_payload_that_does_not_decode_is_refused_on_arrival(bank):
    with pytest.raises(MalformedPayload):
        bank.keep_push((ONE.key, 1, 1), 0, b"short", "int4")
    broken = bytearray(encode("int4", np.ones(LAYOUT.fragments[0].numel, np.float32)))
    broken[-2:] = b"\xff\x7f"  # A scale of NaN.
    with pytest.raises(MalformedPayload):
        bank.keep_push((ONE.key, 1, 1), 0, bytes(broken), "int4")


def test_a_few_payloads_are_served_for_those_that_missed_one(bank):
    names = []
    for number in range(1, limits.PAYLOAD_RING + 3):
        outcome, _ = merge(bank, number)
        bank.adopt(0, number, outcome.payload_digest)
        names.append(outcome.payload_digest)
    served = [bank.blob_store.get(name) is not None for name in names]
    assert served == [False] * 2 + [True] * limits.PAYLOAD_RING


def test_a_push_let_go_is_no_longer_held(bank):
    payload = encode("int4", np.ones(LAYOUT.fragments[0].numel, np.float32))
    push = (ONE.key, 1, 1)
    bank.keep_push(push, 0, payload, "int4")
    bank.forget_push(push)
    bank.forget_push(push)
    part = MergePart(ONE.key, push_header(), 1.0)
    with pytest.raises(KeyError):
        bank.merge(Merge(1, 0, 1, "int4", OUTER, (part,)))


def test_a_push_stays_fetchable_for_its_prober_when_it_is_merged_and_forgotten(bank):
    payload = encode("int4", np.ones(LAYOUT.fragments[0].numel, np.float32))
    push, name = (ONE.key, 1, 1), digest(payload)
    bank.keep_push(push, 0, payload, "int4")
    assert bank.blob_store.get(name) is None
    bank.offer_push(push, name)
    bank.forget_push(push)
    assert bytes(bank.blob_store.get(name)) == payload
    bank.retract_push(name)
    bank.retract_push(name)
    assert bank.blob_store.get(name) is None
    bank.offer_push(push, name)
    assert bank.blob_store.get(name) is None, "it is gone"


def test_it_knows_what_was_merged_lately_of_each_fragment(bank):
    payloads = []
    for number in range(1, MERGES_COMPARED + 3):
        outcome, _ = merge(bank, number)
        assert bank.lately(0) == tuple(payloads[-MERGES_COMPARED:])
        bank.adopt(0, number, outcome.payload_digest)
        payloads.append(("int4", outcome.payload))
    assert bank.lately(1) == ()


def test_a_standby_knows_the_same(bank):
    standby = a_bank()
    for number in range(1, 4):
        outcome, record = merge(bank, number)
        bank.adopt(0, number, outcome.payload_digest)
        standby.replay(record, bytes(outcome.payload))
    assert [(codec, bytes(payload)) for codec, payload in bank.lately(0)] == list(standby.lately(0))


def test_a_push_that_was_merged_lately_does_not_count(bank):
    outcome, _ = merge(bank, 1)
    bank.adopt(0, 1, outcome.payload_digest)
    header = push_header(sequence=2, digest=outcome.payload_digest, base_version=1)
    part = MergePart(ONE.key, header, 1.0)
    bank.keep_push(part.push, 0, outcome.payload, "int4")
    against = Against(0.0, (), is_established=False, seed=1)
    made = bank.merge(Merge(2, 0, 2, "int4", OUTER, (part,), against))
    assert made.echoes == (pytest.approx(1.0),)
    assert made.trusts == (0.0,)
    without = MergeBank(LAYOUT, project().charter, BlobStore(), rules=MergeRules(merges_compared=0))
    without.initialise(0, 1, bank.current(0).theta, bank.current(0).momentum, None, bank.lately(0))
    without.keep_push(part.push, 0, outcome.payload, "int4")
    assert without.merge(Merge(2, 0, 2, "int4", OUTER, (part,), against)).trusts == (1.0,)


# For another host.


def taken(number=1, **changes):
    """What a merger came to, and a bank that is to take it."""
    merger, bank = a_bank(), a_bank()
    outcome, record = merge(merger, number)
    job = Merge(number, 0, number, "int4", OUTER, ())
    result = Merged(
        payload=outcome.payload_digest,
        payload_bytes=len(outcome.payload),
        state=changes.get("state", outcome.state),
        norms=(),
        scales=(),
        cosines=(),
        trusts=(),
        shares=(),
        seconds=0.1,
    )
    return merger, bank, job, result, outcome, record


def test_what_a_merger_merged_is_a_candidate_as_if_it_had_been_merged_here():
    merger, bank, job, result, outcome, record = taken()
    bank.take(job, result, outcome.payload)
    assert bank.current(0).number == 0
    assert bank.blob_store.get(outcome.payload_digest) == outcome.payload
    bank.adopt(0, 1, outcome.payload_digest)
    merger.replay(record, outcome.payload)
    assert bank.current(0).state == merger.current(0).state
    assert np.array_equal(bank.current(0).theta, merger.current(0).theta)
    assert merger.current(0).residual is not None, "what quantising left over stays with it"
    assert bank.current(0).residual is None


def test_a_merge_whose_state_is_another_is_not_taken():
    _, bank, job, result, outcome, _ = taken(state=a_bank().current(1).state)
    with pytest.raises(CorruptState, match="is not what its merger said"):
        bank.take(job, result, outcome.payload)
    with pytest.raises(KeyError):
        bank.adopt(0, 1, outcome.payload_digest)


def test_a_merge_of_another_version_is_not_taken():
    _, bank, job, result, outcome, _ = taken()
    with pytest.raises(CorruptState, match="is at 0, not 1"):
        bank.take(dataclasses.replace(job, version=2), result, outcome.payload)
    with pytest.raises(CorruptState, match="not what its merger said"):
        bank.take(job, result, outcome.payload[:-1])
