"""The asking side on a bench: its syncer and its donors say what a test wants."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest

from node.machine.jobs import (
    Advance,
    Advanced,
    BeginSteps,
    CaptureMoments,
    Deliver,
    Delivered,
    DonorsFound,
    FetchMoments,
    FetchState,
    FindDonors,
    ForgetMoments,
    InstallMoments,
    MomentsCaptured,
    MomentsFetched,
    MomentsInstalled,
    StartTrainer,
    StateFetched,
    Stepped,
    TrainerLost,
    TrainerReady,
    WithdrawMoments,
)
from node.machine.moments_client import (
    ANSWER_S_MAX,
    DONORS_ASKED_MAX,
    LOOK_EVERY_S,
    LOOKS_MAX,
    REJOIN_TRANSITIONS,
    TARGETS_MAX,
    UNSUBSCRIBED_S_MAX,
    WAIT_S_MAX,
    Rejoin,
)
from node.machine.moments_server import (
    BEHIND_S_MAX,
    GIVE_EVERY_S,
    OFFER_S_MAX,
    SNAPSHOT_EVERY_S,
    WAITING_MAX,
    MomentsServerState,
)
from protocol.log.records import SeatTaken
from protocol.machine import Connect, Failed, Note, PeerDown, PeerUp
from protocol.messages import (
    AskMoments,
    Cursor,
    MomentsReady,
    MomentsRefused,
    VectorClock,
)
from protocol.trace import MomentsTaken, PeerMisbehaved
from simulator.stand_ins.tiny import SimSigner, tiny_project
from tests.support.builders import (
    FRAGMENTS,
    ONE,
    SYNCER,
    THREE,
    TWO,
    LearnerBench,
    Log,
    actions,
    contribution,
    digest_of,
    disconnected,
    facts,
    layout,
    merged,
    rounds,
    weights,
)

H = 3
TINY = tiny_project(SYNCER.key, rounds=rounds(local_steps=H), moments="peer")
BLOBS = tuple(digest_of("moments", at) for at in range(FRAGMENTS))


def dialled(effects):
    return [e.peer for e in effects if isinstance(e, Connect)]


class RejoinBench(LearnerBench):
    """A learner of a project that shares moments, in a log with one merge."""

    def __init__(self, tiny=TINY):
        super().__init__(tiny=tiny)
        self.log = Log(SeatTaken(SYNCER.key), weights(), tiny=tiny)
        self.step = 0
        self.merge()

    def merge(self, times=1):
        """So many more records; nothing of them is said yet."""
        entries = []
        for _ in range(times):
            fragment, version = self.step % FRAGMENTS, self.step // FRAGMENTS + 1
            self.step += 1
            entries.append(
                self.log.add(
                    merged(
                        round=self.step,
                        global_step=self.step,
                        fragment=fragment,
                        version=version,
                        contributions=(contribution(learner=THREE.key, incarnation=9),),
                    )
                )
            )
        return entries

    @property
    def asking(self):
        return self.machine.moments_client

    @property
    def giving(self):
        return self.machine.peer_exchange.moments_server

    def ready(self):
        """Admitted, the trainer is there, weights are still on their way."""
        self.follow(self.log)
        self.done(StartTrainer, TrainerReady("cpu", 2))
        return self

    def load(self):
        """Every fragment is held and delivered."""
        effects = []
        while self.jobs(FetchState):
            effects += self.done(FetchState, StateFetched(((TWO.key, 1),)))
        while jobs := self.jobs(Deliver):
            effects += self.done(Deliver, Delivered(jobs[0].version, 0, 0))
        return effects

    def find(self, *donors):
        return self.done(FindDonors, DonorsFound(tuple(donor.key for donor in donors)))

    def find_nobody(self):
        """Until it gives up."""
        for look in range(LOOKS_MAX):
            if look:
                self.wait(LOOK_EVERY_S)
            effects = self.find()
        return effects

    def clock(self):
        state = self.log.state
        return VectorClock(state.index, tuple(one.version for one in state.fragments))

    def ask(self, donor=TWO):
        """As far as the donor's answer."""
        self.ready()
        self.find(donor)
        self.feed(PeerUp(donor.key))
        return self

    def train(self, steps=20):
        """Trains with fresh moments, for others to ask."""
        self.ready()
        self.load()
        self.find_nobody()
        self.feed(Note(Stepped(steps, steps * 32, 1.0, 0.3, 6.0, 7.0, Cursor(0, 0))))
        return self

    def has_begun(self):
        return bool(actions(self.effects, BeginSteps))


