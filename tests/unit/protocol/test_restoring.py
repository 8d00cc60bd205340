"""Going back by itself: what the log makes of it, and when the guard leaves it to the owner."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from host.control.status_parts import swarm_status
from node.machine.index_proof import prove_index
from protocol import wire
from protocol.errors import BadSignature, MalformedMessage
from protocol.log.accounts import Account
from protocol.log.heldout import is_far
from protocol.log.records import (
    CharterAdopted,
    CheckpointEvaluated,
    CheckpointMarked,
    RestoreGivenUp,
    SeatTaken,
    WeightsRestored,
)
from protocol.log.restoring import SOUND_MIN, restored_words
from protocol.log.state import SwarmState, SwarmSummary
from simulator.stand_ins.tiny import sim_verify
from tests.support.builders import (
    FRAGMENTS,
    ONE,
    SYNCER,
    THREE,
    TWO,
    Log,
    merged,
    project,
    sealed_charter,
    state_digests,
    weights,
)


def charter(rule: str, revision: int = 2, resumed: bytes | None = None) -> CharterAdopted:
    changed = msgspec.structs.replace(
        project().charter, revision=revision, guard=rule, resumed=resumed
    )
    return CharterAdopted(sealed_charter(changed))


class Run(Log):
    """A log with merges and measurements."""

    def merge(self) -> None:
        """A merge of every fragment."""
        for at in range(FRAGMENTS):
            version = self.state.fragments[at].version + 1
            self.add(
                merged(
                    fragment=at,
                    version=version,
                    global_step=self.state.global_step + 1,
                    round=self.state.rounds + 1,
                    state=state_digests(at, version),
                )
            )

    def measure(self, *losses: float, second=TWO) -> int:
        """A mark behind a merge, and what two say of it; its log index."""
        self.merge()
        step = self.state.global_step
        self.add(CheckpointMarked(step, ONE.key, second.key if second else None))
        index = self.state.index
        for who, loss in zip((ONE, second), losses, strict=False):
            self.add(CheckpointEvaluated(index, step, 0, who.key, loss))
        return index

    def restored(self, **changes) -> WeightsRestored:
        """What a leader would say now."""
        checkpoint, states = self.state.restoring or (0, weights().fragments)
        pause = self.state.pause
        body = WeightsRestored(
            pause=pause.record if pause is not None else bytes(32),
            checkpoint=checkpoint,
            global_step=self.state.global_step,
            round=self.state.rounds,
            versions=tuple(one.version + 1 for one in self.state.fragments),
            fragments=states,
        )
        return msgspec.structs.replace(body, **changes)


@pytest.fixture
def log() -> Run:
    """A run whose loss fell from 5 to 2, by two who agree."""
    made = Run(SeatTaken(SYNCER.key), charter("restore"), weights())
    for loss in (5.0, 3.0, 2.0):
        made.measure(loss, loss)
    return made


def wreck(log: Run, loss: float = 9.7) -> None:
    log.measure(loss, loss)
    assert log.state.pause is not None


def again(log: Run) -> SwarmState:
    summary = wire.decode(wire.encode(log.state.summary()), SwarmSummary)
    return SwarmState.restore(summary, log.state.block_sequences)


def test_going_back_makes_the_next_version_of_every_fragment_with_the_former_bits(log):
    best, states = log.state.best, tuple(one.state for one in log.state.fragments)
    versions = [one.version for one in log.state.fragments]
    tokens, accounts, step = log.state.tokens, dict(log.state.accounts), log.state.global_step
    wreck(log)
    pause = log.state.pause
    assert log.state.restoring == (best.checkpoint, states)
    log.add(log.restored())
    state = log.state
    assert tuple(one.state for one in state.fragments) == states
    assert [one.version for one in state.fragments] == [one + 2 for one in versions]
    assert {one.record_index for one in state.fragments} == {state.index}
    assert (state.pause, state.best) == (None, best)
    assert state.restored.pause == pause
    assert (state.checkpoint, state.checkpoint_step) == (state.index, state.global_step)
    assert (state.tokens > tokens, state.global_step > step) == (True, True), "work that was done"
    assert state.accounts.keys() == accounts.keys()
    assert not state.marks


def test_what_was_measured_of_void_weights_counts_no_more(log):
    wreck(log)
    late = log.state.checkpoint
    log.add(log.restored())
    assert [one.loss for one in log.state.curve] == [5.0, 3.0, 2.0]
    assert not log.state.awaits(late, TWO.key)
    log.measure(2.1, 2.1)
    log.measure(2.3, 2.3)
    assert log.state.pause is None


def test_it_outlives_a_restart_and_reaches_a_joiner(log):
    wreck(log)
    assert again(log).restoring == log.state.restoring is not None
    log.add(log.restored())
    assert again(log) == log.state


@pytest.mark.parametrize(
    "changes",
    [
        {"pause": bytes(32)},
        {"checkpoint": 1},
        {"versions": (9,) * FRAGMENTS},
        {"fragments": tuple(state_digests("mine", at) for at in range(FRAGMENTS))},
        {"fragments": ()},
        {"global_step": 1},
        {"round": 1},
    ],
)
def test_a_record_that_is_not_of_this_pause_or_checkpoint_is_none(log, changes):
    wreck(log)
    before = log.state.summary()
    body = log.restored(**changes)
    with pytest.raises(MalformedMessage):
        log.add(body)
    assert log.state.summary() == before


def test_without_a_pause_there_is_no_going_back(log):
    for body in (log.restored(), RestoreGivenUp(bytes(32))):
        with pytest.raises(MalformedMessage):
            log.add(body)


@pytest.mark.parametrize("rule", ["pause", "off"])
def test_only_the_rule_restore_goes_back_by_itself(rule):
    log = Run(SeatTaken(SYNCER.key), charter(rule), weights())
    for loss in (5.0, 3.0, 2.0, 9.7):
        log.measure(loss, loss)
    assert log.state.restoring is None
    assert log.state.restore_refusal == ""


def test_the_owner_may_switch_to_it_while_merging_is_paused(log):
    log.add(charter("pause", 3))
    wreck(log)
    assert log.state.restoring is None
    log.add(charter("restore", 4))
    assert log.state.restoring is not None


# When it is left to the owner


def test_never_twice_to_the_same_weights(log):
    wreck(log)
    log.add(log.restored())
    for _ in range(SOUND_MIN + 1):
        log.measure(2.1, 2.1)
    wreck(log)
    assert log.state.restoring is None
    assert log.state.restore_refusal.startswith("it went back to the same weights on 2023-11-14")
    assert "does not go back by itself, because it went back" in log.state.outlook


def test_a_checkpoint_of_the_same_weights_is_no_other_one(log):
    wreck(log)
    log.add(log.restored())
    log.add(CheckpointMarked(log.state.global_step, ONE.key, TWO.key))
    index = log.state.index
    for who in (ONE, TWO):
        log.add(CheckpointEvaluated(index, 0, 0, who.key, 1.99))
    assert log.state.best.checkpoint == index
    for _ in range(SOUND_MIN):
        log.measure(2.1, 2.1)
    wreck(log)
    assert log.state.pause.best.checkpoint == index
    assert log.state.restore_refusal.startswith("it went back to the same weights")


@pytest.mark.parametrize("sound", [1, SOUND_MIN - 1, SOUND_MIN])
def test_a_second_time_only_after_checkpoints_that_were_sound(log, sound):
    wreck(log)
    log.add(log.restored())
    for at in range(sound):
        log.measure(1.9 - at / 100, 1.9 - at / 100)
    wreck(log)
    assert (log.state.restoring is not None) is (sound >= SOUND_MIN)
    if sound < SOUND_MIN:
        assert f"{sound} of {SOUND_MIN} checkpoints were sound since" in log.state.outlook


def test_one_learners_word_moves_the_weights_of_nobody():
    log = Run(SeatTaken(SYNCER.key), charter("restore"), weights())
    for loss in (5.0, 2.0, 9.0, 9.0):
        log.measure(loss, second=None)
    assert log.state.pause.best.loss == 2.0
    assert log.state.restore_refusal == "one learner alone measured that checkpoint"


def test_a_log_of_a_former_version_does_not_name_the_weights(log):
    log.state.candidates.clear()
    wreck(log)
    assert log.state.restore_refusal == "the log does not name the weights of that checkpoint"


def test_who_gave_up_waits_for_the_owner(log):
    wreck(log)
    record = log.state.pause.record
    log.add(RestoreGivenUp(record))
    assert log.state.restoring is None
    assert log.state.restore_refusal == "no syncer holds that checkpoint"
    assert again(log) == log.state
    log.add(charter("restore", 3, record))
    assert log.state.pause is None


def test_after_the_owners_word_it_goes_back_to_no_checkpoint_from_before(log):
    wreck(log)
    log.add(charter("restore", 3, log.state.pause.record))
    assert not log.state.candidates
    for loss in (9.0, 8.0):
        log.measure(loss, loss)
    wreck(log, 97.0)
    assert log.state.restoring[0] == log.state.pause.best.checkpoint
    assert log.state.pause.best.loss == 8.0


# What is kept, and proven


def test_the_weights_of_a_few_checkpoints_are_kept(log):
    for loss in (1.9, 2.2, 2.1, 1.8, 1.85):
        log.measure(loss, loss)
        assert len(log.state.candidates) <= 2
    log.measure(1.9)
    assert log.state.best.checkpoint in log.state.candidates
    log.measure(1.7, second=None)
    assert set(log.state.candidates) >= {log.state.best.checkpoint} - {log.state.checkpoint}


def prove(log: Run, origins):
    return prove_index(
        log.index(),
        list(origins),
        adopted=log.state.charters,
        charters=[log.tiny.charter],
        fragments=FRAGMENTS,
        block_sequences=log.tiny.genesis.data.block_sequences,
        verify=sim_verify,
    )


def test_one_record_proves_every_fragment_to_a_joiner(log):
    wreck(log)
    log.add(log.restored())
    (origin,) = log.origins()
    assert prove(log, [origin]).fragments == log.state.fragments
    log.add(merged(fragment=1, version=log.state.fragments[1].version + 1, global_step=99))
    assert prove(log, log.origins()).restored == log.state.restored
    with pytest.raises(BadSignature):
        prove(log, [origin])


def test_people_read_when_from_where_and_whose_word_it_was(log):
    wreck(log)
    log.add(log.restored())
    names = {ONE.key: Account(name="ada"), TWO.key: Account(name="bob")}
    assert restored_words(log.state.restored, names) == (
        "The guard went back on 2023-11-14 22:13 UTC from global step 16 to the weights of global "
        "step 12: the held-out loss was 9.70, there it was 2.00 (measured by "
        f"ada ({ONE.key.hex()[:8]}) and bob ({TWO.key.hex()[:8]}))"
    )


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("both"), st.sampled_from([1.0, 1.5, 2.0, 2.1, 9.0, 1e6])),
        st.tuples(st.just("alone"), st.sampled_from([1.0, 2.0, 9.0])),
        st.tuples(st.just("differ"), st.sampled_from([1.0, 2.0, 9.0])),
        st.tuples(st.just("open"), st.sampled_from([1.0, 9.0])),
    ),
    max_size=24,
)


@given(STEPS)
def test_whatever_is_measured_it_never_goes_round_in_circles(steps):
    log = Run(SeatTaken(SYNCER.key), charter("restore"), weights())
    targets: list[float] = []
    for kind, loss in steps:
        state = log.state
        if state.pause is None:
            second = None if kind == "alone" else TWO if kind != "open" else THREE
            losses = {"both": (loss, loss), "differ": (loss, loss * 3)}.get(kind, (loss,))
            log.measure(*losses, second=second)
        if state.restoring is not None:
            versions = [one.version for one in state.fragments]
            pause = state.pause
            assert pause.best.is_agreed
            assert is_far(pause.measured.loss, pause.best.loss)
            log.add(log.restored())
            assert [one.version for one in state.fragments] == [one + 1 for one in versions]
            targets.append(pause.best.loss)
        elif state.pause is not None:
            assert state.restore_refusal
        assert again(log) == state
    assert all(later < former for former, later in itertools.pairwise(targets))


def test_status_tells_how_a_pause_ends_and_what_was_done(log):
    wreck(log)
    told = swarm_status(log.state, None)
    assert (told.guard, told.pause.goes_back) == ("restore", True)
    assert told.pause.outlook == "The guard goes back to it by itself."
    log.add(log.restored())
    told = swarm_status(log.state, None)
    assert told.pause is None
    assert (told.restored.global_step, told.restored.best_global_step) == (16, 12)
    assert (told.restored.loss, told.restored.best_loss) == (9.7, 2.0)
    assert told.restored.words == restored_words(log.state.restored, log.state.accounts)
    wreck(log)
    told = swarm_status(log.state, None)
    assert not told.pause.goes_back
    assert told.pause.outlook.startswith("The guard does not go back by itself, because it went")
    assert told.pause.outlook.endswith("`shoal project resume PROJECT` goes on.")
