"""Voters under every kind of fault at once: `shoal sim sweep --scenario voters --seeds 1000`."""

from __future__ import annotations

import random
from collections.abc import Callable

from protocol.project import Durability
from simulator.checkers.ledger import Violation
from simulator.council.council import FSYNC_S, Council, CouncilVoter
from simulator.council.owner import Owner

FAULTS_S = 90.0
SETTLE_S = 120.0
"""Includes the half minute after which a voter that was turned away tries again."""

CALM_S = 60.0
ENTRIES_KEPT = (8, 40, 10_000)
"""Records at hand for those left behind: with few, they must take a state."""


class Unrest:
    """Plants faults in a council, by chance, and heals all of them in the end."""

    def __init__(self, council: Council) -> None:
        self.council = council
        self.world = council.world
        self.chance = random.Random(f"unrest {council.world.seed}")
        self.is_over = False
        self.owner = Owner(council, self.chance)
        self._kinds: list[tuple[int, Callable[[], None]]] = [
            (6, self._to_somebody(self._crash)),
            (3, self._to_somebody(self._pause)),
            (4, self._partition),
            (3, self._to_somebody(self._isolate)),
            (3, self._one_way),
            (2, self._slow_link),
            (2, self._to_somebody(self._slow_disk)),
            (2, self._to_somebody(self._full_disk)),
            (1, self._to_somebody(self._clock)),
            (1, self._to_somebody(self._leap)),
            (2, self._hand_over),
            (2, self.owner.revise),
            (2, self._to_somebody(self.owner.wipe)),
            (2, self._to_somebody(self.owner.restore)),
            (1, self._to_somebody(self.owner.double)),
            (1, self.owner.reset_seat),
        ]

    def start(self) -> None:
        """Another fault after a while, and so on."""
        self.world.after(self.chance.expovariate(0.5), self._strike)

    def _strike(self) -> None:
        if self.is_over:
            return
        weights = [weight for weight, _ in self._kinds]
        ((_, kind),) = self.chance.choices(self._kinds, weights)
        self.council.checker.disturb()
        kind()
        self.start()

    def _tell(self, words: str) -> None:
        self.council.tell(words)

    def _to_somebody(self, kind: Callable[[CouncilVoter], None]) -> Callable[[], None]:
        """It happens to somebody who is up; often to the leader."""

        def strike() -> None:
            hosts = self.council.leaders()
            if not hosts or self.chance.random() >= 0.4:
                hosts = [host for host in self.council.voters.values() if host.is_up]
            if hosts:
                kind(self.chance.choice(hosts))

        return strike

    # Hosts.

    def _crash(self, host: CouncilVoter) -> None:
        self._tell(f"{host.name} dies")
        host.crash()
        self.owner.later(lambda: self._boot(host))

    def _boot(self, host: CouncilVoter) -> None:
        if not host.is_up:
            self._tell(f"{host.name} starts again")
            host.boot()

    def _pause(self, host: CouncilVoter) -> None:
        self._tell(f"{host.name} stands still for a while")
        host.pause()
        self.owner.later(host.resume)

    def _slow_disk(self, host: CouncilVoter) -> None:
        host.fsync_s = self.chance.choice((0.1, 0.5, 2.0))
        self._tell(f"the disk of {host.name} takes {host.fsync_s:g} s for each write")
        self.owner.later(lambda: setattr(host, "fsync_s", FSYNC_S))

    def _full_disk(self, host: CouncilVoter) -> None:
        disk = host.disk
        disk.is_full = True
        self._tell(f"the disk of {host.name} is full for a while")
        self.owner.later(lambda: setattr(disk, "is_full", False))

    def _clock(self, host: CouncilVoter) -> None:
        shift_s = self.chance.uniform(-1e6, 1e6)
        host.wall_offset_s += shift_s
        self._tell(f"the wall clock of {host.name} is set by {shift_s:+.0f} s")

    def _leap(self, host: CouncilVoter) -> None:
        """The clock by which a host waits runs ahead: every one of its deadlines has passed."""
        leap_s = self.chance.choice((1.0, 5.0, 60.0, 1e5))
        host.clock_ahead_s += leap_s
        self._tell(f"the monotonic clock of {host.name} jumps ahead by {leap_s:g} s")

    def _hand_over(self) -> None:
        leaders = self.council.leaders()
        if leaders:
            leader = leaders[0]
            self._tell(f"{leader.name} is asked to give the seat away")
            leader.is_draining = True
            self.owner.later(lambda: self._come_back(leader))

    def _come_back(self, host: CouncilVoter) -> None:
        """A host that gave its seat away stands again after a restart only."""
        if self.is_over:
            return
        host.is_draining = False
        host.crash()
        self._boot(host)

    # Links.

    def _pair(self) -> tuple[CouncilVoter, CouncilVoter]:
        one, other = self.chance.sample(list(self.council.voters.values()), 2)
        return one, other

    def _partition(self) -> None:
        one, other = self._pair()
        for_s = self.owner.some_s()
        self._tell(f"{one.name} and {other.name} are cut off from each other for {for_s:.1f} s")
        self.world.partition(one.key, other.key, for_s=for_s)

    def _isolate(self, host: CouncilVoter) -> None:
        self._tell(f"{host.name} is cut off from everybody")
        for other in self.council.voters.values():
            if other is not host:
                self.world.partition(host.key, other.key, for_s=self.owner.some_s())

    def _one_way(self) -> None:
        one, other = self._pair()
        for_s = self.owner.some_s()
        self._tell(f"{other.name} hears nothing from {one.name} for {for_s:.1f} s")
        self.world.cut_one_way(one.key, other.key, for_s=for_s)

    def _slow_link(self) -> None:
        one, other = self._pair()
        slow_s = self.chance.choice((0.3, 1.0, 3.0))
        self._tell(f"everything between {one.name} and {other.name} takes {slow_s:g} s longer")
        self.world.slow_down(one.key, other.key, slow_s, for_s=self.owner.some_s())

    # The end.

    def heal(self) -> None:
        """Every fault is over."""
        council = self.council
        self.is_over = True
        self._tell("every fault is over")
        self.owner.end()
        council.world.heal()
        for host in council.voters.values():
            host.resume()
            host.fsync_s, host.disk.is_full, host.is_draining = FSYNC_S, False, False
            if host.is_up and host.raft.election.is_drained:
                host.crash()
            self._boot(host)
        council.bring_charter()
        council.checker.disturb()