@pytest.fixture
def bench():
    return RejoinBench()


# The way through.


def test_the_clock_is_asked_for_checked_and_the_moments_are_installed_before_the_first_step(bench):
    bench.ready()
    assert bench.asking.state is Rejoin.SEEKING
    assert dialled(bench.find(TWO)) == [TWO.key]
    bench.feed(PeerUp(TWO.key))
    ask = bench.last(TWO.key, AskMoments)
    assert (ask.project, ask.layout) == (TINY.project, layout(TINY).digest)
    assert ask.clock == bench.clock()
    bench.say(TWO.key, MomentsReady(bench.clock(), BLOBS))
    assert bench.jobs(FetchMoments) == [FetchMoments(TWO.key, BLOBS, TINY.charter.inner)]
    effects = bench.done(FetchMoments, MomentsFetched())
    assert disconnected(effects) == [TWO.key]
    assert bench.asking.state is Rejoin.HOLDING
    assert not bench.jobs(InstallMoments)
    bench.load()
    assert bench.jobs(InstallMoments)
    assert not bench.has_begun()
    effects = bench.done(InstallMoments, MomentsInstalled(77))
    (taken,) = facts(effects, MomentsTaken)
    assert (taken.donor, taken.steps, taken.behind) == (TWO.key, 77, 0)
    assert bench.has_begun()
    assert bench.asking.state is Rejoin.SEASONED


def test_weights_do_not_wait_for_moments(bench):
    bench.ask()
    bench.load()
    assert bench.machine.trainer_control.state == "starting"
    assert all(
        track.standing == track.held for track in bench.machine.fragment_sync.local_fragments
    )


@pytest.mark.parametrize("age", ["record", "version", "fragments"])
def test_a_snapshot_from_before_the_clock_is_an_offence(bench, age):
    bench.ask()
    clock = bench.clock()
    older = {
        "record": VectorClock(clock.log_index - 1, clock.versions),
        "version": VectorClock(clock.log_index + 9, (0, *clock.versions[1:])),
        "fragments": VectorClock(clock.log_index + 9, clock.versions[:-1]),
    }
    effects = bench.say(TWO.key, MomentsReady(older[age], BLOBS))
    assert facts(effects, PeerMisbehaved)[0].reason == "unexpected-message"
    assert TWO.key in disconnected(effects)
    assert not bench.jobs(FetchMoments)
    assert bench.asking.state is Rejoin.FRESH


def test_a_snapshot_that_is_newer_than_asked_for_is_welcome(bench):
    bench.ask()
    clock = bench.clock()
    newer = VectorClock(clock.log_index + 5, tuple(one + 1 for one in clock.versions))
    bench.say(TWO.key, MomentsReady(newer, BLOBS))
    assert bench.jobs(FetchMoments)


def test_what_somebody_else_says_about_moments_is_not_heard(bench):
    bench.ask()
    bench.say(THREE.key, MomentsReady(bench.clock(), BLOBS))
    bench.say(THREE.key, MomentsRefused("busy"))
    bench.feed(PeerDown(THREE.key, "left"))
    assert bench.asking.state is Rejoin.ASKING
    assert not bench.jobs(FetchMoments)


# Other donors, and none.


@pytest.mark.parametrize("way", ["refused", "down", "silent", "not fetched"])
def test_another_donor_is_asked_after_the_first_failed(bench, way):
    bench.ready()
    bench.find(TWO, THREE)
    bench.feed(PeerUp(TWO.key))
    match way:
        case "refused":
            effects = bench.say(TWO.key, MomentsRefused("busy"))
        case "down":
            effects = bench.feed(PeerDown(TWO.key, "crashed"))
        case "silent":
            effects = bench.wait(ANSWER_S_MAX + 0.1)
        case _:
            bench.say(TWO.key, MomentsReady(bench.clock(), BLOBS))
            effects = bench.done(FetchMoments, Failed("not held"))
    assert dialled(effects) == [THREE.key]
    assert actions(effects, ForgetMoments)
    assert bench.asking.donor == THREE.key


