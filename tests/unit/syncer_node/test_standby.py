"""A standby keeps up: bytes before storing, versions in order, lost fragments from others."""

from __future__ import annotations

import msgspec
import pytest

from protocol import wire
from protocol.effect_queue import EffectQueue
from protocol.log.records import (
    CharterAdopted,
    CheckpointEvaluated,
    CheckpointMarked,
    SeatTaken,
    WeightsRestored,
)
from protocol.machine import Failed, Start
from protocol.trace import FragmentAdvanced, PhaseChanged
from syncer_node.machine.jobs import (
    CheckpointWritten,
    FetchPayload,
    FetchRestored,
    FetchWeights,
    LoadWeights,
    NameBest,
    PayloadKept,
    PayloadNotWritten,
    Repaired,
    RepairFragment,
    Replay,
    Replayed,
    Restore,
    WriteCheckpoint,
)
from syncer_node.machine.standby import (
    FAILURES_MAX,
    FETCH_RETRY_S,
    FETCHES_MAX,
    NONE,
    REPAIR_RETRY_S,
    WRITE_RETRY_S,
    Standby,
)
from syncer_node.raft.log import Entry
from tests.support.builders import (
    FRAGMENTS,
    ONE,
    SYNCER,
    TWO,
    actions,
    contribution,
    digest_of,
    facts,
    founded,
    merged,
    project,
    record,
    sealed_charter,
    state_digests,
    stops,
    weights,
)


class StandbyBench:
    """A `Standby` whose jobs wait for the test, and what it told its log."""

    def __init__(self, *bodies, held=None):
        self.log = founded(*bodies)
        self.queue = EffectQueue()
        self.stored = []
        self.replaced = set()
        self.effects = []
        self.waiting = []
        self.following = Standby(
            effects=self.queue,
            state=self.log.state,
            leader=lambda: SYNCER.key,
            on_payload=self.stored.append,
            is_needed=lambda index, digest: index not in self.replaced,
            held=[0] * FRAGMENTS if held is None else held,
        )

    def collect(self):
        """What was asked for since; jobs are kept for `done`."""
        effects = self.queue.drain()
        self.effects += effects
        self.waiting += [effect.job for effect in effects if isinstance(effect, Start)]
        return effects

    def jobs(self, kind):
        self.collect()
        return [job for job in self.waiting if isinstance(job, kind)]

    def take(self, kind):
        job = self.jobs(kind)[0]
        self.waiting.remove(job)
        return job

    def fetched(self, result):
        self.following.on_fetched(self.take((FetchPayload, FetchWeights, FetchRestored)), result)

    def replayed(self, kind, result):
        self.following.on_replayed(self.take(kind), result)

    def commit(self, body):
        """The next certified record."""
        entry = self.log.add(body)
        self.following.on_certified(entry, self.log.state.index, body)

    def wait(self, seconds):
        self.following.look(self.following.now_s + seconds)
        return self.collect()


def entry_of(body, index=5):
    return Entry.read(wire.encode(record(body, index=index)))


def merge(fragment, version):
    step = FRAGMENTS * (version - 1) + fragment + 1
    return merged(
        round=step,
        global_step=step,
        fragment=fragment,
        version=version,
        payload=digest_of("payload", fragment, version),
        state=state_digests(fragment, version),
        contributions=(contribution(sequence=step),),
    )


@pytest.fixture
def standby():
    return StandbyBench(weights())


# Bytes before storing


def test_only_records_that_name_bytes_wait_for_any(standby):
    assert not standby.following.fetch(entry_of(SeatTaken(SYNCER.key)))
    assert standby.jobs(FetchPayload) == []
    assert standby.following.fetch(entry_of(merge(0, 1)))
    (job,) = standby.jobs(FetchPayload)
    assert (job.index, job.leader, job.merged) == (5, SYNCER.key, merge(0, 1))


def test_a_record_is_stored_once_its_payload_is_on_this_disk(standby):
    standby.following.fetch(entry_of(merge(0, 1)))
    assert standby.stored == []
    standby.fetched(PayloadKept())
    assert standby.stored == [5]


