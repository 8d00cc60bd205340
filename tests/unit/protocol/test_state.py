from __future__ import annotations

import msgspec
import pytest

from protocol import wire
from protocol.errors import MalformedMessage
from protocol.log.accounts import Refusal
from protocol.log.records import (
    BlocksLeased,
    BlocksReturned,
    CharterAdopted,
    CheckpointEvaluated,
    CheckpointMarked,
    Contribution,
    PushProbed,
    RunEnded,
    RunEnding,
    SeatTaken,
    Span,
    WeightsInitialised,
    record_hash,
)
from protocol.log.state import CURVE_POINTS_MAX, MARKS_MAX, KnownNorm, SwarmState, SwarmSummary
from protocol.merge_rules import NORMS_KNOWN_MAX
from protocol.messages import Cursor, Gain
from protocol.novelty import UNHEARD, Novelty
from protocol.project import Reinstated
from protocol.standing import NOBODY, Standing, after
from simulator.stand_ins.tiny import charter_envelope
from tests.support.builders import (
    ONE,
    SYNCER,
    THREE,
    TWO,
    Log,
    contribution,
    digest_of,
    merged,
    project,
    record,
    sealed_charter,
    state_digests,
    weights,
)


@pytest.fixture
def log():
    return Log(SeatTaken(SYNCER.key), CharterAdopted(charter_envelope(project())), weights())


def scored(log, loss, step=0):
    """Mark a checkpoint and evaluate it."""
    log.add(CheckpointMarked(step, ONE.key))
    at = log.state.index
    log.add(CheckpointEvaluated(at, step, log.state.tokens, ONE.key, loss))
    return at


def test_the_first_records_name_leader_charter_and_weights(log):
    state = log.state
    assert (state.index, state.term, state.leader) == (3, 1, SYNCER.key)
    assert state.charter_revision == project().charter.revision
    assert [f.version for f in state.fragments] == [0, 0, 0, 0]
    assert {f.record_index for f in state.fragments} == {3}


@pytest.mark.parametrize("changes", [{"index": 2}, {"index": 0}, {"previous": digest_of("other")}])
def test_a_record_that_does_not_follow_is_refused_and_changes_nothing(changes):
    state = SwarmState(4)
    before = state.summary()
    with pytest.raises(MalformedMessage, match="does not follow"):
        state.apply(record(**changes), bytes(32))
    assert state.summary() == before


def test_the_same_record_twice_is_refused(log):
    last = log.records[-1]
    with pytest.raises(MalformedMessage):
        log.state.apply(last, record_hash(wire.encode(last)))


def test_weights_are_initialised_once(log):
    with pytest.raises(MalformedMessage, match="once"):
        log.add(weights())


def test_a_merge_moves_its_fragment_by_one_version_and_no_other(log):
    log.add(merged(fragment=2, version=1, global_step=1, state=state_digests(2, 1)))
    assert [f.version for f in log.state.fragments] == [0, 0, 1, 0]
    assert log.state.fragments[2].state == state_digests(2, 1)
    assert log.state.fragments[2].record_index == log.state.index
    assert log.state.global_step == 1


@pytest.mark.parametrize("version", [0, 2])
def test_a_gap_in_versions_is_refused(log, version):
    with pytest.raises(MalformedMessage, match="not the next"):
        log.add(merged(version=version))


def test_a_merge_of_an_unknown_fragment_is_refused(log):
    with pytest.raises(MalformedMessage, match="no fragment 4"):
        log.add(merged(fragment=4))


def test_a_merge_before_there_are_weights_is_refused():
    with pytest.raises(MalformedMessage, match="no fragment"):
        Log(merged())


def test_tokens_are_the_mean_over_fragments(log):
    log.add(merged(fragment=0, contributions=(contribution(tokens=400),)))
    assert log.state.tokens == 100
    log.add(merged(fragment=1, global_step=2, contributions=(contribution(tokens=300),)))
    assert log.state.tokens == 175


def test_accounts_sum_over_sessions_and_count_clips(log):
    parts = (
        contribution(tokens=10),
        contribution(incarnation=2, tokens=5, scale=0.5),
        contribution(learner=TWO.key, tokens=1),
    )
    log.add(merged(contributions=parts))
    mine, theirs = log.state.accounts[ONE.key], log.state.accounts[TWO.key]
    assert (mine.merges, mine.tokens, mine.clipped) == (2, 15, 1)
    assert (theirs.merges, theirs.tokens, theirs.clipped) == (1, 1, 0)