def test_a_donor_that_cannot_be_dialled_is_passed_over(bench):
    bench.ready()
    bench.find(TWO, THREE)
    assert dialled(bench.feed(PeerDown(TWO.key, "unreachable"))) == [THREE.key]


def test_where_no_donors_are_found_they_are_looked_for_again(bench):
    bench.ready()
    bench.load()
    bench.find()
    assert bench.asking.state is Rejoin.SEEKING
    assert not bench.jobs(FindDonors)
    assert bench.wake_s <= bench.now_s + LOOK_EVERY_S
    bench.wait(LOOK_EVERY_S)
    assert dialled(bench.find(TWO)) == [TWO.key]


def test_after_some_looks_it_does_without(bench):
    bench.ready()
    bench.load()
    assert not bench.has_begun()
    bench.find_nobody()
    assert bench.asking.state is Rejoin.FRESH
    assert bench.asking.detail == "no other learner was found"
    assert bench.has_begun()
    bench.wait(LOOK_EVERY_S)
    assert not bench.jobs(FindDonors)


def test_a_new_clock_gives_no_further_looks(bench):
    bench.ready()
    bench.find()
    bench.commit(*bench.merge(H + 1))
    assert bench.jobs(FindDonors)
    bench.find()
    bench.wait(LOOK_EVERY_S)
    bench.find()
    assert bench.asking.state is Rejoin.FRESH


def test_neither_the_syncer_nor_itself_is_asked(bench):
    bench.ready()
    assert dialled(bench.find(SYNCER, ONE)) == []
    assert bench.asking.state is Rejoin.SEEKING


def test_only_some_donors_are_asked(bench):
    bench.ready()
    bench.find(*[TWO, THREE] * DONORS_ASKED_MAX)
    for _ in range(DONORS_ASKED_MAX):
        bench.feed(PeerDown(bench.asking.donor, "unreachable"))
    assert bench.asking.state is Rejoin.FRESH


def test_a_donor_that_answers_the_dial_too_late_is_hung_up_on(bench):
    bench.ready()
    bench.find(TWO)
    bench.commit(*bench.merge(H + 1))
    effects = bench.feed(PeerUp(TWO.key))
    assert disconnected(effects) == [TWO.key]
    assert bench.last(TWO.key, AskMoments) is None


def test_the_end_of_a_former_stream_is_not_the_failure_of_the_next(bench):
    bench.ask()
    bench.commit(*bench.merge(H + 1))
    bench.find(TWO)
    bench.feed(PeerDown(TWO.key, "closed by us"))
    assert bench.asking.state is Rejoin.CONNECTING
    bench.feed(PeerUp(TWO.key))
    assert bench.asking.state is Rejoin.ASKING
    bench.feed(PeerDown(TWO.key, "crashed"))
    assert bench.asking.state is Rejoin.FRESH


def test_a_dial_that_leads_nowhere_is_given_up(bench):
    bench.ready()
    bench.find(TWO, THREE)
    assert dialled(bench.wait(ANSWER_S_MAX + 0.1)) == [THREE.key]


def test_a_stream_that_another_learner_opened_is_left_alone(bench):
    bench.ready()
    assert disconnected(bench.feed(PeerUp(THREE.key))) == []


# Time.


def test_h_global_steps_are_not_too_many(bench):
    bench.ask()
    bench.commit(*bench.merge(H))
    assert bench.asking.state is Rejoin.ASKING


@pytest.mark.parametrize("state", ["asking", "fetching", "holding"])
def test_more_than_h_global_steps_mean_a_fresh_clock(bench, state):
    bench.ask()
    if state != "asking":
        bench.say(TWO.key, MomentsReady(bench.clock(), BLOBS))
    if state == "holding":
        bench.done(FetchMoments, MomentsFetched())
    effects = bench.commit(*bench.merge(H + 1))
    assert actions(effects, ForgetMoments)
    assert bench.asking.state is Rejoin.SEEKING
    bench.find(TWO)
    bench.feed(PeerUp(TWO.key))
    assert bench.last(TWO.key, AskMoments).clock == bench.clock()


