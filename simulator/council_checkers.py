"""What must hold among voters in every run, judged from the outside.

The checker knows records, charters and signatures; it does not know how votes are gathered.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from protocol import wire
from protocol.errors import RemoteError
from protocol.messages import Certificate, CertifiedRecord, GiveVote
from protocol.project import Charter
from protocol.records import (
    Admission,
    CharterAdopted,
    Electorate,
    FragmentMerged,
    Record,
    VotersAdmitted,
    is_elected,
    open_record,
    record_hash,
    signers,
)
from protocol.trace import Fact, RoleChanged
from simulator.ledger import Violation
from simulator.tiny import sim_verify
from simulator.world import Host, World
from syncer_node.raft.jobs import Append

if TYPE_CHECKING:
    from simulator.council import SimVoter

CALM_S = 40.0
"""After this long without a fault every voter that is up should be where it belongs."""


class CouncilChecker:
    """Watches votes, elections, stored records and certified ones."""

    def __init__(self, world: World, charter: Charter) -> None:
        self.world = world
        self.project = charter.project
        self.history: dict[int, bytes] = {}
        """Hash of every record that anybody ever held to be certified."""
        self.records: list[Record] = []
        self.proven: dict[int, bytes] = {}
        """The same, with records that were proven ahead of those before them."""
        self.committed = 0
        """The newest record that was proven to be committed."""
        self.admissions: dict[bytes, Admission] = {}
        """As the certified history has them."""
        self.leaders: dict[tuple[int, int], bytes] = {}
        self.elections: list[tuple[float, int, bytes]] = []
        self.disturbed_s = 0.0
        """When the last fault was planted or healed."""
        self._charters: list[tuple[int, Charter]] = [(0, charter)]
        self._certified: dict[tuple[bytes, bytes, int], int] = {}
        """(host, disk, life) -> last index that it applied."""
        self._owned: dict[tuple[bytes, bytes], int] = {}
        """(host, disk) -> last index that it ever applied."""
        self._given: dict[tuple[bytes, bytes, int, int], bytes] = {}
        world.watchers.append(self._watch)

    @property
    def charter(self) -> Charter:
        """In force after the last certified record."""
        return self._charters[-1][1]

    def disturb(self) -> None:
        """A fault begins or ends now."""
        self.disturbed_s = self.world.now_s

    def _fail(self, host: Host, words: str) -> Violation:
        return Violation(f"{self.world.now_s:.2f}: {host.name} {words}")

    # Votes and elections.

    def on_vote(self, host: SimVoter, candidate: bytes, vote: GiveVote) -> None:
        """A voter said whether it votes for somebody."""
        if vote.is_granted and not vote.is_trial:
            self._give(host, vote.epoch, vote.term, candidate)
            stored = host.disk.ballot
            if (stored.term, stored.voted_for) != (vote.term, candidate):
                raise self._fail(host, f"gave a vote in term {vote.term} that is not on its disk")

    def _give(self, host: SimVoter, epoch: int, term: int, candidate: bytes) -> None:
        key = (host.key, host.disk.ballot.disk, epoch, term)
        if self._given.setdefault(key, candidate) != candidate:
            raise self._fail(host, f"votes for two candidates in term {term}")

    def _watch(self, now_s: float, host: Host, fact: Fact) -> None:
        if isinstance(fact, RoleChanged) and fact.role == "leading":
            self._on_elected(host, fact.term)  # type: ignore[arg-type]

    def _on_elected(self, host: SimVoter, term: int) -> None:
        context = host.raft_machine.raft.context
        votes = host.raft_machine.raft.election.seat_votes
        self._give(host, context.epoch, term, host.key)
        known = self.leaders.setdefault((context.epoch, term), host.key)
        if known != host.key:
            raise self._fail(host, f"is a second leader in term {term}")
        self.elections.append((self.world.now_s, term, host.key))
        charter, electorate = self._electorate(host)
        is_proven = is_elected(
            host.key,
            epoch=context.epoch,
            term=term,
            votes=votes,
            charter=charter,
            verify=sim_verify,
        )
        if not is_proven and charter.voter(host.key) is not None:
            raise self._fail(host, f"leads in term {term} without a majority")
        if not electorate.has_enough(vote.voter for vote in votes):
            raise self._fail(host, f"leads in term {term} with too few votes")
        self._check_log(host)

    def _electorate(self, host: SimVoter) -> tuple[Charter, Electorate]:
        """The charter that a candidate's disk names, and who must agree to its leading."""
        charters = self._charters_on(host)
        place, charter = charters[-1]
        if not self._is_formed(host):
            return charter, Electorate.unanimous(charter.voters)
        if len(charters) == 1 or place <= self.committed:
            return charter, Electorate.of(charter.voters)
        return charter, Electorate.change(charters[-2][1], charter)

    def _charters_on(self, host: SimVoter) -> list[tuple[int, Charter]]:
        """Charters by the record that adopted them, as a disk has them."""
        disk = host.disk
        told = disk.floor_charter or wire.decode(disk.charter.payload, Charter)
        found = [(disk.floor.index, told)]
        for at, encoded in enumerate(disk.log, disk.floor.index + 1):
            body = wire.decode(encoded, Record).body
            if isinstance(body, CharterAdopted):
                charter = wire.decode(body.charter.payload, Charter)
                if len(found) == 1 and disk.floor_charter is None:
                    found = [(0, charter)]
                found.append((at, charter))
        return found

    def _is_formed(self, host: SimVoter) -> bool:
        bodies = (wire.decode(encoded, Record).body for encoded in host.disk.log)
        is_admitted = any(isinstance(body, VotersAdmitted) for body in bodies)
        return is_admitted or bool(host.disk.floor_admissions)

    def on_proof(self, host: SimVoter, certificate: Certificate) -> None:
        """A leader proves a record to somebody, maybe ahead of those before it."""
        index, digest = certificate.index, certificate.record
        if self.proven.setdefault(index, digest) != digest:
            raise self._fail(host, f"proves another record {index}")
        if index <= self.committed or host.disk.digest_at(index) != digest:
            return
        given = signers(certificate, digest, self.project, sim_verify)
        charters = [pair for pair in self._charters_on(host) if pair[0] < index]
        electorates = [Electorate.of(charters[-1][1].voters)]
        for (_, former), (at, charter) in pairwise(charters):
            if at > self.committed:
                electorates.append(Electorate.change(former, charter))
        if not all(electorate.has_enough(given) for electorate in electorates):
            raise self._fail(host, f"proves record {index} with too few votes")
        self.committed = index

    def _check_log(self, host: SimVoter) -> None:
        """A leader has stored every record that anybody ever held to be certified."""
        for index, digest in self.proven.items():
            if index > host.disk.floor.index and host.disk.digest_at(index) != digest:
                raise self._fail(host, f"leads without the certified record {index}")

    # Records.

    def on_certified(self, host: SimVoter, entry: CertifiedRecord, index: int) -> None:
        """A voter applied a record."""
        digest = record_hash(entry.record)
        self._check_order(host, index)
        known = self.history.get(index)
        if known is not None and known != digest:
            raise self._fail(host, f"has another certified record {index}")
        if index > len(self.records) + 1:
            raise self._fail(host, f"applied record {index}, and nobody has those before it")
        charter = next(one for at, one in reversed(self._charters) if at < index)
        try:
            record = open_record(entry, self.project, charter, sim_verify)
        except RemoteError as error:
            raise self._fail(host, f"applied record {index} unproven: {error}") from error
        if host.disk.digest_at(index) != digest:
            raise self._fail(host, f"applied record {index}, which is not on its disk")
        if known is None:
            self._extend(host, record, digest)

    def _check_order(self, host: SimVoter, index: int) -> None:
        owner = (host.key, host.disk.ballot.disk)
        last = self._certified.get((*owner, host.life))
        if last is not None and index != last + 1:
            raise self._fail(host, f"applied record {index} after record {last}")
        self._certified[*owner, host.life] = index
        self._owned[owner] = max(index, self._owned.get(owner, 0))

    def _extend(self, host: SimVoter, record: Record, digest: bytes) -> None:
        before = self.history.get(record.index - 1, bytes(32))
        if record.previous != before:
            raise self._fail(host, f"certified record {record.index} of another history")
        self.history[record.index] = digest
        self.committed = max(self.committed, record.index)
        if self.proven.setdefault(record.index, digest) != digest:
            raise self._fail(host, f"certified another record {record.index} than was proven")
        self.records.append(record)
        if isinstance(record.body, CharterAdopted):
            charter = wire.decode(record.body.charter.payload, Charter)
            self._charters.append((record.index, charter))
        if isinstance(record.body, VotersAdmitted):
            self.admissions.update({one.key: one for one in record.body.voters})

    def on_stored(self, host: SimVoter, job: Append) -> None:
        """A voter wrote records. What it applied is still there; witnesses do not run ahead."""
        last = min(self._owned.get((host.key, host.disk.ballot.disk), 0), job.after)
        if host.disk.last < last:
            raise self._fail(host, f"lost record {last}, which it had applied")
        charter = self._charters[-1][1]
        voter = charter.voter(host.key)
        if voter is not None and voter.role == "witness" and charter.durability != "leader":
            self._check_witness(host, charter, job)

    def _check_witness(self, host: SimVoter, charter: Charter, job: Append) -> None:
        if self.world.now_s - self.disturbed_s < CALM_S:
            return
        syncers = [
            other
            for other in host.council.voters.values()
            if other.is_up and (v := charter.voter(other.key)) is not None and v.role == "syncer"
        ]
        if len(syncers) < 2:
            return
        for encoded in job.records:
            body = wire.decode(encoded, Record).body
            if isinstance(body, FragmentMerged):
                holders = [one for one in syncers if body.payload in one.disk.payloads]
                if len(holders) < 2:
                    raise self._fail(host, "holds a record whose payload only the leader has")

    def check_disks(self, hosts: list[SimVoter]) -> None:
        """Whatever a disk once knew to be certified is on it, as everybody else has it."""
        for host in hosts:
            owned = self._owned.get((host.key, host.disk.ballot.disk), 0)
            for index in range(host.disk.floor.index + 1, owned + 1):
                if host.disk.digest_at(index) != self.history[index]:
                    raise self._fail(host, f"lost the certified record {index}")