def test_a_contributor_is_whoever_has_a_merge(log):
    assert not log.state.has_merges(ONE.key)
    log.add(merged(contributions=(contribution(learner=ONE.key),)))
    assert log.state.has_merges(ONE.key)
    assert not log.state.has_merges(TWO.key)


def test_a_hand_in_finishes_the_blocks_before_its_cursor(log):
    log.add(BlocksLeased(ONE.key, 1, (Span(0, 4, 0),)))
    log.add(merged(contributions=(contribution(cursor=Cursor(2, 1)),)))
    assert log.state.leases.held[ONE.key, 1] == [Span(2, 4, 1)]
    log.add(BlocksReturned(ONE.key, 1))
    assert log.state.leases.returned == [Span(2, 4, 1)]


def test_rounds_never_go_back_whatever_order_they_commit_in(log):
    log.add(merged(round=7, fragment=0))
    log.add(merged(round=6, fragment=1, global_step=2))
    assert log.state.rounds == 7


def test_the_best_checkpoint_has_the_lowest_loss_and_of_equals_the_earliest(log):
    scored(log, 3.0)
    best = scored(log, 1.0)
    scored(log, 1.0)
    scored(log, 2.0)
    assert log.state.best.checkpoint == best


def test_there_is_no_best_before_the_first_evaluation(log):
    assert log.state.best is None


@pytest.mark.parametrize("lowest_at", [0, 1, 254, CURVE_POINTS_MAX])
def test_a_curve_that_is_too_long_is_thinned_and_keeps_its_best_and_its_ends(log, lowest_at):
    for number in range(CURVE_POINTS_MAX + 1):
        scored(log, 0.5 if number == lowest_at else 2.0, step=number)
    steps = [point.global_step for point in log.state.curve]
    assert len(steps) < CURVE_POINTS_MAX
    assert (steps[0], steps[-1]) == (0, CURVE_POINTS_MAX)
    assert steps == sorted(set(steps))
    assert log.state.best.global_step == lowest_at


def test_marks_that_nobody_evaluates_are_bounded(log):
    for step in range(MARKS_MAX + 3):
        log.add(CheckpointMarked(step, None))
    assert len(log.state.marks) == MARKS_MAX
    assert max(log.state.marks) == log.state.checkpoint


def test_a_run_ends_in_two_steps(log):
    log.add(RunEnding("token-budget"))
    assert (log.state.is_ending, log.state.ended) == (True, None)
    ended = RunEnded(3, 100, 4, 1.5)
    log.add(ended)
    assert log.state.ended == ended


def busy(log):
    log.add(BlocksLeased(ONE.key, 1, (Span(0, 4, 0),)))
    log.add(BlocksLeased(TWO.key, 1, (Span(4, 6, 0),)))
    log.add(merged(contributions=(contribution(cursor=Cursor(2, 1)),)))
    log.add(BlocksReturned(ONE.key, 1))
    scored(log, 2.5, step=1)
    return log.state


def test_a_summary_restores_to_the_same_state(log):
    state = busy(log)
    summary = wire.decode(wire.encode(state.summary()), SwarmSummary)
    restored = SwarmState.restore(summary, state.block_sequences)
    assert restored == state
    assert restored.summary() == state.summary()


def test_a_restored_state_goes_on_like_the_original_and_shares_nothing_with_it(log):
    state = busy(log)
    restored = SwarmState.restore(state.summary(), state.block_sequences)
    kept = wire.encode(state.summary())
    following = record(merged(version=2, global_step=2), index=state.index + 1, previous=state.head)
    restored.apply(following, digest_of("next"))
    assert wire.encode(state.summary()) == kept
    state.apply(following, digest_of("next"))
    assert restored == state


def test_the_fold_does_not_care_who_folds(log):
    busy(log)
    again = SwarmState(project().genesis.data.block_sequences)
    for entry, one in zip(log.entries, log.records, strict=True):
        again.apply(one, record_hash(entry.record))
    assert again == log.state


def test_weights_of_no_fragment_are_no_weights():
    assert not Log(WeightsInitialised(())).state.has_weights


