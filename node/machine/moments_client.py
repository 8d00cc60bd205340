"""Getting a (re)started learner's optimizer state from another learner, by vector clock.

    subscribe -> the clock then is V* -> find a donor -> it answers once its clock has observed V*
    -> fetch and check -> all weights are there -> install -> begin

Weights do not wait for this: they follow the log meanwhile, so that what was merged after V* is
applied before the first local step. If more than H global steps were merged meanwhile, all of it
starts over with a fresh V*. Whatever goes wrong ends in fresh moments with their short ramp. Only
moments and their step counters are taken over: the counters of local steps and tokens, leased
text and the random stream are the learner's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from node.machine import jobs
from node.machine.context import LearnerContext
from protocol.errors import UnexpectedMessage
from protocol.ids import JobId, short
from protocol.machine import Connect, Disconnect, Failed, Job
from protocol.messages import AskMoments, MomentsReady, MomentsRefused
from protocol.snapshots.vector_clock import VectorClock
from protocol.trace import MomentsTaken, RejoinChanged

TARGETS_MAX = 3
"""Clocks that a recovery may aim at before it is given up."""

DONORS_ASKED_MAX = 4
"""Learners asked for each clock."""

ANSWER_S_MAX = 60.0
"""A donor that has said nothing for so long is given up; copying a large state takes a while."""

WAIT_S_MAX = 60.0
"""A trainer that has all its weights stands still for so long at most."""

LOOKS_MAX = 3
"""Times that learners are looked for where none is found."""

LOOK_EVERY_S = 5.0
"""Who came back just now is in the swarm's table after so long; a look is as old at most."""

UNSUBSCRIBED_S_MAX = 5.0
"""... and for so long while there is no syncer to subscribe to."""


class Rejoin(Enum):
    """Where the recovery of the optimizer state stands."""

    IDLE = "no trainer to recover"
    TARGETING = "waiting for a clock"
    SEEKING = "looking for a donor"
    CONNECTING = "connecting to a donor"
    ASKING = "waiting for a snapshot"
    FETCHING = "fetching moments"
    HOLDING = "moments are here"
    INSTALLING = "installing moments"
    SEASONED = "moments of another learner"
    FRESH = "fresh moments"
    OWN = "own moments, of a snapshot"


_OPEN = (
    Rejoin.TARGETING,
    Rejoin.SEEKING,
    Rejoin.CONNECTING,
    Rejoin.ASKING,
    Rejoin.FETCHING,
    Rejoin.HOLDING,
)
REJOIN_TRANSITIONS: dict[tuple[Rejoin, str], Rejoin] = {
    (Rejoin.IDLE, "trainer ready"): Rejoin.TARGETING,
    (Rejoin.IDLE, "not wanted"): Rejoin.FRESH,
    (Rejoin.IDLE, "restored"): Rejoin.OWN,
    (Rejoin.TARGETING, "subscribed"): Rejoin.SEEKING,
    (Rejoin.SEEKING, "found"): Rejoin.CONNECTING,
    (Rejoin.CONNECTING, "up"): Rejoin.ASKING,
    (Rejoin.ASKING, "ready"): Rejoin.FETCHING,
    (Rejoin.FETCHING, "fetched"): Rejoin.HOLDING,
    (Rejoin.HOLDING, "weights stand"): Rejoin.INSTALLING,
    (Rejoin.INSTALLING, "installed"): Rejoin.SEASONED,
    (Rejoin.CONNECTING, "next donor"): Rejoin.SEEKING,
    (Rejoin.ASKING, "next donor"): Rejoin.SEEKING,
    (Rejoin.FETCHING, "next donor"): Rejoin.SEEKING,
    **{(state, "outrun"): Rejoin.TARGETING for state in _OPEN[1:]},
    **{(state, "gave up"): Rejoin.FRESH for state in (*_OPEN, Rejoin.INSTALLING)},
    **{(state, "trainer lost"): Rejoin.IDLE for state in Rejoin if state is not Rejoin.IDLE},
}


@dataclass(frozen=True, slots=True)
class Target:
    """Where the swarm stood when this learner subscribed."""

    clock: VectorClock
    global_step: int