def run_seed(
    seed: int, *, faults_s: float | None = None, watch: Callable[[Council], None] = lambda _: None
) -> Council:
    """One run: faults, healing, one leader, calm. Raises Violation.

    faults_s: how long faults come, by default 90 s. watch: is shown the voters before they start.
    """
    chance = random.Random(f"council {seed}")
    syncers, witnesses = chance.choice(((3, 0), (2, 1), (5, 0), (3, 2), (4, 1)))
    durability: Durability = chance.choice(("leader", "standby", "majority"))
    council = Council(seed, syncers=syncers, witnesses=witnesses, spares=1, durability=durability)
    council.entries_kept = chance.choice(ENTRIES_KEPT)
    unrest = Unrest(council)
    watch(council)
    council.boot()
    unrest.start()
    council.run(FAULTS_S if faults_s is None else faults_s)
    unrest.heal()
    check_recovery(council, SETTLE_S)
    check_calm(council)
    return council


def check_recovery(council: Council, within_s: float) -> None:
    """Within this time there is one leader and new records are certified at every voter."""
    target = len(council.checker.records) + 5

    def is_fine() -> bool:
        voters = [council.voters[voter.key] for voter in council.charter.voters]
        seats = [council.charter.voter(host.key) for host in council.leaders()]
        return (
            [voter is not None and voter.role == "syncer" for voter in seats] == [True]
            and council.checker.charter == council.charter
            and all(host.is_up and host.raft.log.certified >= target for host in voters)
        )

    council.run(within_s, stop=lambda: council.world.events % 16 == 0 and is_fine())
    if not is_fine():
        names = [host.name for host in council.leaders()]
        raise Violation(f"not in order {within_s:.0f} s after the last fault: {names} lead")
    council.checker.check_disks(list(council.voters.values()))


def check_calm(council: Council) -> None:
    """Without faults the seat does not move."""
    elections = len(council.checker.elections)
    council.run(CALM_S)
    if len(council.checker.elections) != elections:
        raise Violation("the seat moved without a fault")
