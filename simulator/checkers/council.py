"""What must hold among voters in every run, judged from the outside.

The checker knows records, charters and signatures; it does not know how votes are gathered.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from protocol import wire
from protocol.errors import RemoteError
from protocol.log.records import (
    Admission,
    CharterAdopted,
    Electorate,
    FragmentMerged,
    Record,
    VotersAdmitted,
    electorate,
    is_elected,
    open_record,
    read_record,
    record_hash,
    signers,
    verify_vote,
)
from protocol.messages import Certificate, CertifiedRecord, Envelope, GiveVote
from protocol.project import Charter
from protocol.trace import Fact, RoleChanged
from simulator.checkers.ledger import Violation
from simulator.hosts.voter import SimVoter
from simulator.stand_ins.tiny import sim_verify
from simulator.virtual.world import Host, World
from syncer_node.raft.jobs import Append

CALM_S = 40.0
"""After this long without a fault every voter that is up should be where it belongs."""


@dataclass(slots=True)
class Branch:
    """The history of one epoch; one before its origin is shared with the epoch before."""

    charters: list[tuple[int, Charter]]
    """By the record that adopted them."""
    history: dict[int, bytes] = field(default_factory=dict)
    """Hash of every record that anybody ever held to be certified."""
    records: list[Record] = field(default_factory=list)
    proven: dict[int, bytes] = field(default_factory=dict)
    """The same, with records that were proven ahead of those before them."""
    committed: int = 0
    """The newest record that was proven to be committed."""
    admissions: dict[bytes, Admission] = field(default_factory=dict)
    """As the certified history has them."""

    @property
    def charter(self) -> Charter:
        """In force after the last certified record."""
        return self.charters[-1][1]

    def begin(self, charter: Charter) -> Branch:
        """What goes on when the owner begins an epoch behind the charter's origin."""
        assert charter.origin is not None, "an epoch that is begun has an origin"
        index = charter.origin.index
        history = {at: digest for at, digest in self.history.items() if at <= index}
        return Branch(
            [*(pair for pair in self.charters if pair[0] < index), (index, charter)],
            history,
            self.records[:index],
            dict(history),
            index,
        )