def test_two_states_of_one_summary_count_each_for_itself(log):
    state = busy(log)
    summary = state.summary()
    other = SwarmState.restore(summary, state.block_sequences).accounts
    for key in list(other):
        other.merged(key, 100, is_clipped=False, at_s=9.0)
        other.note((), (Refusal(key, "stale", 1),))
    assert SwarmState.restore(summary, state.block_sequences) == state


def test_a_learner_s_log_keeps_what_pushes_are_judged_by_of_its_own_alone(log):
    own = SwarmState(log.state.block_sequences, ONE.key)
    for who in (ONE, TWO):
        log.add(BlocksLeased(who.key, 1, log.state.leases.pick(2)))
    both = tuple(
        contribution(learner=who.key, cosine=0.5, echo=0.2, novelty=0.1, cursor=Cursor(at, 2))
        for at, who in ((0, ONE), (2, TWO))
    )
    log.add(merged(contributions=both))
    for entry, one in zip(log.entries, log.records, strict=True):
        own.apply(one, record_hash(entry.record))
    everybody = log.state
    assert own.accounts[ONE.key] == everybody.accounts[ONE.key]
    assert own.accounts[TWO.key].counts == everybody.accounts[TWO.key].counts
    assert own.accounts[TWO.key].standing == NOBODY != everybody.accounts[TWO.key].standing
    assert own.accounts[TWO.key].novelty == UNHEARD != everybody.accounts[TWO.key].novelty
    assert set(own.norms[0]) == {ONE.key}
    assert own.leases.held == everybody.leases.held, "who read what all know"
    assert set(own.leases.handed_in) == set(own.leases.granted) == {(ONE.key, 1)}
    again = SwarmState.restore(everybody.summary(), everybody.block_sequences, ONE.key)
    assert set(again.leases.handed_in) == set(again.leases.granted) == {(ONE.key, 1)}
    following = record(
        merged(version=2, global_step=2, contributions=both),
        index=everybody.index + 1,
        previous=everybody.head,
    )
    again.apply(following, digest_of("next"))
    assert set(again.leases.handed_in) == {(ONE.key, 1)}


# Trust.


def test_cosines_add_up_to_a_standing_and_only_where_something_was_compared(log):
    parts = (
        contribution(cosine=0.4),
        contribution(learner=TWO.key, cosine=-0.2, trust=0.0),
    )
    log.add(merged(contributions=parts))
    log.add(merged(fragment=1, global_step=2, contributions=(contribution(),)))
    accounts = log.state.accounts
    assert accounts[ONE.key].standing == Standing(0.4, 1, good=1)
    assert accounts[ONE.key].doubted == 0
    assert accounts[TWO.key].standing == Standing(-0.2, 1)
    assert accounts[TWO.key].doubted == 1


@pytest.mark.parametrize(("base", "judged"), [(0, 1), (1, 2), (2, 2)])
def test_only_a_push_that_lags_from_version_0_says_nothing_of_its_learner(log, base, judged):
    log.add(merged(contributions=(contribution(cosine=0.4),)))
    log.add(merged(version=2, global_step=2, contributions=(contribution(learner=TWO.key),)))
    lagging = contribution(cosine=-0.5, trust=0.0, base_version=base, sequence=2)
    others = [contribution(learner=bytes([at]) * 32, base_version=2) for at in range(8)]
    log.add(merged(version=3, global_step=3, contributions=(lagging, *others)))
    account = log.state.accounts[ONE.key]
    assert (account.standing.judged, account.merges) == (judged, 2)
    assert account.doubted == judged - 1


def test_a_push_of_few_steps_and_one_that_repeats_itself_are_weighed_as_the_record_says(log):
    log.add(merged(contributions=(contribution(cosine=0.2, expected=0.5, repeat=0.8),)))
    standing = log.state.accounts[ONE.key].standing
    assert standing == after(NOBODY, 0.2, 1.0, expected=0.5, repeat=0.8)
    assert (standing.bearing, standing.repeats) == (0.4, 0.4)


def test_records_of_before_say_that_all_was_expected_and_nothing_repeated():
    written = msgspec.msgpack.decode(wire.encode(contribution(cosine=0.4, tensors_clipped=2)))
    former = wire.decode(msgspec.msgpack.encode(written[:-4]), Contribution)
    assert former == contribution(cosine=0.4, tensors_clipped=2)
    assert (former.expected, former.repeat) == (1.0, 0.0)