def test_what_an_outrun_fetch_brings_is_not_used(bench):
    bench.ask()
    bench.say(TWO.key, MomentsReady(bench.clock(), BLOBS))
    bench.commit(*bench.merge(H + 1))
    bench.load()
    bench.done(FetchMoments, MomentsFetched())
    assert bench.asking.state is Rejoin.SEEKING
    assert not bench.jobs(InstallMoments)


def test_clocks_are_tried_a_few_times_only(bench):
    bench.ready()
    for _ in range(TARGETS_MAX - 1):
        bench.commit(*bench.merge(H + 1))
        assert bench.asking.state is Rejoin.SEEKING
    bench.commit(*bench.merge(H + 1))
    assert bench.asking.state is Rejoin.FRESH


def test_a_trainer_with_all_its_weights_waits_for_a_bounded_time(bench):
    bench.ask()
    bench.load()
    bench.wait(WAIT_S_MAX - 0.1)
    assert not bench.has_begun()
    assert bench.wake_s <= bench.now_s + 0.2
    bench.wait(0.2)
    assert bench.asking.state is Rejoin.FRESH
    assert bench.has_begun()


def test_without_a_syncer_it_waits_only_briefly(bench):
    bench.train()
    bench.feed(PeerDown(SYNCER.key, "crashed"))
    bench.feed(Note(TrainerLost(False, "killed")))
    bench.wait(1.5)
    bench.done(StartTrainer, TrainerReady("cpu", 2))
    begun = len(actions(bench.effects, BeginSteps))
    bench.load()
    assert bench.asking.state is Rejoin.TARGETING
    bench.wait(UNSUBSCRIBED_S_MAX + 0.1)
    assert bench.asking.state is Rejoin.FRESH
    assert len(actions(bench.effects, BeginSteps)) == begun + 1


# Trainers that die, and settings.


@pytest.mark.parametrize("state", ["seeking", "asking", "fetching", "holding", "installing"])
def test_a_lost_trainer_ends_a_recovery_and_the_next_one_begins_its_own(bench, state):
    bench.ready()
    if state != "seeking":
        bench.find(TWO)
        bench.feed(PeerUp(TWO.key))
    if state not in ("seeking", "asking"):
        bench.say(TWO.key, MomentsReady(bench.clock(), BLOBS))
    if state in ("holding", "installing"):
        bench.done(FetchMoments, MomentsFetched())
    if state == "installing":
        bench.load()
    assert bench.asking.state.name.lower() == state
    effects = bench.feed(Note(TrainerLost(False, "killed")))
    assert actions(effects, ForgetMoments)
    assert bench.asking.state is Rejoin.IDLE
    bench.wait(1.5)
    bench.done(StartTrainer, TrainerReady("cpu", 2))
    assert bench.asking.state is Rejoin.SEEKING
    for kind, late in ((FetchMoments, MomentsFetched()), (InstallMoments, MomentsInstalled(1))):
        if bench.jobs(kind):
            bench.done(kind, late)
    assert bench.asking.state is Rejoin.SEEKING
    assert not bench.has_begun()


def test_moments_that_cannot_be_installed_are_done_without(bench):
    bench.ask()
    bench.say(TWO.key, MomentsReady(bench.clock(), BLOBS))
    bench.done(FetchMoments, MomentsFetched())
    bench.load()
    bench.done(InstallMoments, Failed("gone"))
    assert bench.asking.state is Rejoin.FRESH
    assert bench.has_begun()


def test_nobody_is_asked_before_anything_was_merged():
    bench = RejoinBench()
    bench.log = Log(SeatTaken(SYNCER.key), weights(), tiny=TINY)
    bench.ready()
    assert bench.asking.state is Rejoin.FRESH
    assert not bench.jobs(FindDonors)


@pytest.mark.parametrize(
    "changes",
    [{"moments": "fresh"}, {"beta1": 0.99}, {"beta2": 1.0}],
    ids=["fresh", "unbounded", "without decay"],
)
def test_some_settings_leave_no_choice_but_fresh_moments(changes):
    inner = msgspec.structs.replace(TINY.charter.inner, **changes)
    charter = msgspec.structs.replace(TINY.charter, inner=inner)
    bench = RejoinBench(
        type(TINY)(TINY.genesis, TINY.genesis_bytes, TINY.project, charter, TINY.owner)
    )
    bench.ready()
    bench.load()
    assert not bench.jobs(FindDonors)
    assert bench.has_begun()


