"""Records from the leader to the other voters, their signatures back, certificates to all.

A voter signs a record of the leader's own term as soon as it is stored, and an older one as soon
as it is known to be committed, never before: otherwise a certificate could name a record that a
later leader may still replace.
"""

from __future__ import annotations

from protocol import limits
from protocol.errors import CorruptState, MalformedMessage, UnexpectedMessage
from protocol.log.records import CharterAdopted, majority, sign_record, verify_vote
from protocol.machine import Failed
from protocol.messages import Certified, RecordVote, Replicate, Replicated, Vote
from protocol.signing import open_envelope
from syncer_node.raft.context import Context, PeerVoter
from syncer_node.raft.jobs import Append, Appended, KeepProofs
from syncer_node.raft.log import Entry
from syncer_node.raft.proofs import Proofs

MESSAGES_AHEAD_MAX = 8
"""Unanswered messages with records to one voter."""

STANDBY_PATIENCE_S = 10.0
"""A standby that makes no progress for this long is not waited for."""

STANDBY_SILENT_S = 3.0
"""Nor is one that was not heard for this long: the first record of a term must not wait
for the leader that was lost."""

UNKNOWN = -1
PROOFS_LENT_MAX = 256
OFFER_EVERY_S = 5.0
STORE_RETRY_S = 5.0
APPEND_BYTES_MAX = 4 << 20