class CouncilChecker:
    """Watches votes, elections, stored records and certified ones."""

    def __init__(self, world: World, charter: Charter, voters: Mapping[bytes, SimVoter]) -> None:
        """voters: everybody who may vote; more may come."""
        self.world = world
        self.voters = voters
        self.project = charter.project
        self.branches = {charter.epoch: Branch([(0, charter)])}
        """By epoch: a host that was not told of a newer one goes on in its own."""
        self.leaders: dict[tuple[int, int], bytes] = {}
        self.elections: list[tuple[float, int, bytes]] = []
        self.disturbed_s = 0.0
        """When the last fault was planted or healed."""
        self._certified: dict[tuple[str, bytes, int], int] = {}
        """(host, disk, life) -> last index that it applied."""
        self._owned: dict[tuple[str, bytes, int], int] = {}
        """(host, disk, epoch) -> last index that it ever applied."""
        self._given: dict[tuple[bytes, bytes, int, int], bytes] = {}
        world.watchers.append(self._watch)

    @property
    def branch(self) -> Branch:
        """Of the newest epoch."""
        return self.branches[max(self.branches)]

    @property
    def charter(self) -> Charter:
        return self.branch.charter

    @property
    def history(self) -> dict[int, bytes]:
        return self.branch.history

    @property
    def records(self) -> list[Record]:
        return self.branch.records

    @property
    def admissions(self) -> dict[bytes, Admission]:
        return self.branch.admissions

    def begin_epoch(self, charter: Charter) -> None:
        """The owner signed a charter of a new epoch."""
        self.branches[charter.epoch] = self.branch.begin(charter)
        self.disturb()

    def forget_disk(self, host: SimVoter) -> None:
        """An old copy of its disk was put back: what it lost since is not to be expected there."""
        owner = (host.name, host.disk.ballot.disk)
        for known in [one for one in self._owned if one[:2] == owner]:
            self._owned[known] = min(self._owned[known], host.disk.last)

    def disturb(self) -> None:
        """A fault begins or ends now."""
        self.disturbed_s = self.world.now_s

    def _fail(self, host: Host, words: str) -> Violation:
        return Violation(f"{self.world.now_s:.2f}: {host.name} {words}")

    # Votes and elections.

    def on_vote(self, host: SimVoter, candidate: bytes, vote: GiveVote) -> None:
        """A voter said whether it votes for somebody."""
        if vote.is_granted and not vote.is_trial:
            if self.leaders.get((vote.epoch, vote.term)) == candidate:
                return  # It acknowledges who was elected; that elects nobody.
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
        context = host.raft.context
        votes = host.raft.election.seat_votes
        self._give(host, context.epoch, term, host.key)
        known = self.leaders.setdefault((context.epoch, term), host.key)
        if known != host.key:
            raise self._fail(host, f"is a second leader in term {term}")
        self.elections.append((self.world.now_s, term, host.key))
        charter, needed = self._electorate(host, context.epoch)
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
        if not needed.has_enough(vote.voter for vote in votes):
            raise self._fail(host, f"leads in term {term} with too few votes")
        self._check_log(host, context.epoch)

    def _electorate(self, host: SimVoter, epoch: int) -> tuple[Charter, Electorate]:
        """The charter that a candidate's disk names, and who must agree to its leading."""
        charters = self._charters_on(host, epoch)
        place, charter = charters[-1]
        if not self._is_formed(host, epoch):
            return charter, Electorate.unanimous(charter.voters)
        if len(charters) == 1 or place <= self.branches[epoch].committed:
            return charter, Electorate.of(charter.voters)
        return charter, Electorate.change(charters[-2][1], charter)

    def _charters_on(self, host: SimVoter, epoch: int) -> list[tuple[int, Charter]]:
        """Charters of an epoch by the record that adopted them, as a disk has them."""
        disk = host.disk
        known, found = disk.floor_summary, list[tuple[int, Charter]]()
        if known is not None and known.epoch == epoch:
            found = [(disk.floor.index, _charter(known.charters[-1].charter))]
        adopted = [
            (record.index, _charter(record.body.charter))
            for record in map(_record, disk.log)
            if record.epoch == epoch and isinstance(record.body, CharterAdopted)
        ]
        if not found:  # The first of an epoch holds from its start.
            first = adopted[0][1] if adopted else _charter(disk.charter)
            found = [(first.origin.index if first.origin is not None else 0, first)]
        return [*found, *adopted]

    def _is_formed(self, host: SimVoter, epoch: int) -> bool:
        known = host.disk.floor_summary
        if known is not None and known.epoch == epoch and known.admissions:
            return True
        records = map(_record, host.disk.log)
        return any(r.epoch == epoch and isinstance(r.body, VotersAdmitted) for r in records)

    def on_proof(self, host: SimVoter, certificate: Certificate) -> None:
        """A leader proves a record to somebody, maybe ahead of those before it."""
        index, digest = certificate.index, certificate.record
        epoch = host.raft.context.epoch
        branch = self.branches[epoch]
        if branch.proven.setdefault(index, digest) != digest:
            raise self._fail(host, f"proves another record {index}")
        if index <= branch.committed or host.disk.digest_at(index) != digest:
            return
        given = signers(certificate, digest, self.project, sim_verify)
        charters = [pair for pair in self._charters_on(host, epoch) if pair[0] < index]
        body = _record(host.disk.log[index - host.disk.floor.index - 1]).body
        is_proven = electorate(body, charters[-1][1]).has_enough(given)
        for (_, former), (at, charter) in pairwise(charters):
            if at > branch.committed:
                known = given | self._signed(host, at)
                is_proven = is_proven and Electorate.change(former, charter).has_enough(known)
        if not is_proven:
            raise self._fail(host, f"proves record {index} with too few votes")
        branch.committed = index

    def _signed(self, host: SimVoter, index: int) -> set[bytes]:
        """Who signed this record, as far as a host can show."""
        log = host.raft.log
        if not log.holds(index):
            return set()
        entry = log.entry(index)
        votes = entry.votes.values()
        return {
            vote.voter
            for vote in votes
            if verify_vote(entry.record, entry.digest, vote, sim_verify)
        }

    def _check_log(self, host: SimVoter, epoch: int) -> None:
        """A leader has stored every record that anybody ever held to be certified."""
        for index, digest in self.branches[epoch].proven.items():
            if index > host.disk.floor.index and host.disk.digest_at(index) != digest:
                raise self._fail(host, f"leads without the certified record {index}")

    # Records.

    def on_certified(self, host: SimVoter, entry: CertifiedRecord, index: int) -> None:
        """A voter applied a record."""
        epoch = entry.certificate.epoch
        if epoch not in self.branches:
            raise self._fail(host, f"applied record {index} of epoch {epoch}, which nobody began")
        self._check_order(host, index, epoch)
        if isinstance(_record(entry.record).body, CharterAdopted):
            self._check_proof(host, index)
        self.on_proven_alone(host, entry, index)

    def on_proven_alone(self, host: SimVoter, entry: CertifiedRecord, index: int) -> None:
        """A voter found on its disk what it can prove, at a start."""
        digest, branch = record_hash(entry.record), self.branches[entry.certificate.epoch]
        known = branch.history.get(index)
        if known is not None and known != digest:
            raise self._fail(host, f"has another certified record {index}")
        if index > len(branch.records) + 1:
            raise self._fail(host, f"applied record {index}, and nobody has those before it")
        charter = next(one for at, one in reversed(branch.charters) if at < index)
        try:
            record = open_record(entry, self.project, charter, sim_verify)
        except RemoteError as error:
            raise self._fail(host, f"applied record {index} unproven: {error}") from error
        if host.disk.digest_at(index) != digest:
            raise self._fail(host, f"applied record {index}, which is not on its disk")
        if known is None:
            self._extend(host, branch, record, digest)

    def _check_proof(self, host: SimVoter, index: int) -> None:
        """Whoever applies a charter can prove it after a power loss too."""
        if host.disk.floor.index + host.disk.proofs_synced < index:
            raise self._fail(host, f"applied charter {index}, whose proof is not on its disk")

    def _check_order(self, host: SimVoter, index: int, epoch: int) -> None:
        owner = (host.name, host.disk.ballot.disk)
        last = self._certified.get((*owner, host.life))
        if last is not None and index != last + 1:
            raise self._fail(host, f"applied record {index} after record {last}")
        self._certified[*owner, host.life] = index
        self._owned[*owner, epoch] = max(index, self._owned.get((*owner, epoch), 0))

    def _extend(self, host: SimVoter, branch: Branch, record: Record, digest: bytes) -> None:
        before = branch.history.get(record.index - 1, bytes(32))
        if record.previous != before:
            raise self._fail(host, f"certified record {record.index} of another history")
        branch.history[record.index] = digest
        branch.committed = max(branch.committed, record.index)
        if branch.proven.setdefault(record.index, digest) != digest:
            raise self._fail(host, f"certified another record {record.index} than was proven")
        branch.records.append(record)
        if isinstance(record.body, CharterAdopted):
            branch.charters.append((record.index, _charter(record.body.charter)))
        if isinstance(record.body, VotersAdmitted):
            branch.admissions.update({one.key: one for one in record.body.voters})

    def on_stored(self, host: SimVoter, job: Append) -> None:
        """A voter wrote records. What it applied is still there; witnesses do not run ahead."""
        epoch = _record(job.records[0]).epoch
        last = min(self._owned.get((host.name, host.disk.ballot.disk, epoch), 0), job.after)
        if host.disk.last < last:
            raise self._fail(host, f"lost record {last}, which it had applied")
        charter = self.branches[epoch].charter if epoch in self.branches else self.charter
        voter = charter.voter(host.key)
        if voter is not None and voter.role == "witness" and charter.durability != "leader":
            self._check_witness(host, charter, job)

    def _check_witness(self, host: SimVoter, charter: Charter, job: Append) -> None:
        if self.world.now_s - self.disturbed_s < CALM_S:
            return
        syncers = [
            other
            for other in self.voters.values()
            if other.is_up and (v := charter.voter(other.key)) is not None and v.role == "syncer"
        ]
        if len(syncers) < 2:
            return
        for encoded in job.records:
            body = _record(encoded).body
            if isinstance(body, FragmentMerged):
                holders = [one for one in syncers if body.payload in one.disk.payloads]
                if len(holders) < 2:
                    raise self._fail(host, "holds a record whose payload only the leader has")

    def check_disks(self, hosts: list[SimVoter]) -> None:
        """Whatever a disk once knew to be certified is on it, as everybody else has it."""
        epoch, history = max(self.branches), self.history
        for host in hosts:
            owned = self._owned.get((host.name, host.disk.ballot.disk, epoch), 0)
            for index in range(host.disk.floor.index + 1, owned + 1):
                if host.disk.digest_at(index) != history[index]:
                    raise self._fail(host, f"lost the certified record {index}")


def _record(encoded: bytes) -> Record:
    return read_record(encoded)


def _charter(envelope: Envelope) -> Charter:
    return wire.decode(envelope.payload, Charter)
