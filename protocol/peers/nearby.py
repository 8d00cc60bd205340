"""Projects on the same network: who asks, who answers, and what either believes.

Who looks for projects sends a question to everybody on the network, and hosts that take part in
one answer whoever asked. A host says nothing unasked. An answer is signed over the question's
nonce, so none can be recorded and played again, and it proves the key of the host that gave it;
what it says of its project is proven later, as for any join link.

Sans IO: the owner sends what `due` and `answer` return, and hands in what arrives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from protocol import limits, wire
from protocol.errors import LimitExceeded, MalformedMessage, RemoteError
from protocol.ids import Count, Digest, NodeKey
from protocol.log.accounts import printable
from protocol.messages import Envelope
from protocol.project import AdmissionRule, Genesis, Name
from protocol.signing import Signer, Verify, open_envelope, seal

GREETING: Final = b"shoal nearby 1\n"
"""Other programs may use the same group and port."""

Nonce = Annotated[bytes, Meta(min_length=16, max_length=16)]
Task = Literal["text", "adapter", "hidden-tokens", "images", "own"]

DATAGRAM_BYTES_MAX: Final = 1400
"""One packet of any network, whole."""

ADDRESSES_TOLD_MAX: Final = 4
ADDRESS_CHARS_MAX: Final = 128

ASK_AT_S: Final = (0.0, 0.4, 1.2)
"""Packets get lost, on wireless networks above all when they are for everybody."""

SEARCH_S: Final = 3.0

ANSWER_WITHIN_S: Final = 0.2
"""Answers are spread over so long, so that many hosts do not speak at once."""

ANSWERS_PER_S: Final = 10.0
SAME_ASKER_S: Final = 0.3
ASKERS_KEPT: Final = 256

PROJECTS_MAX: Final = 64
HOSTS_MAX: Final = 8
"""Of one project that a search keeps."""

PLACES_MAX: Final = 4
"""Of one host: it answers on every network that it shares with the asker."""

HEARD_MAX: Final = 2048
HEARD_OF_ONE_MAX: Final = 64
"""Answers from one address that a search looks at: a machine may run several daemons."""

PROJECTS_OF_ONE_MAX: Final = 8


class NearbyQuestion(Struct, frozen=True, array_like=True):
    """What somebody sends who looks for projects; it does not say which."""

    nonce: Nonce


class NearbyNotice(Struct, frozen=True, array_like=True):
    """What a host says of the project that it takes part in; all of it is in the join link, or in
    what the link leads to."""

    nonce: Nonce
    """Of the question."""
    genesis_bytes: Annotated[int, Meta(ge=1, le=limits.GENESIS_BYTES_MAX)]
    name: Name
    addresses: Annotated[
        tuple[Annotated[str, Meta(max_length=ADDRESS_CHARS_MAX)], ...],
        Meta(max_length=ADDRESSES_TOLD_MAX),
    ]
    """As in a join link."""
    port: Annotated[int, Meta(ge=0, le=65_535)]
    """Where this host listens on the address that the answer comes from; 0: not there."""
    role: Literal["learner", "syncer", "witness"]
    task: Task
    parameters: Count
    """That are trained."""
    learners: Annotated[int, Meta(ge=0, le=limits.LEARNERS_MAX)] | None
    """That take part now; None: this host does not know."""
    admission: AdmissionRule


class NearbyAnswer(Struct, frozen=True, array_like=True):
    """A notice, signed by the host that gives it."""

    project: Digest
    sealed: Envelope


def task_of(genesis: Genesis) -> Task:
    """What a project trains, in a word."""
    if genesis.trainer is not None:
        return "own"
    if genesis.images is not None:
        return "images"
    if genesis.masked is not None:
        return "hidden-tokens"
    return "adapter" if genesis.adapter is not None else "text"


def question(nonce: bytes) -> bytes:
    """The datagram that asks."""
    return GREETING + wire.encode(NearbyQuestion(nonce))


def read_question(datagram: bytes) -> NearbyQuestion:
    """MalformedMessage or LimitExceeded for anything else."""
    return wire.decode(_body(datagram), NearbyQuestion, bytes_max=DATAGRAM_BYTES_MAX)


def answer(project: bytes, notice: NearbyNotice, signer: Signer) -> bytes:
    """The datagram that answers. LimitExceeded if it would not be one packet."""
    sealed = seal("nearby", project, wire.encode(notice), signer)
    datagram = GREETING + wire.encode(NearbyAnswer(project, sealed))
    if len(datagram) > DATAGRAM_BYTES_MAX:
        raise LimitExceeded(f"a notice of {len(datagram)} bytes, at most {DATAGRAM_BYTES_MAX}")
    return datagram


def read_answer(
    datagram: bytes, nonce: bytes, verify: Verify
) -> tuple[Digest, NodeKey, NearbyNotice]:
    """Project, host and notice of an answer to this question. RemoteError for anything else."""
    told = wire.decode(_body(datagram), NearbyAnswer, bytes_max=DATAGRAM_BYTES_MAX)
    signer = told.sealed.signer
    payload = open_envelope("nearby", told.project, told.sealed, verify, signer=signer)
    notice = wire.decode(payload, NearbyNotice, bytes_max=DATAGRAM_BYTES_MAX)
    if notice.nonce != nonce:
        raise MalformedMessage("an answer to another question")
    return told.project, signer, notice


def _body(datagram: bytes) -> bytes:
    if len(datagram) > DATAGRAM_BYTES_MAX:
        raise LimitExceeded(f"datagram of {len(datagram)} bytes, at most {DATAGRAM_BYTES_MAX}")
    if not datagram.startswith(GREETING):
        raise MalformedMessage("not of this protocol")
    return datagram[len(GREETING) :]


@dataclass(slots=True)
class NearbyAnswering:
    """Whether and when a host answers a question."""

    rng: Callable[[], float]
    """Numbers from 0 to 1, as they come."""
    _free_s: float = -1e9
    """When everything granted so far is paid for."""
    answered_s: dict[str, float] = field(default_factory=dict)

    def delay_s(self, datagram: bytes, asker: str, now_s: float) -> tuple[float, Nonce] | None:
        """In how many seconds to answer which nonce; None: not at all. asker: an IP address.

        Raises RemoteError for what is no question.
        """
        nonce = read_question(datagram).nonce
        if now_s - self.answered_s.get(asker, -1e9) < SAME_ASKER_S:
            return None
        if self._free_s > now_s + 1.0:
            return None
        self._free_s = max(self._free_s, now_s) + 1.0 / ANSWERS_PER_S
        self.answered_s.pop(asker, None)
        while len(self.answered_s) >= ASKERS_KEPT:
            del self.answered_s[next(iter(self.answered_s))]
        self.answered_s[asker] = now_s
        return ANSWER_WITHIN_S * self.rng(), nonce


@dataclass(frozen=True, slots=True)
class NearbyHost:
    """A host that answered."""

    key: NodeKey
    notice: NearbyNotice
    places: tuple[tuple[str, int], ...]
    """IP addresses that its answers came from, and the port where it listens on them."""


@dataclass(slots=True)
class NearbyProject:
    """A project that was found, and who told of it."""

    project: Digest
    hosts: dict[NodeKey, NearbyHost] = field(default_factory=dict)

    @property
    def notice(self) -> NearbyNotice:
        """What the host that knows most of it says: syncers count the learners."""
        told = [host.notice for host in self.hosts.values()]
        return max(told, key=lambda notice: (notice.learners is not None, notice.role == "syncer"))

    @property
    def name(self) -> str:
        """Without anything that could move a cursor."""
        return printable(self.notice.name)


@dataclass(slots=True)
class NearbySearch:
    """One look around."""

    nonce: bytes
    verify: Verify
    began_s: float
    wanted: Callable[[Digest], bool] | None = None
    """The search ends early once such a project is found."""
    found: dict[Digest, NearbyProject] = field(default_factory=dict)
    refused: int = 0
    """Datagrams that were no sound answer."""
    _asked: int = 0
    _heard: int = 0
    _heard_of: dict[str, int] = field(default_factory=dict)
    _projects_of: dict[str, set[Digest]] = field(default_factory=dict)
    _is_met: bool = False

    def due(self, now_s: float) -> bytes | None:
        """The question, if it is to be sent now."""
        if self._asked >= len(ASK_AT_S) or now_s < self.began_s + ASK_AT_S[self._asked]:
            return None
        self._asked += 1
        return question(self.nonce)

    def pause_s(self, now_s: float) -> float:
        """Seconds until there is something to do; 0 once the search is over."""
        if self._is_met:
            return 0.0
        ends_s = self.began_s + SEARCH_S
        asks = [self.began_s + at_s for at_s in ASK_AT_S[self._asked :]]
        return max(0.0, min([ends_s, *asks]) - now_s)

    def is_over(self, now_s: float) -> bool:
        """Whether nobody is waited for any more."""
        return self._is_met or now_s >= self.began_s + SEARCH_S

    def take(self, datagram: bytes, source: str) -> None:
        """Believes an answer or counts it as refused. source: the IP address it came from."""
        count = self._heard_of.get(source, 0)
        if self._heard >= HEARD_MAX or count >= HEARD_OF_ONE_MAX:
            self.refused += 1
            return
        self._heard += 1
        self._heard_of[source] = count + 1
        try:
            project, key, notice = read_answer(datagram, self.nonce, self.verify)
        except RemoteError:
            self.refused += 1
            return
        self._keep(project, key, notice, source)

    def _keep(self, project: Digest, key: NodeKey, notice: NearbyNotice, source: str) -> None:
        theirs = self._projects_of.setdefault(source, set())
        if project not in theirs and len(theirs) >= PROJECTS_OF_ONE_MAX:
            self.refused += 1
            return
        if project not in self.found and len(self.found) >= PROJECTS_MAX:
            self.refused += 1
            return
        theirs.add(project)
        entry = self.found.setdefault(project, NearbyProject(project))
        former = entry.hosts.get(key)
        if former is None and len(entry.hosts) >= HOSTS_MAX:
            return
        places = list(former.places if former is not None else ())
        if notice.port and len(places) < PLACES_MAX and (source, notice.port) not in places:
            places.append((source, notice.port))
        entry.hosts[key] = NearbyHost(key, notice, tuple(places))
        if self.wanted is not None and self.wanted(project):
            self._is_met = True

    def __iter__(self) -> Iterator[NearbyProject]:
        """What was found, by name."""
        return iter(sorted(self.found.values(), key=lambda one: (one.name, one.project)))
