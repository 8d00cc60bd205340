"""Whether others can dial this host, and who carries streams to it where they cannot.

Hosts that we are connected with are asked to dial us back, a fresh connection to the address that
they see. Who was reached by half of them is `direct`; where some see an address of IPv4 and some
one of IPv6, by half of those that see the one or the other, as a router may let one through alone.
Behind a NAT a host is `relayed` while one of those that answered, and that we are still connected
with, carries streams for others; `outward` says that it can only dial out. The answers also say who
those relays are.

Sans IO: the owner asks whom `to_ask` names and reports with `told` or `failed`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Literal

from protocol.ids import NodeKey

Reach = Literal["unknown", "direct", "relayed", "outward"]

IpVersion = Literal[4, 6]

RELAYS_MAX = 3
"""One that is gone must not leave the host unreachable, and each holds a connection for us."""

ASK_AT_ONCE_MAX = 4
ANSWERS_WANTED = 3
ANSWER_S = 1800.0
"""A router is changed, a laptop is carried elsewhere: what was so is asked again after this."""

AGAIN_S = (5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 600.0)
"""Pauses before the same host is asked again; the last one repeats."""

PEERS_MAX = 256


@dataclass(slots=True)
class Answer:
    """What one host said last."""

    times: int = 0
    """How often it was asked since anything changed."""
    again_s: float = 0.0
    at_s: float = 0.0
    could_dial: bool | None = None
    """None: it did not try, or did not answer."""
    is_public: bool = False
    """It saw us at an address of the whole internet, from elsewhere."""
    ip_version: IpVersion = 4
    """Of the address that it saw."""
    relays: bool = False


UNASKED = Answer()


@dataclass
class Reaching:
    """The verdict on one host, from what others say."""

    rng: Callable[[], float]
    """Numbers from 0 to 1, as they come."""
    answers: dict[NodeKey, Answer] = field(default_factory=dict)

    def to_ask(self, connected: Collection[NodeKey], now_s: float) -> list[NodeKey]:
        """Whom to ask now, of those we are connected with."""
        if len(self._votes(now_s)) >= ANSWERS_WANTED and not self._wants_relays(connected, now_s):
            return []
        due = [key for key in connected if now_s >= self.answers.get(key, UNASKED).again_s]
        due.sort(key=lambda key: (self.answers.get(key, UNASKED).times, self.rng()))
        return due[:ASK_AT_ONCE_MAX]

    def told(
        self,
        peer: NodeKey,
        *,
        could_dial: bool | None,
        is_public: bool,
        relays: bool,
        now_s: float,
        ip_version: IpVersion = 4,
    ) -> None:
        """A host answered. could_dial: None if it did not try; what it found before still holds."""
        answer = self._asked(peer, now_s)
        answer.relays = relays
        if could_dial is not None:
            answer.at_s, answer.could_dial, answer.is_public = now_s, could_dial, is_public
            answer.ip_version = ip_version

    def failed(self, peer: NodeKey, now_s: float) -> None:
        """A host did not answer: it carries nothing now. What it found before still holds."""
        self._asked(peer, now_s).relays = False

    def moved(self) -> None:
        """Our network changed: all is asked anew."""
        self.answers.clear()

    def verdict(self, connected: Collection[NodeKey], now_s: float) -> Reach:
        """How this host is reached, for all that is known."""
        votes = self._votes(now_s)
        if not votes:
            return "unknown"
        if self.direct_over(now_s):
            return "direct"
        return "relayed" if self.relays(connected) else "outward"

    def relays(self, connected: Collection[NodeKey]) -> tuple[NodeKey, ...]:
        """Hosts that carry streams to us, those that have done so longest first."""
        here = set(connected)
        found = [key for key, answer in self.answers.items() if answer.relays and key in here]
        return tuple(found[:RELAYS_MAX])

    def count(self, now_s: float) -> tuple[int, int]:
        """How many hosts could dial us, and how many tried."""
        votes = [vote for _, vote in self._votes(now_s)]
        return sum(votes), len(votes)

    def direct_over(self, now_s: float) -> tuple[IpVersion, ...]:
        """The versions of the Internet protocol over which others can dial us."""
        found: dict[IpVersion, list[bool]] = {}
        for version, vote in self._votes(now_s):
            found.setdefault(version, []).append(vote)
        return tuple(v for v, votes in sorted(found.items()) if 2 * sum(votes) >= len(votes))

    def closed_over(self, now_s: float) -> tuple[IpVersion, ...]:
        """Those over which it was tried, and they cannot."""
        tried = {version for version, _ in self._votes(now_s)}
        return tuple(sorted(tried.difference(self.direct_over(now_s))))

    def _votes(self, now_s: float) -> list[tuple[IpVersion, bool]]:
        """Of those that saw a public address, if any did: a neighbour says nothing of the NAT."""
        fresh = [
            answer
            for answer in self.answers.values()
            if answer.could_dial is not None and now_s - answer.at_s < ANSWER_S
        ]
        public = [answer for answer in fresh if answer.is_public]
        return [(one.ip_version, bool(one.could_dial)) for one in (public or fresh)]

    def _wants_relays(self, connected: Collection[NodeKey], now_s: float) -> bool:
        is_direct = self.verdict(connected, now_s) == "direct"
        return not is_direct and len(self.relays(connected)) < RELAYS_MAX

    def _asked(self, peer: NodeKey, now_s: float) -> Answer:
        answer = self.answers.get(peer)
        if answer is None:
            while len(self.answers) >= PEERS_MAX:
                del self.answers[min(self.answers, key=lambda key: self.answers[key].at_s)]
            answer = self.answers[peer] = Answer()
        pause_s = AGAIN_S[min(answer.times, len(AGAIN_S) - 1)]
        answer.again_s = now_s + pause_s * (0.75 + 0.5 * self.rng())
        answer.times += 1
        return answer