def test_the_first_weights_are_fetched_as_a_whole():
    standby = StandbyBench()
    standby.following.fetch(entry_of(weights(), index=4))
    (job,) = standby.jobs(FetchWeights)
    assert job.fragments == weights().fragments
    standby.fetched(PayloadKept())
    assert standby.stored == [4]


def test_a_fetch_that_failed_is_tried_again_and_no_sooner(standby):
    standby.following.fetch(entry_of(merge(0, 1)))
    standby.fetched(Failed("unreachable"))
    assert standby.following.trouble == "unreachable"
    assert standby.following.deadline_s() == FETCH_RETRY_S
    standby.wait(FETCH_RETRY_S / 2)
    assert standby.jobs(FetchPayload) == []
    standby.wait(FETCH_RETRY_S)
    standby.fetched(PayloadKept())
    assert (standby.stored, standby.following.trouble) == ([5], "")
    assert standby.following.deadline_s() > 1e9


def test_few_payloads_are_fetched_side_by_side_and_all_in_the_end(standby):
    for at in range(FETCHES_MAX + 3):
        standby.following.fetch(entry_of(merge(at % FRAGMENTS, 1 + at // FRAGMENTS), index=5 + at))
    assert [job.index for job in standby.jobs(FetchPayload)] == [5, 6, 7, 8]
    while standby.jobs(FetchPayload):
        standby.fetched(PayloadKept())
    assert standby.stored == list(range(5, 5 + FETCHES_MAX + 3))


def test_a_record_that_another_leader_replaced_is_fetched_for_no_more(standby):
    standby.following.fetch(entry_of(merge(0, 1)))
    standby.fetched(Failed("unreachable"))
    standby.replaced = {5}
    standby.wait(5.0)
    assert standby.jobs(FetchPayload) == []
    assert standby.following.deadline_s() > 1e9


def test_a_payload_of_the_replaced_record_does_not_store_its_successor(standby):
    standby.following.fetch(entry_of(merge(0, 1)))
    former = standby.take(FetchPayload)
    standby.following.fetch(entry_of(merge(1, 1)))
    standby.following.on_fetched(former, PayloadKept())
    assert standby.stored == []
    standby.wait(1.0)
    standby.fetched(PayloadKept())
    assert standby.stored == [5]


def test_payloads_that_cannot_be_had_any_more_call_for_a_whole_state(standby):
    standby.following.fetch(entry_of(merge(0, 1)))
    for _ in range(FAILURES_MAX):
        assert not standby.following.is_left_behind
        standby.fetched(Failed("not held"))
        standby.wait(1.0)
    assert standby.following.is_left_behind
    standby.fetched(PayloadKept())
    assert not standby.following.is_left_behind


def test_a_full_disk_here_calls_for_no_whole_state(standby):
    standby.following.fetch(entry_of(merge(0, 1)))
    for _ in range(2 * FAILURES_MAX):
        standby.fetched(PayloadNotWritten("the disk is full"))
        assert not standby.following.is_left_behind
        assert standby.following.trouble == "the disk is full"
        standby.wait(WRITE_RETRY_S)
    standby.fetched(PayloadKept())
    assert standby.following.trouble == ""
    assert standby.stored == [5]


# Replaying


def test_what_is_certified_is_replayed_one_by_one_in_order(standby):
    bodies = [merge(0, 1), merge(1, 1), merge(0, 2)]
    for body in bodies:
        standby.commit(body)
    seen = []
    while jobs := standby.jobs(Replay):
        assert len(jobs) == 1
        assert not standby.following.is_idle
        seen.append(jobs[0].merged)
        standby.replayed(Replay, Replayed())
    assert seen == bodies
    assert standby.following.held == [2, 1, 0, 0]
    assert standby.following.is_idle
    standby.collect()
    assert [fact.version for fact in facts(standby.effects, FragmentAdvanced)] == [1, 1, 2]


def test_certified_weights_are_loaded_before_any_merge_is_replayed():
    standby = StandbyBench(held=[NONE] * FRAGMENTS)
    standby.following.held = [0] * FRAGMENTS
    standby.commit(weights())
    standby.commit(merge(0, 1))
    assert standby.jobs(Replay) == []
    standby.replayed(LoadWeights, Replayed())
    assert len(standby.jobs(Replay)) == 1


def test_a_fragment_that_cannot_follow_the_log_is_fetched_as_a_whole(standby):
    standby.commit(merge(0, 1))
    standby.commit(merge(1, 1))
    standby.replayed(Replay, Failed("the payload is damaged"))
    standby.collect()
    assert stops(standby.effects) == []
    assert standby.following.missing == [0]
    (repair,) = standby.jobs(RepairFragment)
    assert (repair.fragment, repair.newest.version) == (0, 1)
    assert standby.jobs(Replay) == []  # Until every fragment is here.


def test_marks_become_checkpoints_of_exactly_that_place_between_the_replays(standby):
    standby.commit(merge(0, 1))
    standby.commit(CheckpointMarked(1, ONE.key))
    index, summary = standby.log.state.index, standby.log.state.summary()
    standby.commit(merge(1, 1))
    assert standby.jobs(WriteCheckpoint) == []
    standby.replayed(Replay, Replayed())
    (job,) = standby.jobs(WriteCheckpoint)
    assert (job.index, job.summary) == (index, summary)
    assert standby.jobs(Replay) == []
    standby.replayed(WriteCheckpoint, CheckpointWritten(index))
    assert len(standby.jobs(Replay)) == 1


def test_a_checkpoint_that_could_not_be_written_is_told_and_replaying_goes_on(standby):
    standby.commit(CheckpointMarked(0, ONE.key))
    standby.commit(merge(0, 1))
    standby.replayed(WriteCheckpoint, Failed("disk full"))
    assert len(standby.jobs(Replay)) == 1
    assert facts(standby.effects, PhaseChanged)[0].detail == "disk full"


def test_the_checkpoint_of_a_seat_that_is_closed_does_not_move_the_queue(standby):
    standby.commit(merge(0, 1))
    foreign = WriteCheckpoint(1, standby.log.state.summary())
    standby.following.on_replayed(foreign, CheckpointWritten(1))
    assert not standby.following.is_idle
    standby.replayed(Replay, Replayed())
    assert standby.following.is_idle


def test_the_best_checkpoint_is_named_here_too(standby):
    standby.commit(CheckpointMarked(0, ONE.key))
    mark = standby.log.state.index
    standby.commit(CheckpointEvaluated(mark, 0, 0, ONE.key, 2.0))
    standby.collect()
    assert [action.index for action in actions(standby.effects, NameBest)] == [mark]


# Repairing


@pytest.fixture
def damaged():
    """All fragments are to be fetched, two of them merged before."""
    return StandbyBench(weights(), merge(0, 1), merge(1, 1), held=[NONE] * FRAGMENTS)


def repair_all(standby):
    while standby.jobs(RepairFragment):
        standby.following.on_repaired(standby.take(RepairFragment), Repaired())


def test_lost_fragments_are_fetched_in_the_version_that_the_log_names(damaged):
    damaged.wait(0.0)
    jobs = damaged.jobs(RepairFragment)
    assert [job.fragment for job in jobs] == list(range(FRAGMENTS))
    assert [job.newest.version for job in jobs] == [1, 1, 0, 0]
    assert not damaged.following.is_idle
    repair_all(damaged)
    assert damaged.following.held == [1, 1, 0, 0]


def test_what_was_repaired_is_kept_as_a_checkpoint_before_this_host_may_lead(damaged):
    damaged.wait(0.0)
    repair_all(damaged)
    assert not damaged.following.is_idle
    (job,) = damaged.jobs(WriteCheckpoint)
    assert (job.index, job.summary) == (damaged.log.state.index, damaged.log.state.summary())
    damaged.replayed(WriteCheckpoint, CheckpointWritten(job.index))
    assert damaged.following.is_idle


def test_a_repair_that_failed_is_tried_again_later(damaged):
    damaged.wait(0.0)
    damaged.following.on_repaired(damaged.take(RepairFragment), Failed("nobody has it"))
    assert damaged.following.trouble == "nobody has it"
    assert damaged.following.deadline_s() <= damaged.following.now_s + REPAIR_RETRY_S
    repair_all(damaged)
    assert damaged.following.missing == [0]
    damaged.wait(REPAIR_RETRY_S)
    repair_all(damaged)
    assert damaged.following.missing == []


def test_a_merge_that_a_repair_brought_along_is_not_replayed_again(damaged):
    damaged.wait(0.0)
    waiting = damaged.take(RepairFragment)
    damaged.commit(merge(0, 2))
    damaged.commit(merge(2, 1))
    damaged.following.on_repaired(waiting, Failed("they moved on"))
    damaged.wait(REPAIR_RETRY_S)
    repair_all(damaged)
    replays = []
    while jobs := damaged.jobs(Replay):
        replays.append((jobs[0].merged.fragment, jobs[0].merged.version))
        damaged.replayed(Replay, Replayed())
    assert replays == [(2, 1)]
    assert damaged.following.held == [2, 1, 1, 0]


def test_nothing_is_repaired_before_there_are_weights():
    standby = StandbyBench(held=[NONE] * FRAGMENTS)
    standby.wait(10.0)
    assert standby.jobs(RepairFragment) == []


# The guard goes back


def restored(standby):
    """The model was wrecked, and this is the record that goes back."""
    sealed = sealed_charter(msgspec.structs.replace(project().charter, revision=2, guard="restore"))
    standby.commit(CharterAdopted(sealed))
    for at, loss in enumerate((5.0, 2.0, 9.7)):
        standby.commit(merge(at, 1))
        standby.replayed(Replay, Replayed())
        standby.commit(CheckpointMarked(at + 1, ONE.key, TWO.key))
        index = standby.log.state.index
        standby.replayed(WriteCheckpoint, CheckpointWritten(index))
        for who in (ONE, TWO):
            standby.commit(CheckpointEvaluated(index, at + 1, 0, who.key, loss))
    state = standby.log.state
    checkpoint, states = state.restoring
    versions = tuple(one.version + 1 for one in state.fragments)
    return WeightsRestored(
        state.pause.record, checkpoint, state.global_step, state.rounds, versions, states
    )


def test_the_weights_that_the_guard_goes_back_to_are_here_before_the_vote(standby):
    body = restored(standby)
    standby.following.fetch(entry_of(body))
    (job,) = standby.jobs(FetchRestored)
    assert (job.index, job.leader, job.restored) == (5, SYNCER.key, body)
    standby.fetched(PayloadKept())
    assert standby.stored == [5]


def test_weights_of_another_record_do_not_store_this_one(standby):
    body = restored(standby)
    standby.following.fetch(entry_of(body))
    former = standby.take(FetchRestored)
    standby.following.fetch(entry_of(merge(1, 2)))
    standby.following.on_fetched(former, PayloadKept())
    assert standby.stored == []


def test_what_the_guard_went_back_to_is_taken_in_order_and_kept(standby):
    body = restored(standby)
    standby.commit(body)
    standby.commit(merge(0, body.versions[0] + 1))
    (job,) = standby.jobs(Restore)
    assert job.restored == body
    standby.replayed(Restore, Replayed())
    assert standby.following.held == list(body.versions)
    (written,) = standby.jobs(WriteCheckpoint)
    assert written.summary.restored.versions == body.versions
    standby.replayed(WriteCheckpoint, CheckpointWritten(written.index))
    standby.replayed(Replay, Replayed())
    assert standby.following.is_idle


def test_kept_weights_that_are_damaged_come_from_others(standby):
    body = restored(standby)
    standby.commit(body)
    standby.replayed(Restore, Failed("the kept weights are others"))
    for at in range(FRAGMENTS):
        job = standby.take(RepairFragment)
        assert job.newest.version == body.versions[at]
        standby.following.on_repaired(job, Repaired())
    assert standby.jobs(Restore) == []
    standby.replayed(WriteCheckpoint, CheckpointWritten(standby.log.state.index))
    assert standby.following.held == list(body.versions)