def test_novelties_add_up_and_echoes_are_counted_and_both_survive_a_checkpoint(log):
    parts = contribution(echo=0.3, novelty=0.25), contribution(learner=TWO.key, echo=1.0)
    log.add(merged(contributions=parts))
    log.add(merged(fragment=1, global_step=2, contributions=(contribution(),)))
    accounts = log.state.accounts
    assert accounts[ONE.key].novelty == Novelty(0.25, 1)
    assert accounts[TWO.key].novelty == Novelty(0.0, 0, echoes=1)
    written = wire.encode(log.state.summary())
    again = SwarmState.restore(wire.decode(written, SwarmSummary), 4)
    assert again.accounts == accounts


def test_the_newest_norms_of_a_fragment_are_known_and_bounded(log):
    log.add(merged(contributions=(contribution(norm=2.0), contribution(learner=TWO.key, norm=3.0))))
    log.add(merged(version=2, global_step=2, contributions=(contribution(norm=4.0),)))
    assert log.state.norms[0] == {
        TWO.key: KnownNorm(TWO.key, 3.0, 8),
        ONE.key: KnownNorm(ONE.key, 4.0, 8),
    }
    assert log.state.norms[1] == {}
    many = tuple(
        contribution(learner=bytes([at]) * 32, norm=float(at)) for at in range(NORMS_KNOWN_MAX + 5)
    )
    log.add(merged(version=3, global_step=3, contributions=many))
    assert len(log.state.norms[0]) == NORMS_KNOWN_MAX
    assert bytes([NORMS_KNOWN_MAX + 4]) * 32 in log.state.norms[0]


def test_standings_and_norms_survive_a_checkpoint(log):
    log.add(merged(contributions=(contribution(norm=2.0, cosine=0.5, tensors=b"\x01\x09"),)))
    written = wire.encode(log.state.summary())
    again = SwarmState.restore(wire.decode(written, SwarmSummary), 4)
    assert again.summary() == log.state.summary()
    assert again.norms == log.state.norms
    assert again.accounts[ONE.key].standing == Standing(0.5, 1, good=1)


# Probes.

GAIN, LESS = Gain(3.0, 0.02, 0.01, 16), Gain(3.0, 0.01, 0.01, 16)


def probed(**changes):
    usual = PushProbed(ONE.key, 1, 1, 0, TWO.key, GAIN, LESS, -1.5)
    return msgspec.structs.replace(usual, **changes)


def test_probes_add_up_by_prober(log):
    for prober, score in ((TWO, -1.5), (THREE, 0.5), (TWO, -1.0)):
        log.add(probed(prober=prober.key, score=score))
    account = log.state.accounts[ONE.key]
    assert account.probes == 3
    assert {one.prober: (one.probes, one.evidence) for one in account.findings} == {
        THREE.key: (1, 0.5),
        TWO.key: (2, -2.5),
    }
    assert not log.state.is_suspended(ONE.key)


def test_a_suspended_learner_gives_back_its_tokens_and_norms(log):
    parts = (contribution(tokens=400), contribution(learner=TWO.key, tokens=300))
    for fragment in range(4):
        log.add(merged(fragment=fragment, global_step=fragment + 1, contributions=parts))
    assert log.state.tokens == 700
    log.add(probed(suspends=True, withdrawn=1600))
    assert log.state.is_suspended(ONE.key)
    assert log.state.tokens == 300
    assert log.state.accounts[ONE.key].tokens == 1600, "what it handed in stays in the ledger"
    assert all(ONE.key not in known for known in log.state.norms)
    summary = wire.decode(wire.encode(log.state.summary()), SwarmSummary)
    assert SwarmState.restore(summary, log.state.block_sequences) == log.state


def test_the_owner_lifts_a_suspension_once(log):
    log.add(CharterAdopted(charter_envelope(log.tiny)))
    log.add(probed(suspends=True))
    for revision, is_suspended in ((2, False), (3, True)):
        lifted = (Reinstated(ONE.key, 2),)
        charter = msgspec.structs.replace(log.tiny.charter, revision=revision, reinstated=lifted)
        log.add(CharterAdopted(sealed_charter(charter, log.tiny)))
        assert log.state.is_suspended(ONE.key) == is_suspended
        log.add(probed(suspends=True))
    assert log.state.accounts[ONE.key].probes == 3
