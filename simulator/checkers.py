"""What must hold in every run, judged from the outside by what hosts said and stored.

A checker knows nothing of how machines work. It raises `Violation` with the time and the hosts.
"""

from __future__ import annotations

from protocol.records import BlocksLeased, BlocksReturned
from protocol.trace import Fact, FragmentAdvanced, FragmentApplied, RecordCommitted
from simulator.hosts import SimLearner
from simulator.ledger import Ledger, Violation
from simulator.world import Host, World


class SafetyChecker:
    """Watches a world: one history, certified versions only, versions only grow."""

    def __init__(self, world: World, ledger: Ledger) -> None:
        self.ledger = ledger
        self.committed: dict[int, bytes] = {}
        self.applied: dict[tuple[bytes, int, int], int] = {}
        world.watchers.append(self.watch)

    def watch(self, now_s: float, host: Host, fact: Fact) -> None:
        match fact:
            case RecordCommitted(index, _, digest, _):
                known = self.committed.setdefault(index, digest)
                if known != digest:
                    raise Violation(f"{now_s:.2f}: {host.name} has another record {index}")
            case FragmentAdvanced(fragment, version, theta, _):
                self._check_version(now_s, host, fragment, version, theta)
            case FragmentApplied(fragment, version, _):
                key = (host.key, host.life, fragment)
                if version < self.applied.get(key, 0):
                    raise Violation(f"{now_s:.2f}: {host.name} went back to version {version}")
                self.applied[key] = version

    def _check_version(
        self, now_s: float, host: Host, fragment: int, version: int, theta: bytes
    ) -> None:
        for merged in self.ledger.merges:
            if (merged.fragment, merged.version) == (fragment, version):
                if merged.state.theta != theta:
                    raise Violation(f"{now_s:.2f}: {host.name} has other bits in {fragment}")
                return
        if version != 0:
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
            case _:
                pass
    for host in learners:
        for life, position, _ in host.reads:
            if position not in ever.get((host.key, life), set()):
                raise Violation(f"{host.name} read position {position} without a lease")


def check_all(ledger: Ledger, learners: list[SimLearner]) -> None:
    """Everything that can be judged at the end of a run."""
    check_pushes_count_once(ledger)
    check_tokens_balance(ledger, learners)
    check_leases_do_not_overlap(ledger, learners)