def test_an_owner_may_keep_to_fresh_moments(bench):
    shared = bench.machine.context
    shared.setup = dataclasses.replace(shared.setup, shares_moments=False)
    bench.ready()
    bench.load()
    assert not bench.jobs(FindDonors)
    assert bench.has_begun()


def test_every_open_state_has_a_way_out():
    for state in Rejoin:
        if state in (Rejoin.IDLE, Rejoin.FRESH, Rejoin.SEASONED, Rejoin.OWN):
            continue
        assert REJOIN_TRANSITIONS[state, "gave up"] is Rejoin.FRESH
        assert REJOIN_TRANSITIONS[state, "trainer lost"] is Rejoin.IDLE


# The giving side.


def ask_for(bench, peer=TWO, clock=None, **changes):
    usual = AskMoments(TINY.project, layout(TINY).digest, clock or bench.clock())
    bench.feed(PeerUp(peer.key))
    return bench.say(peer.key, msgspec.structs.replace(usual, **changes))


def refusal(bench, peer=TWO):
    said = bench.last(peer.key, MomentsRefused)
    return said.reason if said else None


def test_a_snapshot_is_taken_offered_and_withdrawn_when_the_asker_closes(bench):
    bench.train()
    ask_for(bench)
    assert bench.giving.state is MomentsServerState.CAPTURING
    bench.done(CaptureMoments, MomentsCaptured(BLOBS))
    assert bench.last(TWO.key, MomentsReady) == MomentsReady(bench.clock(), BLOBS)
    effects = bench.feed(PeerDown(TWO.key, "done"))
    assert actions(effects, WithdrawMoments)
    assert bench.giving.state is MomentsServerState.IDLE


def test_the_answer_waits_until_the_own_clock_has_observed_the_other(bench):
    bench.train()
    entries = bench.merge(2)
    ask_for(bench)
    assert not bench.jobs(CaptureMoments)
    bench.commit(*entries)
    assert not bench.jobs(CaptureMoments), (
        "records are there, the inner loop does not stand on them"
    )
    while True:
        fetched = [start for start in bench.held if type(start.job).__name__ == "Advance"]
        if not fetched:
            break

        bench.done(Advance, Advanced())
    while jobs := bench.jobs(Deliver):
        bench.done(Deliver, Delivered(jobs[0].version, 20, 640))
    assert bench.jobs(CaptureMoments)
    bench.done(CaptureMoments, MomentsCaptured(BLOBS))
    assert bench.last(TWO.key, MomentsReady).clock.has_observed(bench.clock())


def test_whoever_is_too_far_ahead_is_refused_after_a_while(bench):
    bench.train()
    bench.merge(2)
    ask_for(bench)
    bench.wait(BEHIND_S_MAX - 0.1)
    assert refusal(bench) is None
    effects = bench.wait(0.2)
    assert refusal(bench) == "behind"
    assert disconnected(effects) == [TWO.key]


def test_the_snapshot_is_shared_by_all_whom_its_clock_suits(bench):
    bench.train()
    ask_for(bench, TWO)
    ask_for(bench, THREE)
    bench.done(CaptureMoments, MomentsCaptured(BLOBS))
    for peer in (TWO, THREE):
        assert bench.last(peer.key, MomentsReady) is not None
    assert actions(bench.feed(PeerDown(TWO.key, "done")), WithdrawMoments) == []
    assert actions(bench.feed(PeerDown(THREE.key, "done")), WithdrawMoments)


def test_a_snapshot_that_is_too_old_for_somebody_is_not_given_to_them(bench):
    bench.train()
    ask_for(bench, TWO)
    bench.done(CaptureMoments, MomentsCaptured(BLOBS))
    bench.merge()
    ask_for(bench, THREE)
    assert bench.last(THREE.key, MomentsReady) is None
    bench.wait(BEHIND_S_MAX + 0.1)
    assert refusal(bench, THREE) == "behind"


