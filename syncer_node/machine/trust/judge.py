"""How far whose push counts, by what the log says of each learner that is here.

Nothing is kept here but what is found again from the log: a new leader judges as the former one.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from msgspec import structs

from protocol import novelty, standing
from protocol.log.state import KnownNorm, SwarmState
from protocol.merge_rules import RULES, MergeRules
from protocol.novelty import UNHEARD, Novelty
from protocol.numerics.directions import elements_compared
from protocol.peers.membership import Membership
from protocol.project import OuterSpec
from protocol.rounds import Round
from protocol.standing import NOBODY, Standing
from syncer_node.machine import jobs

Doubt = Literal["direction", "repeats", "echoes"]
"""Why pushes of a learner do not count: they point elsewhere, always add the same to what others
hand in, or only repeat what was merged."""


@dataclass(frozen=True, slots=True)
class Usual:
    """What is usual among the learners that are here, and how far each of them counts by it."""

    standings: dict[bytes, Standing]
    """Of all, also suspended ones."""
    is_established: bool
    """Whether enough of those that are not suspended were good for long."""
    typical: float
    """The median direction; 0 where nothing can be compared."""
    novelty: float
    """The median novelty; 0 where nothing can be compared."""
    repeats: float
    strays: float
    novelty_strays: float
    trusts: dict[bytes, dict[Doubt, float]]
    """By each thing that is looked at; empty where all count."""


KnownAt = tuple[int, int, str, float]
"""Judgements, changes of membership, rule of trust and share of probes."""


@dataclass(slots=True)
class Judge:
    """How far pushes count, and whose do not."""

    state: SwarmState
    members: Membership
    outer: OuterSpec
    numels: tuple[int, ...]
    """Padded length of each fragment, in elements."""
    rules: MergeRules = RULES
    _usual_at: KnownAt | None = None
    _usual: Usual | None = None
    _odd_at: KnownAt | None = None
    _odd: set[bytes] = field(default_factory=set)
    _mute_at: KnownAt | None = None
    _mute: set[bytes] = field(default_factory=set)

    @property
    def is_judging(self) -> bool:
        """Whether trust is earned under the charter in force."""
        return self.outer.trust == "earned"

    def standing_of(self, peer: bytes) -> Standing:
        """What the log says of a learner, and what it says of its text itself.

        Whose work nobody can check stays new, however good.
        """
        account = self.state.accounts.get(peer)
        known = NOBODY if account is None else account.standing
        if not self._has_other_text(peer):
            return known
        good = known.good if self.is_checkable(peer) else 0
        return structs.replace(known, good=good, has_other_text=True)

    def is_checkable(self, peer: bytes) -> bool:
        """Whether a probe could say that its pushes were trained; of other text nobody can."""
        return not (self._has_other_text(peer) and self.outer.probes_frac > 0)

    def _has_other_text(self, peer: bytes) -> bool:
        session = self.members.sessions.get(peer)
        return session is not None and session.beat is not None and session.beat.has_other_text

    def _now(self) -> Usual:
        """What is usual now, found once for a merge: several things ask for it, and with hundreds
        of learners each of them takes milliseconds to find."""
        known_at = self._known_at
        if self._usual is None or self._usual_at != known_at:
            self._usual_at, self._usual = known_at, self._look()
        return self._usual

    def _look(self) -> Usual:
        here = {peer for peer, one in self.members.sessions.items() if not one.is_suspended}
        standings = {peer: self.standing_of(peer) for peer in self.members.sessions}
        compared = [one for peer, one in standings.items() if peer in here]
        is_established = standing.are_established(compared)
        novelties = [
            self.novelty_of(peer)
            for peer, one in standings.items()
            if peer in here and (one.is_established or not is_established)
        ]
        elements = self._elements_compared()
        typical = standing.typical(compared, elements)
        usual = novelty.typical(novelties, elements)
        found = Usual(
            standings=standings,
            is_established=is_established,
            typical=typical,
            novelty=usual,
            repeats=standing.typical_repeats(compared),
            strays=standing.strays(compared, typical),
            novelty_strays=novelty.strays(novelties, usual),
            trusts={},
        )
        return replace(found, trusts=self._trusts_by(found)) if self.is_judging else found

    def typical(self) -> float:
        """The median direction of the learners that are here."""
        return self._now().typical

    def _elements_compared(self) -> int:
        """Of a fragment of middle size."""
        return elements_compared(sorted(self.numels)[len(self.numels) // 2])

    def novelty_of(self, peer: bytes) -> Novelty:
        """What the log says of a learner's pushes beside what was merged lately."""
        account = self.state.accounts.get(peer)
        return UNHEARD if account is None else account.novelty

    def typical_novelty(self) -> float:
        """The median of the learners that are here; of the established ones where enough are."""
        return self._now().novelty

    def _trusts_by(self, usual: Usual) -> dict[bytes, dict[Doubt, float]]:
        """Of each learner that is here, how far its pushes would count by each thing."""
        rules = self.rules
        return {
            peer: {
                "direction": standing.trust(its, usual.typical, rules.trust_bounds, usual.strays),
                "repeats": standing.trust_by_repeats(
                    its, usual.repeats, rules.repeats_bounds, rules.other_text_repeats_bounds
                ),
                "echoes": novelty.trust(self.novelty_of(peer), usual.novelty, usual.novelty_strays),
            }
            for peer, its in usual.standings.items()
        }

    def trusts(self) -> dict[bytes, float]:
        """How far a push of each learner that is here would count; empty where all count."""
        return {peer: min(found.values()) for peer, found in self._now().trusts.items()}

    def doubts(self) -> dict[bytes, Doubt]:
        """Learners that are here and whose pushes would not count, and why."""
        usual = self.typical_novelty()

        def doubt(peer: bytes, found: dict[Doubt, float]) -> Doubt:
            first = next(doubt for doubt, trust in found.items() if not trust)
            # Before any direction is typical, what a push adds may be all that says where it leads.
            leads_away = first == "echoes" and novelty.points_away(self.novelty_of(peer), usual)
            return "direction" if leads_away else first

        return {
            peer: doubt(peer, found)
            for peer, found in self._now().trusts.items()
            if not all(found.values())
        }

    def doubted(self) -> set[bytes]:
        """Learners that are here and whose pushes would not count."""
        return set(self.doubts())

    def new(self) -> set[bytes]:
        """Learners that are here and too new to count for much, beside enough that are not."""
        usual = self._now()
        if not self.is_judging or not usual.is_established:
            return set()
        here = [peer for peer, one in self.members.sessions.items() if not one.is_suspended]
        return {peer for peer in here if not usual.standings[peer].is_established}

    def without_say(self) -> set[bytes]:
        """Learners that are here and whose pushes make no quorum.

        A syncer looks far more often than anything changes: with a thousand learners finding them
        takes milliseconds.
        """
        known_at = self._known_at
        if self._mute_at != known_at:
            self._mute_at, self._mute = known_at, self.doubted() | self.new()
        return self._mute

    @property
    def _known_at(self) -> KnownAt:
        """What is found anew once this changes. Most records lease text and judge nobody."""
        outer = self.outer
        return (self.state.judgements, self.members.changes, outer.trust, outer.probes_frac)

    def odd(self) -> set[bytes]:
        """Learners that train here and should be looked at first: whose pushes count less than in
        full, or of which nothing says whether they add anything, though others' pushes do."""
        known_at = self._known_at
        if self._odd_at != known_at:
            trusts = self.trusts()
            odd = {peer for peer, trust in trusts.items() if trust < 1.0}
            odd |= self._unheard() if trusts else set()
            self._odd_at, self._odd = known_at, odd
        sessions = self.members.sessions
        return {peer for peer in self._odd if peer in sessions and sessions[peer].is_training}

    def _unheard(self) -> set[bytes]:
        """Whose pushes were judged often, and never their novelty, as if they always lagged."""
        if not self.typical_novelty():
            return set()
        return {
            peer
            for peer in self.members.sessions
            if self.standing_of(peer).judged >= standing.JUDGED_MIN
            and not self.novelty_of(peer).judged
        }

    def against(self, current: Round, seed: int) -> jobs.Against:
        """What the pushes of a round are judged against. seed: draws what nobody may foresee."""
        known, usual = self._norms_of_others(current), self._now()
        return jobs.Against(
            typical=usual.typical,
            norms=tuple(one.norm for one in known),
            is_established=usual.is_established,
            seed=seed,
            steps=tuple(one.steps for one in known),
            tensors=tuple(one.tensors for one in known),
            repeats=usual.repeats,
            typical_novelty=usual.novelty,
            strays=usual.strays,
            novelty_strays=usual.novelty_strays,
        )

    def quorum_to_begin(self, fragment: int, participants_max: int = 0) -> int:
        """So many pushes the first merges of a fragment need; 0 where no more than later ones.

        Before that nothing says how long a push should be, or where it should point. Three have a
        median, but two of them may be liars'; so the very first needs half of all that are here, up
        to as many as tell what is usual, or as may be asked. Only that one: whoever is here and
        never hands in must hold up no more than that. participants_max: 0 for no bound.
        """
        needed = self.rules.first_pushes
        if not self.is_judging or not needed or len(self.members.sessions) <= needed:
            return 0
        if self.state.fragments[fragment].version == 0:
            most = min(standing.MANY_PUSHES, participants_max or standing.MANY_PUSHES)
            needed = max(needed, min(most, sum(1 for _ in self.members.live()) // 2))
        return 0 if len(self.state.norms[fragment]) >= needed else needed

    def _norms_of_others(self, current: Round) -> list[KnownNorm]:
        """Of learners with a push of this fragment in the log, and none in this round."""
        here = {peer for peer, _ in current.arrived}
        known = self.state.norms[current.fragment]
        found = [norm for peer, norm in known.items() if peer not in here]
        return found[max(0, len(found) - self.rules.norms_known) :]
