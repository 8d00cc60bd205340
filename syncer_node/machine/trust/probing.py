"""Probes: which push is probed, and by whom; what comes back, and whom it suspends.

    drawn --asked--> answered --proposed--> noted
    what was asked ends without a word where the prober declines, leaves, or is too late

Neither who hands in nor who probes can foresee either draw. Those whose pushes count less than in
full are probed first, those of whom little is known, or nothing good, more often, and all of it
costs no more than the charter's share of what the swarm trains.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from protocol import probes
from protocol.effect_queue import EffectQueue
from protocol.log.accounts import Account, suspended_words
from protocol.log.records import Body, FragmentMerged, PushProbed
from protocol.log.state import SwarmState
from protocol.messages import Gain, Probe, Probed, ProbeDeclined, PushHeader, SequencePlace
from protocol.peers.membership import Membership, Session
from protocol.probes import Usual
from protocol.shards import order_of
from protocol.trace import LearnerSuspended, ProbeAnswered, ProbeUnanswered
from syncer_node.machine.rounds import Rounds
from syncer_node.machine.setup import SyncerSetup
from syncer_node.machine.trust.reading_trails import ReadingTrails

SEQUENCES: Final = 128
"""Of each kind of text in one probe."""

SEQUENCES_MIN: Final = 16
"""A push of which less is known to have been read is not probed."""

COST: Final = 2 * 2 / 3
"""Trained sequences that a probe costs for each of a kind: both kinds are evaluated twice, and an
evaluation is the first third of a training step."""

SAVED_MAX: Final = 8 * COST * SEQUENCES
"""More is not saved up: quiet hours must not be followed by hours of probes."""

UNREAD_SPREAD: Final = 1024
"""Positions behind the last leased one among which text that nobody read is drawn."""

WINDOW_BLOCKS_MAX: Final = 256
"""Blocks of a push that are compared with those drawn, which matters where the text is short."""

ANSWER_TIMEOUT_S: Final = 300.0
DECLINED_REST_S: Final = 30.0
UNANSWERED_REST_S: Final = 600.0
"""So long nobody is asked who said that it cannot now, or did not answer."""

WISH, WISH_LESS = 0.75, 0.1
"""How likely a push is drawn while the budget allows. The second is for learners for whom enough
speaks, and while nothing can be said of anybody. Never surely: nobody can rely on it."""

WISH_ODD: Final = 0.95
"""The same of learners whose pushes count less than in full, or of which nothing says whether they
add anything. While such a one is here, two probes' worth is left for it."""

GOOD: Final = 3.0
"""Nats of evidence in favour that are enough."""


AT_ONCE: Final = 4
"""Probes that are out at most; of one learner, and at one prober, one."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A probe that is out."""

    number: int
    learner: bytes
    incarnation: int
    sequence: int
    fragment: int
    payload: bytes
    prober: bytes
    until_s: float