class Replication:
    """This voter's log, as leader or follower."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self._trouble = ""
        self.wants_state = False
        """A record's bytes are gone everywhere: ask the leader for a whole state."""
        self.is_held = False
        """The disk is about to begin elsewhere: nothing more is written to this log."""
        self._appending: Append | None = None
        self.proofs = Proofs(context)
        self._store_retry_s: float | None = None
        self._lacking: set[int] = set()
        """Records that wait for bytes outside the log."""
        self._agreed = context.log.floor.index
        """Last record known to agree with the present leader's log."""
        self._signed: set[int] = set()
        self._said_s = -1e9
        self._beat = 0

    # Both.

    @property
    def store_trouble(self) -> str:
        """Why the log cannot be written, in words; empty when it can."""
        return self._trouble or self.proofs.trouble

    def new_term(self) -> None:
        """Another leader, or none: what was agreed with the former means nothing."""
        self._agreed = self.context.log.committed
        self._signed = set()
        self._beat = 0

    def add(self, entry: Entry) -> None:
        """Put a record behind the last and see to its being stored. Raises RemoteError."""
        if isinstance(entry.record.body, CharterAdopted):
            setup = self.context.setup
            open_envelope(
                "charter",
                setup.project,
                entry.record.body.charter,
                setup.verify,
                signer=setup.owner,
            )
        self.context.log.add(entry)
        self._watch(entry)

    def _watch(self, entry: Entry) -> None:
        self._lacking.discard(entry.record.index)  # Of a record that was there before.
        if self.context.app.fetch_payload(entry):
            self._lacking.add(entry.record.index)

    def payload_here(self, index: int) -> None:
        """What this record needed is here."""
        self._lacking.discard(index)
        self.persist()

    def persist(self) -> None:
        """Write what can be written; one write at a time, everything waiting in one of them."""
        if self._appending is not None or self._store_retry_s is not None or self.is_held:
            return
        log, size = self.context.log, 0
        records: list[bytes] = []
        for index in range(log.stable + 1, log.last + 1):
            encoded = log.entry(index).encoded
            size += len(encoded)
            if index in self._lacking or (records and size > APPEND_BYTES_MAX):
                break
            records.append(encoded)
        if records:
            self._appending = Append(log.stable, tuple(records))
            self.context.effects.start(self._appending)

    def on_appended(self, job: Append, result: object) -> None:
        """The disk answered."""
        self._appending = None
        context = self.context
        if not isinstance(result, Appended):
            reason = result.reason if isinstance(result, Failed) else "append failed"
            self._trouble = reason
            self._store_retry_s = context.now_s + STORE_RETRY_S
            return
        self._trouble = ""
        context.log.stored(job.after, job.records)
        self._after_storing()
        self.persist()

    def on_kept(self, job: KeepProofs, result: object) -> None:
        """The disk answered: what waited for a certificate on it may be applied."""
        self.proofs.on_kept(job, result)
        if self.context.is_leading:
            self._certify()
        else:
            self._apply(self.context.log.advance())

    def release(self) -> None:
        """The disk stays where it was: write on."""
        self.is_held = False
        self.persist()

    def _after_storing(self) -> None:
        context = self.context
        if context.is_leading:
            self._sign_own()
        else:
            self._apply(context.log.advance())
            leader = context.peers.get(context.leader) if context.leader else None
            if leader is not None and leader.is_greeted:
                self._answer(leader, is_matching=True)

    def look(self) -> None:
        """Time passes: write again, say again that we lead."""
        context = self.context
        if self._store_retry_s is not None and context.now_s >= self._store_retry_s:
            self._store_retry_s = None
            self.persist()
        self.proofs.look()
        if context.is_leading:
            is_due = context.now_s - self._said_s >= limits.BEAT_EVERY_S
            if is_due:
                self._said_s = context.now_s
            for peer in context.greeted():
                self._pump(peer, is_beat=is_due)

    def deadline_s(self) -> float:
        times = [self.proofs.deadline_s()]
        if self._store_retry_s is not None:
            times.append(self._store_retry_s)
        if self.context.is_leading and self.context.peers:
            times.append(self._said_s + limits.BEAT_EVERY_S)
        return min(times)

    def _apply(self, entries: list[Entry]) -> None:
        for entry in entries:
            self._signed.discard(entry.record.index)
            self.context.app.on_certified(entry)
        self.context.log.forget_old()
        if not self.is_held:
            self.proofs.keep()

    def _sign(self) -> list[RecordVote]:
        """Our signatures under what may be signed now and was not yet, in this term."""
        context, log = self.context, self.context.log
        agreed = log.last if context.is_leading else self._agreed
        votes: list[RecordVote] = []
        for index in range(log.certified + 1, min(agreed, log.stable) + 1):
            entry = log.entry(index)
            is_own_term = entry.record.term == context.term
            if index in self._signed or not (is_own_term or index <= log.committed):
                continue
            if len(votes) == limits.RECORDS_PER_MESSAGE_MAX:
                break
            self._signed.add(index)
            vote = sign_record(entry.record, entry.digest, context.setup.signer)
            votes.append(RecordVote(index, vote.signature))
        return votes

    # As the leader.

    def lead(self) -> None:
        """Begin a term as its leader."""
        log = self.context.log
        self.new_term()
        self._said_s = -1e9
        # What the former leader's records lacked says nothing of ours at the same index.
        self._lacking.clear()
        for peer in self.context.peers.values():
            peer.match, peer.behind_s = 0, self.context.now_s
            self.reset(peer)
        for index in range(log.certified + 1, log.last + 1):
            log.entry(index).votes.clear()

    def reset(self, peer: PeerVoter) -> None:
        """A new stream: begin where the other agreed last, or at our end."""
        peer.next = max(peer.match, self.context.log.committed) + 1
        peer.proven = UNKNOWN
        peer.head = peer.sent = peer.answered = 0
        peer.offered_s = -1e9
        peer.telling = None
        peer.forget_told()
        if peer.behind_s is not None:
            peer.behind_s = self.context.now_s
        if peer.key == self.context.leader:
            self._signed = set()  # Our answers may be lost with the former stream.

    def on_proposed(self, entry: Entry) -> None:
        """A record of our own was put behind the last."""
        assert self.context.is_leading, "only the leader proposes"
        assert entry.record.index == self.context.log.last
        self._lacking.discard(entry.record.index)
        self.persist()
        for peer in self.context.greeted():
            if peer.behind_s is None:
                peer.behind_s = self.context.now_s
            self._pump(peer, is_beat=False)

    def _sign_own(self) -> None:
        context = self.context
        while votes := self._sign():
            for vote in votes:
                context.log.vote(vote.index, Vote(context.key, vote.signature))
        self._certify()

    def _certify(self) -> None:
        """Collect certificates; tell the others; apply."""
        context, log = self.context, self.context.log
        known = log.committed
        certified = log.certify(context.term)
        self._apply(certified)
        if not context.is_leading:
            return  # What was applied ended our term, or our being a voter.
        if log.committed > known and log.certified < log.committed:
            self._sign_own()  # Records of former terms are known to be committed now.
        if certified or log.committed > known:
            for peer in context.greeted():
                self._pump(peer, is_beat=False)

    def _prove_head(self, peer: PeerVoter) -> None:
        """Send the certificate of the newest committed record ahead of older ones' own.

        It says that records of former terms are committed, so that the voter signs them too.
        """
        context, log = self.context, self.context.log
        if log.certified < log.committed <= peer.match and peer.head < log.committed:
            peer.head = log.committed
            certificate = log.prove(log.committed)
            context.say(peer.key, Certified(context.epoch, context.term, (certificate,)))

    def _pump(self, peer: PeerVoter, *, is_beat: bool) -> None:
        """Send a voter what it lacks: records, certificates, or the whole state."""
        log = self.context.log
        is_unproven = UNKNOWN < peer.proven < log.floor.index
        if peer.next <= log.floor.index or is_unproven:
            self._offer_state(peer)
            if is_beat:
                self._send(peer, log.committed, ())
            return
        end = self._may_have(peer)
        while peer.next <= end and peer.sent - peer.answered < MESSAGES_AHEAD_MAX:
            records = log.batch(peer.next - 1, up_to=end)
            self._send(peer, peer.next - 1, records)
            peer.next += len(records)
            is_beat = False
        if is_beat:
            self._send(peer, peer.next - 1, ())
        self._prove(peer)

    def _offer_state(self, peer: PeerVoter) -> None:
        """Begin to tell a voter the whole state, if that is not so already, nor lately was."""
        context = self.context
        if peer.telling is None and context.now_s - peer.offered_s >= OFFER_EVERY_S:
            peer.offered_s = context.now_s
            peer.telling, peer.told_beat = context.app.state_to_tell(peer.key), -1
            self._tell(peer)

    def _tell(self, peer: PeerVoter) -> None:
        """The next pieces of the state, once those before came."""
        if peer.telling is None or peer.answered <= peer.told_beat:
            return
        for message in peer.telling.take(limits.PIECES_AHEAD_MAX):
            self.context.say(peer.key, message)
        peer.told_beat = peer.sent
        if peer.telling.end is None:
            peer.telling, peer.offered_s = None, self.context.now_s

    def _send(self, peer: PeerVoter, previous: int, records: tuple[bytes, ...]) -> None:
        context = self.context
        peer.sent += 1
        message = Replicate(
            epoch=context.epoch,
            term=context.term,
            previous_index=previous,
            previous=context.log.digest_at(previous),
            records=records,
            certified=context.log.certified,
            beat=peer.sent,
        )
        context.say(peer.key, message)

    def _prove(self, peer: PeerVoter) -> None:
        """Send the certificates of what the voter has stored."""
        context, log = self.context, self.context.log
        self._prove_head(peer)
        if peer.proven == UNKNOWN:
            return
        start = max(peer.proven, log.floor.index)
        end = min(log.certified, peer.match)
        while start < end:
            stop = min(end, start + 64)
            proofs = tuple(log.prove(index) for index in range(start + 1, stop + 1))
            context.say(peer.key, Certified(context.epoch, context.term, proofs))
            peer.proven = start = stop

    def _may_have(self, peer: PeerVoter) -> int:
        """Last record that this voter may be sent: witnesses wait for syncers with payloads.

        If a witness held a record whose payload only the leader has, no other syncer could win an
        election after the leader's death.
        """
        context, log = self.context, self.context.log
        charter = log.charter
        voter = charter.voter(peer.key)
        if voter is None or voter.role == "syncer":
            # Nobody else may act on a change of the voters that the leader itself could forget.
            return log.stable if log.is_changing else log.last
        if charter.durability == "leader":
            # What only witnesses have nobody could lead with, should the leader forget it.
            return log.stable
        stored = [
            other.match
            for other in context.peers.values()
            if (found := charter.voter(other.key)) is not None and found.role == "syncer"
        ]
        if charter.durability == "majority":
            held = sorted([log.stable, *stored], reverse=True)
            return max(log.committed, held[majority(len(held)) - 1])
        alive = [other.match for other in self.standbys()]
        if alive:
            return max(log.committed, max(alive))
        return log.stable

    def standbys(self) -> list[PeerVoter]:
        """Other syncers that are here, and either have everything or are making progress."""
        context = self.context
        return [
            peer
            for peer in context.greeted()
            if (voter := context.log.charter.voter(peer.key)) is not None
            and voter.role == "syncer"
            and peer.next > context.log.floor.index
            and context.counts(peer)
            and context.now_s - peer.heard_s < STANDBY_SILENT_S
            and (peer.behind_s is None or context.now_s - peer.behind_s < STANDBY_PATIENCE_S)
        ]

    def on_replicated(self, peer: PeerVoter, answer: Replicated) -> None:
        """A voter's answer: how far it is, and its signatures."""
        context, log = self.context, self.context.log
        if not context.is_leading or (answer.epoch, answer.term) != (context.epoch, context.term):
            return
        peer.answered = max(peer.answered, min(answer.beat, peer.sent))
        if not answer.is_matching:
            peer.next = min(answer.index, log.last) + 1
            peer.match = 0
            peer.sent = peer.answered
            if peer.behind_s is None:
                peer.behind_s = context.now_s
        elif answer.index <= log.last:
            if answer.index > peer.match:
                peer.match, peer.behind_s = answer.index, context.now_s
            peer.kept = max(peer.kept, min(answer.index, log.committed))
            if peer.match == log.last:
                peer.behind_s = None
            peer.next = max(peer.next, peer.match + 1)
        peer.proven = max(peer.proven, min(answer.certified, log.certified))
        peer.told_beat = min(peer.told_beat, peer.sent)
        if answer.wants_state:
            self._offer_state(peer)
        self._tell(peer)
        if context.counts(peer):
            self._count(peer, answer)
        self._certify()
        if context.is_leading:
            for other in context.greeted():
                self._pump(other, is_beat=False)

    def _count(self, peer: PeerVoter, answer: Replicated) -> None:
        log = self.context.log
        for vote in answer.votes:
            if not log.certified < vote.index <= log.last:
                continue
            entry = log.entry(vote.index)
            signed = Vote(peer.key, vote.signature)
            if verify_vote(entry.record, entry.digest, signed, self.context.setup.verify):
                log.vote(vote.index, signed)

    # As a follower.

    def on_replicate(self, peer: PeerVoter, message: Replicate) -> None:
        """Records of the present leader. Raises RemoteError if they fork what is committed."""
        log = self.context.log
        self._beat = message.beat
        if not self._agrees(message):
            hint = log.last if message.previous_index > log.last else log.committed
            self._answer(peer, is_matching=False, index=hint)
            return
        for encoded in message.records:
            entry = Entry.read(encoded)
            index = entry.record.index
            if entry.record.term > message.term:
                raise MalformedMessage(f"record {index} is of a term that has not begun")
            if index <= log.floor.index:
                continue
            if log.holds(index):
                if log.entry(index).digest == entry.digest:
                    continue
                self._replace(index)
            self.add(entry)
        self._agreed = max(self._agreed, message.previous_index + len(message.records))
        self.persist()
        if not message.records:
            self._lend_proofs(peer, message)
        self._answer(peer, is_matching=True)

    def _lend_proofs(self, peer: PeerVoter, message: Replicate) -> None:
        """Send the leader certificates that it lost, or never got.

        Those who signed may be voters no more, so that it could not collect the votes again.
        """
        log = self.context.log
        first = max(message.certified, log.floor.index) + 1
        last = min(log.certified, self._agreed, first + PROOFS_LENT_MAX - 1)
        proofs = tuple(log.prove(index) for index in range(first, last + 1))
        if proofs:
            self.context.say(peer.key, Certified(message.epoch, message.term, proofs))

    def _agrees(self, message: Replicate) -> bool:
        """Whether the record before the leader's first one is here."""
        log, index = self.context.log, message.previous_index
        if index < log.floor.index:
            return index + len(message.records) >= log.floor.index and bool(message.records)
        if index > log.last:
            return False
        if log.digest_at(index) == message.previous:
            return True
        if index <= log.committed:
            raise UnexpectedMessage(f"the leader has another record {index} than was committed")
        return False

    def _replace(self, index: int) -> None:
        try:
            self.context.log.cut(index - 1)
        except CorruptState as error:
            raise UnexpectedMessage(str(error)) from error
        self._lacking = {one for one in self._lacking if one < index}
        self._signed = {one for one in self._signed if one < index}

    def on_certified(self, peer: PeerVoter, message: Certified) -> None:
        """Proofs from the leader or for it; what they prove is applied once it is stored."""
        log = self.context.log
        for certificate in message.certificates:
            if certificate.index <= log.last:
                log.take_certificate(certificate, self.context.setup.verify)
        self._apply(log.advance())
        if self.context.is_leading:
            self._certify()
            return
        votes = self._sign()
        if votes:  # Records of former terms: known to be committed, so they may be signed now.
            self._answer(peer, is_matching=True, votes=votes)

    def refuse(self, peer: PeerVoter, message: Replicate) -> None:
        """A leader of a former term learns that it is one."""
        context = self.context
        context.say(
            peer.key, Replicated(context.epoch, context.term, False, 0, 0, False, (), message.beat)
        )

    def _answer(
        self,
        peer: PeerVoter,
        *,
        is_matching: bool,
        index: int = 0,
        votes: list[RecordVote] | None = None,
    ) -> None:
        context, log = self.context, self.context.log
        if is_matching:
            index = min(self._agreed, log.stable)
            votes = self._sign() if votes is None else votes
        message = Replicated(
            epoch=context.epoch,
            term=context.term,
            is_matching=is_matching,
            index=index,
            certified=log.certified,
            wants_state=self.wants_state,
            votes=tuple(votes or ()),
            beat=self._beat,
        )
        context.say(peer.key, message)
