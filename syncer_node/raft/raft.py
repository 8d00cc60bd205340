"""One voter: greets the others, elects, replicates. What stands on the log is its `RaftApp`."""

from __future__ import annotations

from protocol import limits, messages
from protocol.effect_queue import EffectQueue
from protocol.errors import LimitExceeded, UnexpectedMessage
from protocol.log import records
from protocol.project import Charter
from syncer_node.raft.ballot import Ballot
from syncer_node.raft.context import Context, PeerVoter, RaftApp, RaftSetup
from syncer_node.raft.election import Election
from syncer_node.raft.jobs import Append, KeepProofs, SaveBallot
from syncer_node.raft.log import LogStart, RaftLog
from syncer_node.raft.replication import Replication
from syncer_node.raft.voter_streams import VoterStreams

RESTART_EXIT = 75
"""Of a voter's machine whose daemon should build it anew from the disk, as for another epoch."""

HAND_OVER_EVERY_S = 2.0
LEAVE_S_MAX = 6.0
"""A leader that is no voter any more waits no longer than this for a successor to be ready."""


class Raft:
    """This host's vote and, where it leads, its pen."""

    def __init__(
        self,
        setup: RaftSetup,
        *,
        effects: EffectQueue,
        start: LogStart,
        ballot: Ballot,
        charter_envelope: messages.Envelope,
        newest_charter: Charter,
        app: RaftApp,
    ) -> None:
        log = RaftLog(setup.project, start)
        last_term = log.term_at(log.last)
        if ballot.term < last_term:
            ballot = ballot.in_term(last_term, None)
        self.context = Context(
            setup=setup,
            effects=effects,
            log=log,
            ballot=ballot,
            app=app,
            charter_envelope=charter_envelope,
            newest_charter=newest_charter,
            saved_disk=ballot.disk,
        )
        self.voter_streams = VoterStreams(self.context)
        self.election = Election(self.context)
        self.replication = Replication(self.context)
        self._handed_s = -1e9
        self._asked_to_lead: dict[bytes, int] = {}
        self._leaving_s: float | None = None

    # Looking.

    @property
    def log(self) -> RaftLog:
        return self.context.log

    @property
    def is_leading(self) -> bool:
        return self.context.is_leading

    @property
    def leader(self) -> bytes | None:
        """Who leads as far as this voter knows."""
        return self.context.leader

    def is_voter(self, key: bytes) -> bool:
        """Whether this is another voter, whose messages go to `receive`."""
        return key in self.context.peers

    # Events.

    def start(self, now_s: float) -> None:
        self.context.now_s = now_s
        self.voter_streams.follow_charter()
        self.election.start()
        self._renew_disk()

    def look(self, now_s: float) -> None:
        """Time passes."""
        self.context.now_s = now_s
        self.context.look()
        self._renew_disk()
        self.voter_streams.look()
        self.election.look()
        self.replication.look()
        if self.is_leading:
            self._look_after_voters()
            self._leave()

    def deadline_s(self) -> float:
        """When something happens here by itself."""
        times = [self.voter_streams.deadline_s(), self.replication.deadline_s()]
        if not self.is_leading:
            times.append(self.election.deadline_s)
        if self.context.save_retry_s is not None:
            times.append(self.context.save_retry_s)
        if self.context.peers:
            times.append(self.context.now_s + limits.BEAT_EVERY_S)
        return min(times)

    def on_up(self, peer: bytes, now_s: float) -> None:
        self.context.now_s = now_s
        self.voter_streams.on_up(peer)

    def on_down(self, peer: bytes, now_s: float) -> None:
        self.context.now_s = now_s
        self.voter_streams.on_down(peer)

    def on_stored(
        self, job: SaveBallot | Append | KeepProofs, result: object, now_s: float
    ) -> None:
        """The disk answered."""
        self.context.now_s = now_s
        match job:
            case SaveBallot():
                if self.context.on_saved(job, result):
                    self.election.on_saved()
            case Append():
                self.replication.on_appended(job, result)
            case KeepProofs():
                self.replication.on_kept(job, result)

    def payload_here(self, index: int, now_s: float) -> None:
        self.context.now_s = now_s
        self.replication.payload_here(index)

    def receive(self, key: bytes, message: messages.Message, now_s: float) -> None:
        """A voter's message. Raises RemoteError if it means nothing now."""
        context = self.context
        context.now_s = now_s
        peer = context.peers[key]
        peer.heard_s = now_s
        match message:
            case messages.VoterHello():
                if self.voter_streams.on_hello(key, message):
                    self._greeted(peer)
                return
            case messages.Refused():
                if self.voter_streams.on_refused(key, message):
                    self._give_up_disk(message.text)
                return
            case messages.Goodbye() | messages.Alive():
                return  # That it was heard is all it says.
        if not peer.is_greeted:
            raise UnexpectedMessage(f"{type(message).__name__} before hello")
        self._dispatch(peer, message)

    def _greeted(self, peer: PeerVoter) -> None:
        self.replication.reset(peer)
        self.election.on_greeted(peer)
        if self.is_leading:
            self.replication.look()

    def _give_up_disk(self, words: str) -> None:
        """Another voter knows more of this disk than the disk itself: it may not vote any more.

        Under its former name it would be as good as new after enough starts.
        """
        self._rename_disk(words, self.context.ballot.generation)

    def _renew_disk(self) -> None:
        """The owner admitted this host's disk anew: no vote of the former one is this one's.

        A log that does not know of it yet would count them together.
        """
        voter = self.context.newest_charter.voter(self.context.key)
        if voter is not None and voter.disk > self.context.ballot.generation:
            self._rename_disk("its disk was readmitted", voter.disk)

    def _rename_disk(self, words: str, generation: int) -> None:
        self.election.withdraw(words)
        self.context.rename_disk(generation)
        self.voter_streams.begin_anew(words)

    def _dispatch(self, peer: PeerVoter, message: messages.Message) -> None:
        match message:
            case messages.AskVote():
                self.election.on_ask(peer, message)
            case messages.GiveVote():
                self.election.on_vote(peer, message)
            case messages.HandOver():
                self.election.on_hand_over(peer, message)
            case messages.CharterOffer(envelope):
                self.voter_streams.take_charter(envelope)
            case messages.IndexPart() | messages.AccountsPart():
                self._collect(peer, message)
            case _ if isinstance(message, messages.OrderMessage | messages.OrderAnswer):
                self.context.app.on_merging(peer.key, message)
            case _:
                self._replicate(peer, message)

    def _collect(
        self, peer: PeerVoter, message: messages.IndexPart | messages.AccountsPart
    ) -> None:
        """Keep a part of a state, which begins with charters and proofs of fragments."""
        if isinstance(message, messages.AccountsPart):
            peer.accounts |= message.accounts
            if len(peer.accounts) > limits.ACCOUNTS_MAX:
                raise LimitExceeded(f"more than {limits.ACCOUNTS_MAX} accounts")
            return
        if peer.accounts:
            peer.forget_told()  # Of a state that was never offered.
        peer.origins.extend(message.entries)
        peer.charters.extend(message.charters)
        if len(peer.origins) + len(peer.charters) > limits.INDEX_ENTRIES_MAX:
            raise LimitExceeded(f"more than {limits.INDEX_ENTRIES_MAX} index entries")

    def _replicate(self, peer: PeerVoter, message: messages.Message) -> None:
        match message:
            case messages.Replicate():
                if self._follow(peer, message):
                    self.replication.on_replicate(peer, message)
            case messages.Certified():
                is_ours = (message.epoch, message.term) == (self.context.epoch, self.context.term)
                if self._is_leader(peer, message.epoch, message.term) or (
                    is_ours and self.is_leading
                ):
                    self.replication.on_certified(peer, message)
            case messages.Replicated():
                if message.epoch == self.context.epoch:
                    self.election.on_term(message.term)
                    self.replication.on_replicated(peer, message)
            case messages.StateOffer():
                told = (peer.origins, peer.charters, peer.accounts)
                peer.forget_told()
                if self._is_leader(peer, message.epoch, message.term):
                    self.context.app.on_state_offer(message, *told)
            case _:
                raise UnexpectedMessage(f"{type(message).__name__} from a voter")

    def _follow(self, peer: PeerVoter, message: messages.Replicate) -> bool:
        """Whether the sender leads the newest term; a former leader is told so."""
        context = self.context
        if message.epoch != context.epoch:
            return False
        if message.term < context.term:
            self.replication.refuse(peer, message)
            return False
        is_new = context.leader != peer.key or message.term > context.term
        self.election.on_term(message.term)
        if context.leader not in (None, peer.key):
            raise UnexpectedMessage(f"two leaders in term {message.term}")
        if is_new:
            self.replication.new_term()
        self.election.heard_leader(peer.key)
        return True

    def _is_leader(self, peer: PeerVoter, epoch: int, term: int) -> bool:
        context = self.context
        return (epoch, term, peer.key) == (context.epoch, context.term, context.leader)

    # The leader's pen.

    def propose(self, body: records.Body) -> None:
        """Put a record behind the last; it counts once `on_certified` names it."""
        context = self.context
        entry = context.log.propose(
            body,
            epoch=context.epoch,
            term=context.term,
            at_s=context.now_s + context.setup.wall_offset_s,
        )
        self.replication.on_proposed(entry)

    def take_seat(self) -> None:
        """The first records of a term: who leads, and in a new log who votes."""
        context = self.context
        is_forming = context.is_forming
        self.replication.lead()
        self.propose(records.SeatTaken(context.key))
        if is_forming:
            self.propose(records.CharterAdopted(context.charter_envelope))
            admissions = [self._admission(context.key, context.ballot.disk)]
            admissions += [self._admission(peer.key, peer.disk) for peer in context.greeted()]
            self.propose(records.VotersAdmitted(tuple(sorted(admissions, key=lambda one: one.key))))

    def _look_after_voters(self) -> None:
        """Admit voters that came, adopt a newer charter; one change at a time."""
        context, log = self.context, self.context.log
        if log.is_changing or log.term_at(log.committed) != context.term:
            return
        newest = context.newest_charter
        is_newer = newest.revision > log.charter.revision and newest.epoch == log.charter.epoch
        voters = newest if is_newer else log.charter
        if is_newer and not _is_syncer(newest, context.key):
            # New voters do not know a leader that is not to be one: one who stays leads the change.
            self._offer_seat(newest)
            if not self.is_leading:
                return
        fresh = [
            records.Admission(peer.key, voter.disk, peer.disk)
            for peer in context.greeted()
            if (voter := voters.voter(peer.key)) is not None
            and not log.has_admission(peer.key, voter.disk, peer.disk)
        ]
        if fresh:
            self.propose(records.VotersAdmitted(tuple(fresh)))
        elif is_newer and self._can_adopt(newest):
            self.propose(records.CharterAdopted(context.charter_envelope))
            self.voter_streams.follow_charter()

    def _leave(self) -> None:
        """A leader that the charter in force does not want to lead gives the seat away."""
        context = self.context
        if context.log.is_changing or _is_syncer(context.log.charter, context.key):
            self._leaving_s = None
            return
        if self._leaving_s is None:
            self._leaving_s = context.now_s
        if context.now_s - self._leaving_s > LEAVE_S_MAX:
            self.election.depose("the charter has other syncers")
        else:
            self._offer_seat()

    def _can_adopt(self, newest: Charter) -> bool:
        """Whether those who must sign for the charter are here with the log, and can go on then.

        Where a disk that is admitted anew is needed for a majority, it must have come first.
        """
        context, log = self.context, self.context.log
        ready = {peer.key for peer in context.greeted() if peer.match >= log.committed}
        here = {
            peer.key
            for peer in context.greeted()
            if (voter := newest.voter(peer.key)) is not None
            and log.has_admission(peer.key, voter.disk, peer.disk)
        }
        can_sign = records.Electorate.change(log.charter, newest).has_enough(ready | {context.key})
        return can_sign and records.Electorate.of(newest.voters).has_enough(here | {context.key})

    def _admission(self, key: bytes, disk: bytes) -> records.Admission:
        voter = self.log.voter(key)
        return records.Admission(key, voter.disk if voter is not None else 0, disk)

    def hand_over(self, now_s: float) -> bytes | None:
        """Ask the best standby to take the seat, if there is one that has everything."""
        self.context.now_s = now_s
        self.election.is_drained = True
        return self._offer_seat()

    def _offer_seat(self, charter: Charter | None = None) -> bytes | None:
        """Ask the best standby under this charter to stand for election."""
        context = self.context
        charter = charter or context.log.charter
        is_due = context.now_s - self._handed_s >= HAND_OVER_EVERY_S
        if not is_due or context.log.certified < context.log.last:
            return None
        ready = [
            peer
            for peer in self.replication.standbys()
            if peer.match == context.log.last and _is_syncer(charter, peer.key)
        ]
        ranks = {voter.key: voter.priority for voter in charter.voters}
        # One that was asked and did not stand, as it was drained, is asked after the others.
        asked = self._asked_to_lead
        best = max(
            ready,
            key=lambda peer: (-asked.get(peer.key, 0), ranks[peer.key], peer.key),
            default=None,
        )
        if best is None:
            return None
        asked[best.key] = asked.get(best.key, 0) + 1
        self._handed_s = context.now_s
        context.say(best.key, messages.HandOver(context.epoch, context.term))
        return best.key


def _is_syncer(charter: Charter, key: bytes) -> bool:
    voter = charter.voter(key)
    return voter is not None and voter.role == "syncer"
