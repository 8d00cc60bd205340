"""What the parts of a voter share: the log, the ballot, the other voters, and who leads."""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from protocol import limits
from protocol.effect_queue import EffectQueue
from protocol.log.accounts import Account
from protocol.log.batching import Telling
from protocol.log.records import Electorate
from protocol.machine import Disconnect, Failed
from protocol.messages import (
    AdoptedCharter,
    CertifiedRecord,
    Envelope,
    Message,
    OrderAnswer,
    OrderMessage,
    StateOffer,
)
from protocol.project import Charter
from protocol.signing import Signer, Verify
from protocol.trace import RoleChanged
from syncer_node.raft.ballot import DISK_NAME_BYTES, Ballot
from syncer_node.raft.jobs import BallotSaved, SaveBallot
from syncer_node.raft.log import Entry, RaftLog

SAVE_RETRY_S = 1.0
HELD_MAX = 512
"""Messages that wait for the ballot, for one voter: with more its stream begins anew."""


class Role(Enum):
    """What a voter is in its term."""

    FOLLOWING = "following"
    TRYING = "asking whether it would be elected"
    STANDING = "standing for election"
    LEADING = "leading"


ROLE_TRANSITIONS: dict[tuple[Role, str], Role] = {
    (Role.FOLLOWING, "silence"): Role.TRYING,
    (Role.FOLLOWING, "handover"): Role.STANDING,
    (Role.TRYING, "would win"): Role.STANDING,
    (Role.TRYING, "leader"): Role.FOLLOWING,
    (Role.STANDING, "lost"): Role.TRYING,
    (Role.STANDING, "leader"): Role.FOLLOWING,
    (Role.STANDING, "elected"): Role.LEADING,
    (Role.LEADING, "deposed"): Role.FOLLOWING,
}


class RaftApp(Protocol):
    """What stands on the log: a syncer's state and payloads, or nothing at a witness."""

    def can_lead(self) -> bool:
        """Whether this host could do the leader's work right now."""
        ...

    def on_certified(self, entry: Entry) -> None:
        """The next record is proven and stored here: apply it."""
        ...

    def on_elected(self) -> None: ...

    def on_deposed(self, reason: str) -> None: ...

    def fetch_payload(self, entry: Entry) -> bool:
        """Whether bytes outside the log are needed before this record may count as stored.

        They are being fetched then, and `Raft.payload_here` is called with the record's index.
        """
        ...

    def state_to_tell(self, peer: bytes) -> Telling | None:
        """For a voter whose log is too far behind: the state instead; None without records."""
        ...

    def on_state_offer(
        self,
        offer: StateOffer,
        origins: list[CertifiedRecord],
        charters: list[AdoptedCharter],
        accounts: dict[bytes, Account],
    ) -> None: ...

    def on_merging(self, peer: bytes, message: OrderMessage | OrderAnswer) -> None:
        """An order of the leader to a merger, or an answer. Raises UnexpectedMessage."""
        ...

    def on_newer_charter(self, envelope: Envelope, charter: Charter) -> None:
        """The owner signed a newer charter than any seen here before."""
        ...


@dataclass(frozen=True, slots=True)
class RaftSetup:
    """What a voter is told once."""

    project: bytes
    owner: bytes
    signer: Signer
    verify: Verify
    rng: random.Random
    wall_offset_s: float
    nonce: int
    """Drawn at this start."""
    addresses: tuple[str, ...] = ()
    """Where this host can be reached."""
    name: str = ""
    """As its owner calls it."""


@dataclass(slots=True)
class PeerVoter:
    """Another voter as this one knows it."""

    key: bytes
    is_up: bool = False
    """There is a stream."""
    is_greeted: bool = False
    """Its hello was accepted on this stream."""
    disk: bytes = b""
    heard_s: float = -1e9
    alive_said_s: float = -1e9
    dial_s: float = 0.0
    failures: int = 0
    addresses: tuple[str, ...] = ()
    """Where it says that it can be reached; nothing is proven by that."""
    name: str = ""
    """As it says that its owner calls it; nothing is proven by that."""
    trouble: str = ""
    """Why it was turned away here."""
    refusal: str = ""
    """Why it turned us away."""
    next: int = 1
    """First record to send it."""
    match: int = 0
    """Last record that it has stored and that agrees with ours, in this term."""
    proven: int = 0
    """Last record whose certificate was sent to it."""
    kept: int = 0
    """Last committed record that its disk, as we know it, said to have stored."""
    head: int = 0
    """Newest committed record that was proven to it ahead of older ones' own certificates."""
    sent: int = 0
    answered: int = 0
    offered_s: float = -1e9
    """When a state began to be told to it, or was told."""
    telling: Telling | None = None
    """The state that it is being told."""
    told_beat: int = 0
    """Last beat ahead of the newest pieces of it; an answer to a later one says that they came."""
    origins: list[CertifiedRecord] = field(default_factory=list)
    """Proofs of fragments that it told us, before the offer of a state that they belong to."""
    accounts: dict[bytes, Account] = field(default_factory=dict)
    """The same of accounts."""
    charters: list[AdoptedCharter] = field(default_factory=list)
    """The same of charters, oldest first."""
    behind_s: float | None = None
    """Since when it lacks something without making progress; None when it has everything."""

    def forget_told(self) -> None:
        """What it told us was used, or was of a state that is not offered any more."""
        self.origins, self.charters, self.accounts = [], [], {}


