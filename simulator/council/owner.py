"""Disks and keys of a council that are lost or doubled, and what its owner does about it.

One such thing at a time: while a disk is lost, put back or doubled, the owner changes nothing else.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Literal

import msgspec

from protocol.log.records import majority
from protocol.project import Origin, Voter
from simulator.council.council import Council, CouncilVoter

VOTERS_MIN = 3
TWIN_STARTS = 5
"""A second host with the same disk is started so often: its count overtakes the first one's."""


class Owner:
    """Revisions, readmissions and epochs, by chance."""

    def __init__(self, council: Council, chance: random.Random) -> None:
        self.council = council
        self.world = council.world
        self.chance = chance
        self.is_over = False
        self.generations = dict.fromkeys(council.voters, 0)
        """Disks that each host has had."""
        self.twins: list[CouncilVoter] = []
        self._is_busy = False

    def some_s(self) -> float:
        """How long something lasts."""
        return self.chance.choice((0.2, 1.0, 4.0, 8.0, 15.0)) * self.chance.uniform(0.5, 1.5)

    def later(self, action: Callable[[], None]) -> None:
        """Do this when whatever begins now has lasted long enough."""
        self.world.after(self.some_s(), action)

    def is_settled(self) -> bool:
        """Whether the newest charter is in force; the owner waits for that before another."""
        council = self.council
        is_adopted = bool(council.checker.admissions) and not self._is_busy
        return is_adopted and council.checker.charter == council.charter

    def _others(self, host: CouncilVoter) -> list[CouncilVoter]:
        voters = [self.council.voters[voter.key] for voter in self.council.charter.voters]
        return [voter for voter in voters if voter is not host]

    # The charter.

    def revise(self) -> None:
        """Add a host to the voters, or remove one."""
        if not self.is_settled():
            return
        council = self.council
        voters = council.charter.voters
        outside = [
            host for host in council.voters.values() if council.charter.voter(host.key) is None
        ]
        syncers = [voter for voter in voters if voter.role == "syncer"]
        if outside and (len(voters) == VOTERS_MIN or self.chance.random() < 0.5):
            host = self.chance.choice(outside)
            role: Literal["syncer", "witness"]
            role = "witness" if "witness" in host.name else "syncer"
            priority = self.chance.randint(0, 100)
            added = Voter(host.key, role, priority, self.generations[host.key])
            council.tell(f"the owner adds {host.name}")
            council.revise(*voters, added)
        elif len(voters) > VOTERS_MIN:
            leaving = self.chance.choice(voters)
            if leaving.role == "witness" or len(syncers) > 2:
                council.tell(f"the owner removes {council.voters[leaving.key].name}")
                council.revise(*(voter for voter in voters if voter.key != leaving.key))

    def readmit(self, host: CouncilVoter) -> None:
        """Let this host's disk of now vote."""
        council = self.council
        self._is_busy = False
        self.generations[host.key] += 1
        if council.charter.voter(host.key) is None:
            return
        generation = self.generations[host.key]
        council.tell(f"the owner readmits {host.name}")
        council.revise(
            *(
                msgspec.structs.replace(voter, disk=generation) if voter.key == host.key else voter
                for voter in council.charter.voters
            )
        )

    def reset_seat(self) -> None:
        """Begin a new epoch behind what one syncer can prove, with it and some of the others."""
        if not self.is_settled():
            return
        council = self.council
        epoch = council.charter.epoch
        able = [
            host
            for voter in council.charter.voters
            if (host := council.voters[voter.key]).is_syncer
            and host.is_up
            and host.raft.context.epoch == epoch
            and max(council.origin_index, host.disk.floor.index) < host.disk.certified
        ]
        if not able:
            return
        host = self.chance.choice(able)
        host.disk.proofs_synced = len(host.disk.proofs)
        digest = host.disk.digest_at(host.disk.certified)
        assert digest is not None, "it has its last certified record"
        origin = Origin(host.disk.certified, digest)
        kept = [v for v in council.charter.voters if self._is_kept(host, v)]
        names = ", ".join(council.voters[voter.key].name for voter in kept)
        council.tell(f"the owner begins an epoch behind record {origin.index}, with {names}")
        council.begin_epoch(origin, *kept)

    def _is_kept(self, host: CouncilVoter, voter: Voter) -> bool:
        return voter.key == host.key or self.chance.random() < 0.7

    # Disks and keys.

    def wipe(self, host: CouncilVoter) -> None:
        """A disk is lost; the owner readmits the host a little later."""

        def lose(lost: CouncilVoter) -> None:
            self.council.tell(f"the disk of {lost.name} is lost")
            lost.wipe()

        self._strike(host, lose)

    def restore(self, host: CouncilVoter) -> None:
        """A disk is put back to a copy of before its last starts; readmitted a little later."""
        kept = copy.deepcopy(host.disk)

        def put_back(lost: CouncilVoter) -> None:
            # Only to those who met it since is it an old copy.
            if not self._is_known(lost, kept.ballot.boot):
                return
            self.council.tell(f"an old copy of the disk of {lost.name} is put back")
            lost.disk = copy.deepcopy(kept)
            self.council.checker.forget_disk(lost)

        host.crash()
        host.boot()
        self._strike(host, put_back)

    def _is_known(self, host: CouncilVoter, boot: int) -> bool:
        """Whether every other voter met this disk when it was started more often."""
        disk = host.disk.ballot.disk
        pins = [other.disk.ballot.pin(host.key) for other in self._others(host)]
        return all(pin is not None and pin.disk == disk and pin.boot > boot for pin in pins)

    def _strike(self, host: CouncilVoter, lose: Callable[[CouncilVoter], None]) -> None:
        if not self.is_settled():
            return
        self._is_busy = True
        self.council.tell(f"{host.name} will be switched off, for its disk")
        self.world.after(2.0, host.crash)
        self.world.after(7.0, lambda: self._lose(host, lose))

    def _lose(self, host: CouncilVoter, lose: Callable[[CouncilVoter], None]) -> None:
        """By now, whatever was under way arrived."""
        before = host.disk
        if not self.is_over and not host.is_up and self._can_lose(host):
            lose(host)
        if host.disk is before:
            self._is_busy = False
            host.revive()
            return
        self.later(host.revive)
        self.world.after(30.0, lambda: self.readmit(host))

    def _can_lose(self, host: CouncilVoter) -> bool:
        """Whether nothing is lost with one disk: all the others are up and nearly up to date.

        Above all some other syncer has whatever a witness has: payloads are on syncers only.
        """
        council = self.council
        others = self._others(host)
        admitted = council.checker.admissions
        is_admitted = all(
            voter.key in admitted and admitted[voter.key].disk == voter.disk.ballot.disk
            for voter in others
        )
        if not is_admitted or not all(voter.is_up for voter in others):
            return False
        if len(others) < majority(len(others) + 1):
            return False
        logs = [voter.raft.log for voter in others]
        ends = [(log.term_at(log.last), log.last) for log in logs]
        stored = [
            (log.term_at(log.stable), log.stable)
            for voter, log in zip(others, logs, strict=True)
            if voter.is_syncer
        ]
        is_near = min(last for _, last in ends) > max(last for _, last in ends) - 20
        return bool(stored) and max(stored) == max(ends) and is_near

    def double(self, host: CouncilVoter) -> None:
        """The disk and key of a host run on a second one too, which is started again and again."""
        if not self.is_settled() or self.twins:
            return
        # Of a sole voter nobody could tell.
        if not self._others(host) or not self._is_known(host, host.disk.ballot.boot - 1):
            return
        self._is_busy = True
        self.council.tell(f"the disk and key of {host.name} run on a second host, too")
        twin = host.clone()
        twin.disk.ballot = msgspec.structs.replace(twin.disk.ballot, boot=twin.disk.ballot.boot - 1)
        self.twins.append(twin)
        self._start_twin(host, twin, TWIN_STARTS, host.disk.ballot.disk)

    def _start_twin(self, host: CouncilVoter, twin: CouncilVoter, starts: int, name: bytes) -> None:
        """Another start, unless it met nobody: then it could overtake the first one unseen."""
        twin.is_gone = True
        twin.crash()
        has_met = starts == TWIN_STARTS or twin.disk.ballot.disk != name
        if self.is_over or not starts or not has_met:
            self.twins.clear()
            self._is_busy = False
            if host.disk.ballot.disk != name:
                self.readmit(host)
            return
        twin.is_gone = False
        twin.boot()
        self.world.after(8.0, lambda: self._start_twin(host, twin, starts - 1, name))

    def end(self) -> None:
        """Nothing more happens to anybody's disk; who was turned away is readmitted."""
        self.is_over = True
        checker = self.council.checker
        for voter in self.council.charter.voters:
            host, known = self.council.voters[voter.key], checker.admissions.get(voter.key)
            is_other = known is not None and known.disk != host.disk.ballot.disk
            if self.twins and is_other and known is not None and known.generation == voter.disk:
                self.readmit(host)
        for twin in self.twins:
            twin.is_gone = True
            twin.crash()
        self.twins.clear()
