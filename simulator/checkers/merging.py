"""What must hold in every run, judged from the outside by what hosts said and stored.

A checker knows nothing of how machines work. It raises `Violation` with the time and the hosts.
"""

from __future__ import annotations

from protocol import trace
from protocol.log.records import BlocksLeased, BlocksReturned
from simulator.checkers.credit import check_receipts
from simulator.checkers.ledger import Ledger, Violation
from simulator.hosts.learner import SimLearner
from simulator.hosts.syncer import SimSyncer
from simulator.hosts.witness import SimWitness
from simulator.virtual.world import Host, World


class SafetyChecker:
    """Watches a world: one history, certified versions only, versions only grow."""

    def __init__(self, world: World, ledger: Ledger) -> None:
        self.ledger = ledger
        self.committed: dict[int, bytes] = {}
        self.applied: dict[tuple[bytes, int, int], int] = {}
        world.watchers.append(self.watch)

    def watch(self, now_s: float, host: Host, fact: trace.Fact) -> None:
        of_log = trace.RecordCommitted | trace.FragmentAdvanced | trace.FragmentApplied
        if isinstance(fact, of_log) and self._is_before(host):
            return  # It has not heard yet that what it follows is void.
        match fact:
            case trace.RecordCommitted(index, _, digest, _):
                known = self.committed.setdefault(index, digest)
                if known != digest:
                    raise Violation(f"{now_s:.2f}: {host.name} has another record {index}")
            case trace.FragmentAdvanced(fragment, version, theta, _):
                self._check_version(now_s, host, fragment, version, theta)
            case trace.FragmentApplied(fragment, version, _):
                key = (host.key, host.life, fragment)
                if version < self.applied.get(key, 0):
                    raise Violation(f"{now_s:.2f}: {host.name} went back to version {version}")
                self.applied[key] = version

    def void_behind(self, index: int) -> None:
        """Records behind this one never were."""
        self.committed = {at: digest for at, digest in self.committed.items() if at <= index}
        self.applied.clear()

    def _is_before(self, host: Host) -> bool:
        """Whether this host follows a log from before the owner's newest epoch."""
        if isinstance(host, SimLearner):
            return host.is_void or host.learner.context.state.epoch < self.ledger.epoch
        if isinstance(host, SimWitness):
            return host.witness.raft.context.epoch < self.ledger.epoch
        return isinstance(host, SimSyncer) and host.syncer.state.epoch < self.ledger.epoch

    def _check_version(
        self, now_s: float, host: Host, fragment: int, version: int, theta: bytes
    ) -> None:
        state = self.ledger.versions.get((fragment, version))
        if state is not None and state.theta != theta:
            raise Violation(f"{now_s:.2f}: {host.name} has other bits in {fragment}")
        if state is None and version != 0:
            raise Violation(f"{now_s:.2f}: {host.name} holds an uncommitted version {version}")


def check_pushes_count_once(ledger: Ledger) -> None:
    """No push is in two merges, and nobody hands in more steps than it did."""
    seen: set[tuple[bytes, int, int]] = set()
    for merged in ledger.merges:
        for part in merged.contributions:
            push = (part.learner, part.incarnation, part.sequence)
            if push in seen:
                raise Violation(f"push {push[1:]} was merged twice")
            seen.add(push)


def check_tokens_balance(ledger: Ledger, learners: list[SimLearner]) -> None:
    """For each learner and fragment, tokens merged never exceed tokens read."""
    per_sequence = learners[0].tiny.genesis.data.sequence_tokens
    for learner in learners:
        read = len(learner.reads) * per_sequence
        for fragment in range(len(learner.layout.fragments)):
            handed = sum(
                part.tokens
                for merged in ledger.merges
                if merged.fragment == fragment
                for part in merged.contributions
                if part.learner == learner.key
            )
            if handed > read:
                raise Violation(f"{learner.name} handed in {handed} tokens of {read} read")


def check_leases_do_not_overlap(ledger: Ledger, learners: list[SimLearner]) -> None:
    """No position is leased to two sessions at once, and learners read only what they lease."""
    holders: dict[int, tuple[bytes, int]] = {}
    ever: dict[tuple[bytes, int], set[int]] = {}
    for record in ledger.records:
        match record.body:
            case BlocksLeased(learner, incarnation, spans):
                session = (learner, incarnation)
                for span in spans:
                    for position in range(span.start, span.stop):
                        if position in holders:
                            raise Violation(f"position {position} is leased twice")
                        holders[position] = session
                        ever.setdefault(session, set()).add(position)
            case BlocksReturned(learner, incarnation):
                gone = (learner, incarnation)
                holders = {at: holder for at, holder in holders.items() if holder != gone}
    for host in learners:
        for life, position, _ in host.reads:
            if position not in ever.get((host.key, life), set()):
                raise Violation(f"{host.name} read position {position} without a lease")


def check_local_steps_count_once(ledger: Ledger, learners: list[SimLearner]) -> None:
    """No local step of any trainer is in two merges of a fragment, and none is made up."""
    captures = {host.key: host.captures for host in learners}
    handed: dict[tuple[bytes, int, int], int] = {}
    for merged in ledger.merges:
        for part in merged.contributions:
            capture = captures.get(part.learner, {}).get((part.incarnation, part.sequence))
            if capture is None:
                raise Violation(f"push {part.sequence} was merged and never captured")
            trainer, local_step = capture
            first = local_step - part.steps
            key = (part.learner, trainer, merged.fragment)
            if first < handed.get(key, 0):
                raise Violation(
                    f"local steps from {first} of fragment {merged.fragment} were handed in twice"
                )
            handed[key] = local_step


class RejoinChecker:
    """Watches a world: whose optimizer state is taken over, and how old it is."""

    def __init__(self, world: World) -> None:
        self.taken: list[tuple[float, SimLearner, trace.MomentsTaken]] = []
        self._offered: dict[bytes, list[tuple[int, ...]]] = {}
        world.watchers.append(self.watch)

    def watch(self, now_s: float, host: Host, fact: trace.Fact) -> None:
        match fact:
            case trace.MomentsOffered(clock, _):
                self._offered.setdefault(host.key, []).append(clock)
            case trace.MomentsTaken():
                assert isinstance(host, SimLearner)
                self._check(now_s, host, fact)
                self.taken.append((now_s, host, fact))

    def _check(self, now_s: float, host: SimLearner, taken: trace.MomentsTaken) -> None:
        where = f"{now_s:.2f}: {host.name}"
        if taken.given not in self._offered.get(taken.donor, []):
            raise Violation(f"{where} took moments that nobody offered")
        if any(given < asked for given, asked in zip(taken.given, taken.asked, strict=True)):
            raise Violation(f"{where} took moments from before it subscribed")
        if taken.behind > host.tiny.charter.rounds.local_steps:
            raise Violation(f"{where} took {taken.behind} global steps to recover")
        trainer = host.trainer
        if trainer is None or trainer.local_step or trainer.tokens:
            raise Violation(f"{where} began to count before it had moments")
        installed = zip(trainer.moments, host.moments.installed, strict=True)
        if taken.steps < 1 or any((mine != its).any() for mine, its in installed):
            raise Violation(f"{where} trains with other moments than it was given")


def check_all(ledger: Ledger, learners: list[SimLearner]) -> None:
    """Everything that can be judged at the end of a run."""
    ledger.check_whole()
    check_pushes_count_once(ledger)
    check_tokens_balance(ledger, learners)
    check_leases_do_not_overlap(ledger, learners)
    check_local_steps_count_once(ledger, learners)
    check_receipts(ledger, learners)