@dataclass(slots=True)
class Context:
    """One voter's memory and its neighbours."""

    setup: RaftSetup
    effects: EffectQueue
    log: RaftLog
    ballot: Ballot
    app: RaftApp
    charter_envelope: Envelope
    """The newest that the owner signed, adopted or not."""
    newest_charter: Charter
    peers: dict[bytes, PeerVoter] = field(default_factory=dict)
    role: Role = Role.FOLLOWING
    leader: bytes | None = None
    leader_heard_s: float = -1e9
    now_s: float = 0.0
    is_saved: bool = True
    save_retry_s: float | None = None
    saved_disk: bytes = b""
    """The name that the ballot on disk gives it."""
    _saving: Ballot | None = None
    _held_back: dict[bytes, list[tuple[int, Message]]] = field(default_factory=dict)
    """What may be said to each voter once the ballot is on disk: (term, message)."""

    @property
    def key(self) -> bytes:
        return self.setup.signer.key

    @property
    def term(self) -> int:
        return self.ballot.term

    @property
    def epoch(self) -> int:
        return self.log.charter.epoch

    @property
    def is_named(self) -> bool:
        """Whether the disk would still have its name after a crash: before, nobody is told it."""
        return self.saved_disk == self.ballot.disk

    @property
    def is_leading(self) -> bool:
        return self.role is Role.LEADING

    @property
    def is_forming(self) -> bool:
        """Whether this log does not say yet which disks vote: then all must agree."""
        return not self.log.is_formed

    @property
    def is_empty(self) -> bool:
        """Whether nobody has led in this epoch yet, as far as this log knows."""
        origin = self.log.charter.origin
        return self.log.last == (origin.index if origin is not None else 0)

    @property
    def has_origin(self) -> bool:
        """Whether this log begins where the owner said that its epoch does.

        A log that was cut there or begun behind it is the only kind that is not empty.
        """
        origin = self.log.charter.origin
        return origin is None or self.log.stable >= origin.index

    @property
    def is_whole(self) -> bool:
        """Whether this disk has everything that it ever signed."""
        return self.log.stable >= self.ballot.owed

    def is_majority(self, keys: Collection[bytes]) -> bool:
        """Whether these elect: a majority; everybody while no log could prove who is new."""
        electorates = self.log.electorates()
        if self.is_forming:
            electorates.append(Electorate.unanimous(self.log.charter.voters))
        return all(electorate.has_enough(keys) for electorate in electorates)

    def counts(self, peer: PeerVoter) -> bool:
        """Whether votes of this voter's disk count."""
        return self.is_forming or self.log.is_admitted(peer.key, peer.disk)

    def greeted(self) -> list[PeerVoter]:
        return [peer for peer in self.peers.values() if peer.is_greeted]

    def fire(self, trigger: str, detail: str = "") -> None:
        """Change the role, and say so."""
        self.role = ROLE_TRANSITIONS[self.role, trigger]
        self.effects.emit(RoleChanged(self.role.value, self.term, detail))

    def is_leader_alive(self) -> bool:
        """Whether this voter has reason to believe that somebody leads."""
        if self.is_leading:
            return True
        return self.now_s - self.leader_heard_s < limits.ELECTION_TIMEOUT_S_MIN

    # The ballot: nothing is said in a term, and no vote given, before it is on disk.

    def remember(self, ballot: Ballot) -> None:
        """Write this ballot; what is said from now on waits for it."""
        if ballot == self.ballot:
            return
        self.ballot = ballot
        self.is_saved = False
        self._save()

    def say(self, peer: bytes, message: Message) -> None:
        """Send once the ballot is on disk; dropped if the term is over by then."""
        if self.is_saved:
            self.effects.send(peer, message)
        else:
            held = self._held_back.setdefault(peer, [])
            held.append((self.term, message))
            if len(held) > HELD_MAX:
                # A gap in what it hears would be taken for another log: begin anew.
                self.forget_held(peer)
                self.effects.out.append(Disconnect(peer, "the ballot cannot be written"))

    def forget_held(self, peer: bytes) -> None:
        """The stream that this was meant for has ended."""
        self._held_back.pop(peer, None)

    def rename_disk(self, generation: int) -> None:
        """This disk counts as another one from now on; its former votes are void for good."""
        self._held_back.clear()
        name = self.setup.rng.randbytes(DISK_NAME_BYTES)
        self.remember(self.ballot.renamed(name, generation))

    def on_saved(self, job: SaveBallot, result: object) -> bool:
        """Whether everything that was to be remembered is on disk now."""
        self._saving = None
        if not isinstance(result, BallotSaved):
            reason = result.reason if isinstance(result, Failed) else "not written"
            self.effects.emit(
                RoleChanged("silent: its ballot cannot be written", self.term, reason)
            )
            self.save_retry_s = self.now_s + SAVE_RETRY_S
            return False
        self.saved_disk = job.ballot.disk
        if job.ballot != self.ballot:
            self._save()
            return False
        self.is_saved = True
        held, self._held_back = self._held_back, {}
        for peer, messages in held.items():
            for term, message in messages:
                if term == self.term:
                    self.effects.send(peer, message)
        return True

    def look(self) -> None:
        """Try again to write the ballot."""
        if self.save_retry_s is not None and self.now_s >= self.save_retry_s:
            self.save_retry_s = None
            self._save()

    def _save(self) -> None:
        if self._saving is None and self.save_retry_s is None:
            self._saving = self.ballot
            self.effects.start(SaveBallot(self.ballot))
