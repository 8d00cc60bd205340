"""Simulated councils that have a leader, what befalls their voters, and a search for violations."""

from __future__ import annotations

from simulator.checkers.ledger import Violation
from simulator.council.council import Council, SimVoter
from simulator.council.swarm import run_seed

SEEDS_TO_FIND = 60
RECOVERY_S = 60.0


def council(seed: int = 1, **changes) -> Council:
    """A council with a leader that everybody follows."""
    made = Council(seed, **changes)
    made.boot()
    made.run(15.0)
    return made


def standbys(of: Council) -> list[SimVoter]:
    return [host for host in of.voters.values() if not host.is_leading]


def isolate(of: Council, host: SimVoter, for_s: float) -> None:
    for other in of.voters.values():
        if other is not host:
            of.world.partition(host.key, other.key, for_s=for_s)


def refusals(host: SimVoter) -> list[str]:
    """Why others turn this host away."""
    return [peer.refusal for peer in host.raft_machine.raft.context.peers.values() if peer.refusal]


def wipe(of: Council, host: SimVoter) -> None:
    host.crash()
    of.run(1.0)
    host.wipe()
    host.boot()


def finds(words: str, run=run_seed) -> bool:
    """Whether a violation in these words comes up within a bounded number of seeds."""
    for seed in range(SEEDS_TO_FIND):
        try:
            run(seed)
        except Violation as violation:
            if words in str(violation):
                return True
        except AssertionError:
            continue
    return False