class MomentsClient:
    """The asking side."""

    def __init__(self, context: LearnerContext) -> None:
        self.context = context
        self.state = Rejoin.IDLE
        self.detail = ""
        self.donor: bytes | None = None
        """Who is asked, or whose moments these are."""
        self._targets = 0
        self._target: Target | None = None
        self._looks = 0
        """Times that learners were looked for and none was found."""
        self._look_s: float | None = None
        """When they are looked for again."""
        self._donors: list[bytes] = []
        self._dialled: set[bytes] = set()
        self._up: set[bytes] = set()
        """Peers with a stream, whoever opened it."""
        self._closing: set[bytes] = set()
        """Those whose stream we closed and whose end was not told yet."""
        self._job: JobId | None = None
        self._clock: VectorClock | None = None
        """The donor's when its snapshot began."""
        self._asked_s = 0.0
        self._waited_since_s: float | None = None

    @property
    def is_open(self) -> bool:
        """Whether something is still being tried."""
        return self.state in _OPEN or self.state is Rejoin.INSTALLING

    # From the trainer.

    def on_trainer_ready(self) -> None:
        """A new inner loop is there, without moments.

        Not before: its start may take longer than H global steps.
        """
        context = self.context
        inner = context.charter.inner if context.charter is not None else None
        is_wanted = (
            inner is not None
            and inner.moments == "peer"
            and inner.bounds_moments
            and context.setup.shares_moments
        )
        self._targets = self._looks = 0
        self._waited_since_s = None
        if is_wanted:
            self._fire("trainer ready", "")
        else:
            self.state = REJOIN_TRANSITIONS[self.state, "not wanted"]

    def on_trainer_restored(self) -> None:
        """A new inner loop goes on from a snapshot, with the moments that it had then."""
        self._waited_since_s = None
        self._fire("restored", "")

    def on_trainer_lost(self) -> None:
        """Whatever was under way was for a trainer that is gone."""
        if self.state is Rejoin.IDLE:
            return
        self._let_go("the trainer is gone")
        self.state = REJOIN_TRANSITIONS[self.state, "trainer lost"]

    def may_begin(self) -> bool:
        """Asked while the trainer has all its weights: whether it should step now."""
        if self._waited_since_s is None:
            self._waited_since_s = self.context.now_s
        self.look()
        if self.state is Rejoin.HOLDING:
            self._fire("weights stand", "")
            self._start(jobs.InstallMoments())
        return self.state in (Rejoin.SEASONED, Rejoin.FRESH, Rejoin.OWN)

    def look(self) -> None:
        """Do what time or the log has made due."""
        if self.state is Rejoin.TARGETING:
            self._subscribe()
        elif self.state in _OPEN and self._is_outrun():
            self._let_go("outrun")
            if self._targets >= TARGETS_MAX:
                self._give_up(f"the swarm moved on {self._targets} times")
            else:
                self._fire("outrun", "more than H global steps were merged meanwhile")
                self._subscribe()
        now_s, since_s = self.context.now_s, self._waited_since_s
        if self._look_s is not None and now_s >= self._look_s:
            self._find()
        is_asking = self.state in (Rejoin.CONNECTING, Rejoin.ASKING)
        if is_asking and now_s >= self._asked_s + ANSWER_S_MAX:
            self._next_donor(f"no answer within {ANSWER_S_MAX:.0f} s")
        if since_s is None or self.state not in _OPEN:
            return
        if now_s >= since_s + WAIT_S_MAX:
            self._give_up(f"not done after {WAIT_S_MAX:.0f} s of waiting")
        elif self.state is Rejoin.TARGETING and now_s >= since_s + UNSUBSCRIBED_S_MAX:
            self._give_up("there is no syncer to subscribe to")

    def deadline_s(self) -> float | None:
        """When `look` is due if nothing happens before."""
        times = []
        if self.state in (Rejoin.CONNECTING, Rejoin.ASKING):
            times.append(self._asked_s + ANSWER_S_MAX)
        if self._look_s is not None:
            times.append(self._look_s)
        if self._waited_since_s is not None and self.state in _OPEN:
            is_unsubscribed = self.state is Rejoin.TARGETING
            for_s = UNSUBSCRIBED_S_MAX if is_unsubscribed else WAIT_S_MAX
            times.append(self._waited_since_s + for_s)
        return min(times, default=None)

    # From the donor.

    def on_peer_up(self, peer: bytes) -> None:
        was_dialled = peer in self._dialled
        self._dialled.discard(peer)
        self._up.add(peer)
        if peer != self.donor or self.state is not Rejoin.CONNECTING:
            if was_dialled:  # Given up meanwhile; a stream that others opened is theirs.
                self._close(peer, "no longer needed")
            return
        assert self._target is not None, "a donor is dialled for a target"
        self._fire("up", short(peer))
        setup = self.context.setup
        ask = AskMoments(setup.project, setup.layout_digest, self._target.clock)
        self.context.effects.send(peer, ask)

    def on_peer_down(self, peer: bytes, reason: str) -> None:
        self._up.discard(peer)
        if peer in self._closing:
            self._closing.discard(peer)
            return  # The end of a former stream; the same donor may be dialled anew already.
        self._dialled.discard(peer)
        if peer == self.donor and self.state in (Rejoin.CONNECTING, Rejoin.ASKING):
            self._next_donor(reason)

    def on_ready(self, peer: bytes, ready: MomentsReady) -> None:
        """Raises UnexpectedMessage for a snapshot that is older than what was asked for."""
        if peer != self.donor or self.state is not Rejoin.ASKING:
            return  # Of a donor that was given up.
        assert self._target is not None, "a donor is asked for a target"
        if not ready.clock.has_observed(self._target.clock):
            raise UnexpectedMessage("a snapshot from before the clock that was asked for")
        self._clock = ready.clock
        self._fire("ready", short(peer))
        assert self.context.charter is not None, "a charter comes before any donor"
        self._start(jobs.FetchMoments(peer, ready.blobs, self.context.charter.inner))

    def on_refused(self, peer: bytes, refused: MomentsRefused) -> None:
        if peer == self.donor and self.state is Rejoin.ASKING:
            self._next_donor(f"{short(peer)} refused: {refused.reason}")

    def on_fault(self, peer: bytes, reason: str) -> None:
        """The donor broke a rule: another one is asked."""
        if peer == self.donor and self.state in (Rejoin.CONNECTING, Rejoin.ASKING):
            self._next_donor(reason)

    # Answers.

    def on_job(self, number: JobId, job: Job, result: object) -> None:
        """An answer; that of a job that nobody waits for any more changes nothing."""
        if number != self._job:
            return
        self._job = None
        match job, result:
            case jobs.FindDonors(), jobs.DonorsFound(donors):
                unfit = (self.context.setup.signer.key, self.context.leader)
                self._donors = [key for key in donors if key not in unfit][:DONORS_ASKED_MAX]
                if self._donors:
                    self._dial()
                else:
                    self._found_nobody()
            case jobs.FetchMoments(), jobs.MomentsFetched():
                self._hang_up("fetched")
                self._fire("fetched", short(job.donor))
            case jobs.InstallMoments(), jobs.MomentsInstalled(steps):
                self._installed(steps)
            case jobs.FetchMoments(), _:
                self._next_donor(result.reason if isinstance(result, Failed) else "not fetched")
            case _:
                self._give_up(result.reason if isinstance(result, Failed) else "not possible")

    # Inside.

    def _fire(self, trigger: str, detail: str) -> None:
        self.state = REJOIN_TRANSITIONS[self.state, trigger]
        self.detail = detail
        self.context.effects.emit(RejoinChanged(self.state.value, detail))

    def _start(self, job: Job) -> None:
        self._job = self.context.effects.start(job)

    def _is_outrun(self) -> bool:
        context = self.context
        if self._target is None or context.charter is None:
            return False
        merged = context.state.global_step - self._target.global_step
        return merged > context.charter.rounds.local_steps

    def _subscribe(self) -> None:
        """Take the present clock as the target, as soon as there is one."""
        context = self.context
        if not context.is_following or not context.state.has_weights:
            return
        state = context.state
        if state.global_step == 0:
            self._give_up("nobody has trained yet")
            return
        versions = tuple(fragment.version for fragment in state.fragments)
        self._target = Target(VectorClock(state.newest_version_index, versions), state.global_step)
        self._targets += 1
        self._fire("subscribed", f"at record {state.index}")
        self._find()

    def _find(self) -> None:
        self._look_s = None
        self._start(jobs.FindDonors())

    def _found_nobody(self) -> None:
        """A learner that came back just now may not be in the swarm's table yet."""
        self._looks += 1
        if self._looks < LOOKS_MAX:
            self._look_s = self.context.now_s + LOOK_EVERY_S
        else:
            self._give_up("no other learner was found")

    def _dial(self) -> None:
        if not self._donors:
            self._give_up(self.detail or "no learner could provide it")
            return
        self.donor = self._donors.pop(0)
        self._fire("found", short(self.donor))
        self._dialled.add(self.donor)
        self._asked_s = self.context.now_s
        self.context.effects.out.append(Connect(self.donor))

    def _next_donor(self, reason: str) -> None:
        self._let_go(reason)
        self._fire("next donor", reason)
        self._dial()

    def _give_up(self, reason: str) -> None:
        self._let_go(reason)
        self._fire("gave up", reason)

    def _let_go(self, reason: str) -> None:
        """Nobody waits for this donor, this job or these arrays any more."""
        self._hang_up(reason)
        self._job = self._look_s = None
        self.donor = self._clock = None
        self.context.effects.do(jobs.ForgetMoments())

    def _hang_up(self, reason: str) -> None:
        is_talking = self.state in (Rejoin.CONNECTING, Rejoin.ASKING, Rejoin.FETCHING)
        if is_talking and self.donor is not None:
            self._close(self.donor, reason)

    def _close(self, peer: bytes, reason: str) -> None:
        if peer in self._up:
            self._closing.add(peer)
        self.context.effects.out.append(Disconnect(peer, reason[:64]))

    def _installed(self, steps: int) -> None:
        assert self.donor is not None, "moments have a donor"
        assert self._target is not None, "moments were asked for with a target"
        assert self._clock is not None, "moments came with a clock"
        self._fire("installed", f"from {short(self.donor)}")
        target, clock = self._target, self._clock
        self.context.effects.emit(
            MomentsTaken(
                donor=self.donor,
                asked=(target.clock.log_index, *target.clock.versions),
                given=(clock.log_index, *clock.versions),
                behind=self.context.state.global_step - target.global_step,
                steps=steps,
            )
        )