def test_a_snapshot_is_not_held_for_ever(bench):
    bench.train()
    ask_for(bench)
    bench.done(CaptureMoments, MomentsCaptured(BLOBS))
    bench.wait(OFFER_S_MAX - 0.1)
    assert bench.giving.state is MomentsServerState.OFFERING
    assert actions(bench.wait(0.2), WithdrawMoments)
    assert bench.giving.state is MomentsServerState.IDLE


def test_an_asker_that_dies_while_the_copy_is_made_leaves_nothing_behind(bench):
    bench.train()
    ask_for(bench)
    bench.feed(PeerDown(TWO.key, "crashed"))
    effects = bench.done(CaptureMoments, MomentsCaptured(BLOBS))
    assert actions(effects, WithdrawMoments)
    assert bench.giving.state is MomentsServerState.IDLE
    assert bench.last(TWO.key, MomentsReady) is None


def test_a_trainer_that_dies_while_the_copy_is_made_is_told(bench):
    bench.train()
    ask_for(bench)
    bench.done(CaptureMoments, Failed("the trainer ended"))
    assert refusal(bench) == "idle"
    assert bench.giving.state is MomentsServerState.IDLE


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"project": digest_of("other")}, "wrong-project"),
        ({"layout": digest_of("other")}, "wrong-project"),
        ({"clock": VectorClock(1, (0,))}, "wrong-project"),
    ],
    ids=["project", "layout", "fragments"],
)
def test_questions_of_another_model_are_refused(bench, changes, reason):
    bench.train()
    ask_for(bench, **changes)
    assert refusal(bench) == reason


def test_a_learner_without_a_trainer_refuses(bench):
    ask_for(bench.ready())
    assert refusal(bench) == "idle"


def test_a_learner_whose_moments_are_young_refuses(bench):
    inner = msgspec.structs.replace(TINY.charter.inner, fresh_moment_steps=30)
    charter = msgspec.structs.replace(TINY.charter, inner=inner)
    bench = RejoinBench(
        type(TINY)(TINY.genesis, TINY.genesis_bytes, TINY.project, charter, TINY.owner)
    )
    bench.train(steps=20)
    ask_for(bench)
    assert refusal(bench) == "young"


def test_a_project_that_wants_fresh_moments_gives_none():
    tiny = tiny_project(SYNCER.key)
    bench = RejoinBench(tiny)
    bench.ready()
    bench.load()
    ask_for(bench, project=tiny.project, layout=layout(tiny).digest)
    assert refusal(bench) == "off"


def test_an_owner_may_give_none(bench):
    bench.train()
    shared = bench.machine.context
    shared.setup = dataclasses.replace(shared.setup, shares_moments=False)
    ask_for(bench)
    assert refusal(bench) == "off"


def test_nobody_gets_moments_again_and_again(bench):
    bench.train()
    ask_for(bench, TWO)
    ask_for(bench, THREE)
    bench.done(CaptureMoments, MomentsCaptured(BLOBS))
    bench.feed(PeerDown(TWO.key, "done"))
    ask_for(bench, TWO)
    bench.wait(GIVE_EVERY_S - 0.1)
    assert len(bench.all(TWO.key, MomentsReady)) == 1
    bench.wait(0.2)
    assert len(bench.all(TWO.key, MomentsReady)) == 2


def test_snapshots_are_rationed_for_all_together(bench):
    bench.train()
    ask_for(bench, TWO)
    bench.done(CaptureMoments, MomentsCaptured(BLOBS))
    bench.feed(PeerDown(TWO.key, "done"))
    bench.wait(1.0)
    ask_for(bench, THREE)
    assert not bench.jobs(CaptureMoments)
    bench.wait(SNAPSHOT_EVERY_S - 1.0)
    assert bench.jobs(CaptureMoments)


def test_only_so_many_may_wait(bench):

    bench.train()
    bench.merge()
    crowd = [SimSigner(f"asker {at}") for at in range(WAITING_MAX + 1)]
    for one in crowd:
        ask_for(bench, one)
    assert [refusal(bench, one) for one in crowd] == [None] * WAITING_MAX + ["busy"]


def test_asking_twice_while_waiting_is_refused(bench):
    bench.train()
    bench.merge()
    ask_for(bench)
    ask_for(bench)
    assert refusal(bench) == "too-soon"