@dataclass(slots=True)
class Probing:
    """One term's."""

    effects: EffectQueue
    state: SwarmState
    members: Membership
    rounds: Rounds
    setup: SyncerSetup
    propose: Callable[[Body], None]
    trails: ReadingTrails
    asked: dict[int, Asked] = field(default_factory=dict)
    """By number, oldest first."""
    noting: set[bytes] = field(default_factory=set)
    """Learners of which something was measured that is proposed and not yet committed."""
    last_probe: int = 0
    saved: float = SAVED_MAX / 2
    """Trained sequences that probes may still cost; a leader begins with four probes' worth."""
    resting: dict[bytes, float] = field(default_factory=dict)
    """Learners that are not asked to probe, and until when."""
    unanswered: int = 0

    @property
    def frac(self) -> float:
        """Share of the swarm's work that probes may cost, under the charter in force."""
        return self.setup.charter.outer.probes_frac

    # Which push, and who probes it.

    def on_arrived(self, session: Session, header: PushHeader, now_s: float, *, may: bool) -> None:
        """The payload of a push is here. may: a probe may begin."""
        fewest, _ = self.setup.charter.inner.batch_range
        claimed = header.tokens // self.setup.genesis.data.sequence_tokens
        sequences = max(claimed, header.steps * fewest)
        read = self.trails.on_push(session.key, header, sequences)
        count = min(SEQUENCES, len(read))
        odd = self.rounds.judge.odd()
        needed = COST * count * (3 if odd - {session.peer} and session.peer not in odd else 1)
        is_due = self.frac > 0 and count >= SEQUENCES_MIN and self.saved >= needed
        if not may or not is_due or self._is_probed(session.peer):
            return
        if session.beat is not None and session.beat.has_other_text:
            return  # It did not read what the same places hold here.
        if session.is_suspended or self.setup.rng.random() >= self._wish(session.peer):
            return
        prober = self._draw_prober(session.peer, now_s)
        if prober is not None:
            self._ask(prober, session, header, read, now_s)

    def _is_probed(self, learner: bytes) -> bool:
        """Whether no probe of this learner may begin now, for others are out."""
        is_out = any(one.learner == learner for one in self.asked.values())
        return is_out or learner in self.noting or len(self.asked) >= AT_ONCE

    def _wish(self, learner: bytes) -> float:
        if learner in self.rounds.judge.odd():
            return WISH_ODD
        account = self.state.accounts.get(learner, Account())
        if probes.probes(account.findings) < probes.PROBES_MIN:
            return WISH
        good = sum(one.evidence for one in account.findings)
        is_settled = good >= GOOD or self._usual().contrast < probes.EXPECTED_MIN
        return WISH_LESS if is_settled else WISH

    def _draw_prober(self, learner: bytes, now_s: float) -> Session | None:
        """Somebody of whom something was merged, who counts, evaluates and has time."""
        self.resting = {peer: until for peer, until in self.resting.items() if until > now_s}
        # Found once for a merge: pushes come by hundreds, and where nobody can probe all are drawn.
        mute = self.rounds.judge.without_say() | {one.prober for one in self.asked.values()}
        able = {
            session.peer: session
            for session in self.members.sessions.values()
            if session.evaluates
            and session.is_training
            and session.peer != learner
            and self.state.has_merges(session.peer)
            and session.peer not in mute
            and session.peer not in self.resting
        }
        account = self.state.accounts.get(learner, Account())
        panel = probes.panel(account.findings, list(able))
        return able[self.setup.rng.choice(panel)] if panel else None

    def _ask(
        self, prober: Session, session: Session, header: PushHeader, read: range, now_s: float
    ) -> None:
        rng = self.setup.rng
        own = self.trails.sample(session.key, read, SEQUENCES, rng)
        self.last_probe += 1
        self.asked[self.last_probe] = Asked(
            number=self.last_probe,
            learner=session.peer,
            incarnation=header.incarnation,
            sequence=header.sequence,
            fragment=header.fragment,
            payload=header.digest,
            prober=prober.peer,
            until_s=now_s + ANSWER_TIMEOUT_S,
        )
        self.saved -= COST * len(own)
        push = (session.peer, header.incarnation, header.sequence)
        holder = self.rounds.mergers.lend(push, header.digest)
        self.effects.send(
            prober.peer,
            Probe(
                probe=self.last_probe,
                fragment=header.fragment,
                version=header.base_version,
                codec=header.codec,
                payload=header.digest,
                payload_bytes=header.payload_bytes,
                own=tuple(own),
                other=tuple(self._unread(session, read, len(own))),
                holder=holder,
            ),
        )

    def _unread(self, session: Session, read: range, count: int) -> list[SequencePlace]:
        """Sequences of positions that nobody was leased yet.

        Where the text is short they may be of blocks that were read in an earlier pass, by
        everybody alike, but not of those that this push was trained on.
        """
        rng, data, order = self.setup.rng, self.setup.genesis.data, order_of(self.setup.genesis)
        window = read[-WINDOW_BLOCKS_MAX * data.block_sequences :]
        positions = self.trails.positions(session.key, window)
        mine = {order.block(at) for at in positions}
        start, spread = self.state.leases.next_position, UNREAD_SPREAD
        if order.shard_blocks:  # Of one shard, so that a prober fetches one.
            start, stop = order.run(start if order.run(start)[0] == start else order.run(start)[1])
            spread = min(spread, stop - start)
        drawn = (start + rng.randrange(spread) for _ in range(4 * count))
        fit = [at for at in drawn if order.block(at) not in mine]
        chosen = sorted((fit or [start])[:count])
        return [SequencePlace(at, rng.randrange(data.block_sequences)) for at in chosen]

    # What comes back.

    def on_probed(self, session: Session, answer: Probed) -> None:
        """What a prober measured; one that was not asked, or too late, is not heard."""
        asked = self.asked.get(answer.probe)
        if asked is None or asked.prober != session.peer:
            return
        self._end(asked)
        now = self._usual()
        own, other = answer.own, answer.other
        score = probes.score(own, other, now)
        suspends = self._suspends(asked, own, other, score)
        self.noting.add(asked.learner)
        self.propose(
            PushProbed(
                learner=asked.learner,
                incarnation=asked.incarnation,
                sequence=asked.sequence,
                fragment=asked.fragment,
                prober=asked.prober,
                own=own,
                other=other,
                score=score,
                suspends=suspends,
                withdrawn=self._tokens_of(asked.learner) if suspends else 0,
            )
        )

    def on_declined(self, session: Session, declined: ProbeDeclined, now_s: float) -> None:
        """The prober cannot; another push will be probed by another."""
        asked = self.asked.get(declined.probe)
        if asked is not None and asked.prober == session.peer:
            self._pass_over(asked, f"it declined: {declined.reason}", now_s + DECLINED_REST_S)

    def look(self, now_s: float) -> None:
        """A prober that left, or does not answer in time, is passed over."""
        for asked in list(self.asked.values()):
            session = self.members.sessions.get(asked.prober)
            if session is None or not session.is_connected:
                self._pass_over(asked, "it is gone", now_s + DECLINED_REST_S)
            elif now_s >= asked.until_s:
                self._pass_over(asked, "it did not answer in time", now_s + UNANSWERED_REST_S)

    def deadline_s(self) -> float | None:
        return min((asked.until_s for asked in self.asked.values()), default=None)

    def close(self) -> None:
        """The term ends."""
        for asked in list(self.asked.values()):
            self._end(asked)

    def _pass_over(self, asked: Asked, reason: str, until_s: float) -> None:
        self._end(asked)
        self.unanswered += 1
        self.resting[asked.prober] = until_s
        self.effects.emit(ProbeUnanswered(asked.learner, asked.prober, reason))

    def _end(self, asked: Asked) -> None:
        self.rounds.mergers.retract(asked.payload)
        del self.asked[asked.number]

    def _usual(self) -> Usual:
        """What is usual among the learners that are here and count."""
        accounts = self.state.accounts
        known = (accounts.get(session.peer) for session in self.members.live())
        return probes.usual(
            one.findings for one in known if one is not None and not one.is_suspended
        )

    def _tokens_of(self, learner: bytes) -> int:
        """All that count for it when this is committed, for merges are on their way as well."""
        account = self.state.accounts.get(learner, Account())
        return account.tokens + self.rounds.uncommitted_tokens(learner)

    def _suspends(self, asked: Asked, own: Gain, other: Gain, score: float) -> bool:
        accounts = self.state.accounts
        said = accounts.get(asked.learner, Account()).findings
        said = probes.heard(said, asked.prober, own, other, score)
        without = {one.prober for one in said if self.state.is_suspended(one.prober)}
        return probes.is_against(said, without)

    # The log.

    def on_merged(self, merged: FragmentMerged) -> None:
        """Work was done: a share of it may go into probes."""
        tokens = sum(part.tokens for part in merged.contributions)
        trained = tokens / self.setup.genesis.data.sequence_tokens / self.setup.genesis.fragments
        self.saved = min(SAVED_MAX, self.saved + self.frac * trained)

    def on_committed(self, probed: PushProbed) -> None:
        """What was measured is in the log and applied to the state."""
        self.noting.discard(probed.learner)
        contrast = probes.contrast(probed.own, probed.other)
        told = (probed.learner, probed.prober, contrast, probed.score)
        self.effects.emit(ProbeAnswered(*told))
        if probed.suspends:
            account = self.state.accounts[probed.learner]
            self.effects.emit(LearnerSuspended(probed.learner, suspended_words(account)))

    def mark_suspended(self) -> None:
        """Sessions know whether their key is suspended, as the log has it."""
        for session in self.members.sessions.values():
            is_suspended = self.state.is_suspended(session.peer)
            self.members.changes += is_suspended != session.is_suspended
            session.is_suspended = is_suspended
