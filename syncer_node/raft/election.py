"""Who leads: silence, trial, candidacy, votes; and how a leader learns that it leads no more.

    following --silence--> asking --would win--> standing --elected--> leading

A trial changes nobody's term, so that a voter that was cut off does not disturb the others when
it comes back. Raft: Ongaro and Ousterhout, USENIX ATC 2014; Ongaro's thesis for trial (pre-vote),
handover and leader stickiness.
"""

from __future__ import annotations

from protocol import limits
from protocol.errors import UnexpectedMessage
from protocol.log.records import Electorate, seat_statement
from protocol.messages import AskVote, GiveVote, HandOver, Vote
from syncer_node.raft.context import Context, PeerVoter, Role

RETRY_S = (0.4, 1.2)
"""Pause after a candidacy that brought no majority, drawn anew each time."""

RENEW_EVERY_S = 2.0

NO_SIGNATURE = bytes(64)


class Election:
    """This voter's part in choosing leaders."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.is_drained = False
        """This host gave the seat away on purpose and does not stand again."""
        self.deadline_s = 0.0
        self.seat_votes: tuple[Vote, ...] = ()
        """Proof that this voter was elected, while it leads."""
        self._given: set[bytes] = set()
        """Who would give, or gave, its vote."""
        self._votes: dict[bytes, Vote] = {}
        self._is_handover = False
        self._renewed_s = -1e9

    def start(self) -> None:
        """Wait for a leader first; a voter that is alone need not."""
        is_alone = len(self.context.log.charter.voters) == 1
        self.deadline_s = self.context.now_s + (0.0 if is_alone else self._timeout_s())

    def look(self) -> None:
        """Stand when the leader has been silent; step down when nobody hears this leader."""
        context = self.context
        if context.is_leading:
            self._check_reach()
            self._renew_proof()
        elif context.now_s >= self.deadline_s:
            if self._may_stand():
                self._try()
            else:
                self.deadline_s = context.now_s + self._timeout_s()

    # As a voter.

    def heard_leader(self, leader: bytes) -> None:
        """The leader of this term spoke."""
        context = self.context
        if context.role in (Role.TRYING, Role.STANDING):
            context.fire("leader", f"{leader[:4].hex()} leads")
        context.leader, context.leader_heard_s = leader, context.now_s
        self.deadline_s = context.now_s + self._timeout_s()

    def on_term(self, term: int) -> None:
        """A higher term was heard of: whatever this voter was in the former is over.

        Raises UnexpectedMessage for one that cannot have come: it would leave none for later.
        """
        context = self.context
        if term <= context.term:
            return
        if term > context.term + limits.TERM_STEP_MAX:
            raise UnexpectedMessage(f"term {term} cannot have begun after term {context.term}")
        if context.is_leading:
            self.depose(f"term {term} has begun")
        elif context.role is not Role.FOLLOWING:
            context.fire("leader", f"term {term} has begun")
            self.deadline_s = context.now_s + self._timeout_s()
        context.leader = None
        context.remember(context.ballot.in_term(term, None))

    def on_ask(self, peer: PeerVoter, ask: AskVote) -> None:
        """Somebody stands, or asks whether it should."""
        context = self.context
        if ask.epoch != context.epoch:
            return
        is_stable = ask.is_handover or not context.is_leader_alive()
        may_lead = is_stable and self._is_up_to_date(ask) and self._is_syncer(peer.key)
        may_lead = may_lead and context.is_whole and self._has_origin(ask)
        if ask.is_trial:
            is_granted = may_lead and ask.term > context.term
            self._answer(peer, ask, is_granted=is_granted)
            return
        if is_stable:
            self.on_term(ask.term)
        if (ask.term, peer.key) == (context.term, context.leader):
            self._acknowledge(peer, ask)
            return
        is_free = context.ballot.voted_for in (None, peer.key)
        is_granted = may_lead and ask.term == context.term and is_free and not context.is_leading
        if is_granted:
            context.remember(context.ballot.in_term(ask.term, peer.key))
            self.deadline_s = context.now_s + self._timeout_s()
        self._answer(peer, ask, is_granted=is_granted)

    def _acknowledge(self, peer: PeerVoter, ask: AskVote) -> None:
        """Sign for the leader of this term, whomever this voter wanted.

        It leads, so a majority elected it: no other candidate of this term can have one, and this
        signature, which names the leader, helps none. Learners need it where the charter changed.
        """
        context = self.context
        if context.ballot.voted_for is None:
            context.remember(context.ballot.in_term(ask.term, peer.key))
        self._answer(peer, ask, is_granted=True)

    def _has_origin(self, ask: AskVote) -> bool:
        origin = self.context.log.charter.origin
        return origin is None or ask.last_index >= origin.index

    def _answer(self, peer: PeerVoter, ask: AskVote, *, is_granted: bool) -> None:
        context = self.context
        term = ask.term if is_granted else context.term
        signature = NO_SIGNATURE
        if is_granted and not ask.is_trial:
            signature = self._sign(ask.term, peer.key)
        answer = GiveVote(context.epoch, term, ask.is_trial, is_granted, signature)
        context.say(peer.key, answer)

    def _is_up_to_date(self, ask: AskVote) -> bool:
        log = self.context.log
        return (ask.last_term, ask.last_index) >= (log.term_at(log.stable), log.stable)

    def _is_syncer(self, key: bytes) -> bool:
        """By any charter that may be in force: a voter may know less of them than a candidate."""
        context = self.context
        charters = (*context.log.charters_in_play(), context.newest_charter)
        voters = (charter.voter(key) for charter in charters)
        return any(voter is not None and voter.role == "syncer" for voter in voters)

    # As a candidate.

    def _may_stand(self) -> bool:
        return self._is_fit() and not self.is_drained

    def _is_fit(self) -> bool:
        """Whether this disk may be voted for: admitted, whole, and of this epoch."""
        context = self.context
        is_admitted = context.is_forming or context.log.is_admitted(
            context.key, context.ballot.disk
        )
        voter = context.log.voter(context.key)
        can_lead = voter is not None and voter.role == "syncer" and context.app.can_lead()
        return is_admitted and can_lead and context.is_whole and context.has_origin

    def _try(self) -> None:
        """Ask everybody whether they would vote for this host."""
        context = self.context
        if context.role is Role.FOLLOWING:
            context.leader = None
            context.fire("silence")
        elif context.role is Role.STANDING:
            context.fire("lost", "no majority")
        self._given = {context.key}
        self._is_handover = False
        self.deadline_s = context.now_s + limits.ELECTION_TIMEOUT_S_MIN / 2 + self._pause_s()
        for peer in context.greeted():
            self._ask(peer, is_trial=True)
        self._check_trial()

    def _check_trial(self) -> None:
        context = self.context
        if context.role is Role.TRYING and context.is_majority(self._given):
            context.fire("would win")
            self._stand()

    def on_hand_over(self, peer: PeerVoter, order: HandOver) -> None:
        """The leader wants this host to take the seat now."""
        context = self.context
        is_order = (order.epoch, order.term) == (context.epoch, context.term)
        is_follower = peer.key == context.leader and context.role is Role.FOLLOWING
        # Who was drained keeps its owner's word; the leader asks others.
        if is_order and is_follower and self._may_stand():
            context.fire("handover", "asked by the leader")
            self._stand(is_handover=True)

    def _stand(self, *, is_handover: bool = False) -> None:
        context = self.context
        context.log.drop_unstored()
        context.leader = None
        self._votes = {}
        self._is_handover = is_handover
        self.deadline_s = context.now_s + limits.ELECTION_TIMEOUT_S_MIN / 2 + self._pause_s()
        context.remember(context.ballot.in_term(context.term + 1, context.key))
        for peer in context.greeted():
            self._ask(peer, is_trial=False)
        self.on_saved()

    def on_saved(self) -> None:
        """The ballot is on disk: a candidate's own vote counts from now on."""
        context = self.context
        is_mine = context.ballot.voted_for == context.key
        if context.is_saved and is_mine and context.role is Role.STANDING:
            self._votes[context.key] = Vote(context.key, self._sign(context.term, context.key))
            self._check_election()

    def on_greeted(self, peer: PeerVoter) -> None:
        """A voter came: ask it too."""
        if self.context.role in (Role.TRYING, Role.STANDING):
            self._ask(peer, is_trial=self.context.role is Role.TRYING)

    def on_vote(self, peer: PeerVoter, vote: GiveVote) -> None:
        """An answer to a trial or a candidacy."""
        context = self.context
        if vote.epoch != context.epoch:
            return
        if not vote.is_granted:
            self.on_term(vote.term)
            return
        if not context.counts(peer):
            return
        if vote.is_trial:
            if vote.term == context.term + 1:
                self._given.add(peer.key)
                self._check_trial()
            return
        if context.role not in (Role.STANDING, Role.LEADING) or vote.term != context.term:
            return
        message = seat_statement(context.setup.project, context.epoch, vote.term, context.key)
        if context.setup.verify(peer.key, message, vote.signature):
            self._votes[peer.key] = Vote(peer.key, vote.signature)
            if context.is_leading:
                self._keep_proof()
            else:
                self._check_election()

    def _check_election(self) -> None:
        context = self.context
        if context.key in self._votes and context.is_majority(self._votes):
            self._keep_proof()
            context.fire("elected", f"with {len(self._votes)} votes")
            context.leader = context.key
            for peer in context.peers.values():
                # Everybody who just voted was heard; the others get their time.
                peer.heard_s = max(peer.heard_s, context.now_s)
            context.app.on_elected()

    def _keep_proof(self) -> None:
        log = self.context.log
        keys = [key for key in sorted(self._votes) if log.voter(key) is not None]
        self.seat_votes = tuple(self._votes[key] for key in keys)

    def _renew_proof(self) -> None:
        """Ask voters that joined since the election to sign for it too.

        A learner proves the leader by the voters of now, who may be others than those that voted.
        """
        context = self.context
        is_due = context.now_s - self._renewed_s >= RENEW_EVERY_S
        if is_due and not Electorate.of(context.log.charter.voters).has_enough(self._votes):
            self._renewed_s = context.now_s
            self._is_handover = True
            for peer in context.greeted():
                if peer.key not in self._votes and context.counts(peer):
                    self._ask(peer, is_trial=False)

    def _ask(self, peer: PeerVoter, *, is_trial: bool) -> None:
        context = self.context
        log = context.log
        ask = AskVote(
            epoch=context.epoch,
            term=context.term + is_trial,
            last_term=log.term_at(log.stable),
            last_index=log.stable,
            is_trial=is_trial,
            is_handover=self._is_handover,
        )
        context.say(peer.key, ask)

    # As a leader.

    def depose(self, reason: str) -> None:
        """Lead no more."""
        context = self.context
        self.seat_votes = ()
        context.leader = None
        context.leader_heard_s = -1e9
        self.deadline_s = context.now_s + self._timeout_s()
        context.fire("deposed", reason)
        context.app.on_deposed(reason)

    def withdraw(self, reason: str) -> None:
        """This voter's disk may not vote: what it was in this term is over."""
        context = self.context
        if context.is_leading:
            self.depose(reason)
        elif context.role is not Role.FOLLOWING:
            context.fire("leader", reason)
        context.leader = None
        self._votes, self._given = {}, set()

    def _check_reach(self) -> None:
        """A leader that cannot reach a majority says so, and learners look elsewhere."""
        context = self.context
        reached = {context.key}
        for peer in context.peers.values():
            low, high = limits.ELECTION_TIMEOUT_S_MIN, limits.ELECTION_TIMEOUT_S_MAX
            patience_s = high if peer.is_greeted else low
            if context.now_s - peer.heard_s < patience_s and context.counts(peer):
                reached.add(peer.key)
        if not context.is_majority(reached):
            self.depose("cannot reach a majority of the voters")

    # Times.

    def _timeout_s(self) -> float:
        """Silence to wait for: shorter for those who should lead, never the same twice."""
        context = self.context
        syncers = [voter for voter in context.log.charter.voters if voter.role == "syncer"]
        syncers.sort(key=lambda voter: (-voter.priority, voter.key))
        keys = [voter.key for voter in syncers]
        rank = keys.index(context.key) / len(keys) if context.key in keys else 1.0
        low, high = limits.ELECTION_TIMEOUT_S_MIN, limits.ELECTION_TIMEOUT_S_MAX
        return low + (high - low) * (0.7 * rank + context.setup.rng.uniform(0.0, 0.3))

    def _pause_s(self) -> float:
        return self.context.setup.rng.uniform(*RETRY_S)

    def _sign(self, term: int, candidate: bytes) -> bytes:
        context = self.context
        message = seat_statement(context.setup.project, context.epoch, term, candidate)
        return context.setup.signer.sign(message)
