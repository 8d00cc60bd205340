"""What travels between learners and their syncer: pushes on their way in, merged fragments out.

Statuses come twice a second and say how much was merged since the last; here that becomes packets
that set out one after the other, at the pace of the swarm. A packet is drawn once its push is in
the log, so what is seen has happened.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from protocol.status import SyncerStatus
from tui.text.election import alive

TRAVEL_S: Final = 1.0
"""From a learner to the syncer, or back."""

INTERVAL_S_MAX: Final = 15.0
"""News that come less often than this are no longer spread over the time between them."""

GAP_S_MIN: Final = 0.3
"""Between two packets of one lane: a swarm that merges faster shows a steady stream."""

LANES_MAX: Final = 128
"""So many learners are drawn in motion; of more the eye sees no single one."""


class Packet(NamedTuple):
    """Something under way."""

    lane: str
    """Key of the learner."""
    is_push: bool
    """On its way to the syncer; otherwise a merged fragment on its way to the learner."""
    place: float
    """0 where it set out, 1 where it arrives."""


class _Launch(NamedTuple):
    at_s: float
    lane: str
    is_push: bool


class Traffic:
    """Takes in one status of the leader after the other."""

    def __init__(self) -> None:
        self._leader = ""
        self._told_s: float | None = None
        self._step = 0
        self._merges: dict[str, int] = {}
        self._launches: list[_Launch] = []

    def observe(self, status: SyncerStatus | None, at_s: float, *, is_jump: bool = False) -> None:
        """What the leader says at `at_s`, wall clock in seconds; None while nobody leads.

        is_jump: what was known before is of another time, and nothing travelled since.
        """
        if status is None:
            return
        merges = {peer.key: peer.merges for peer in alive(status)}
        step = status.swarm.global_step
        is_first = is_jump or self._told_s is None
        is_new = is_first or status.key != self._leader or step < self._step
        if not is_new and (step, merges) == (self._step, self._merges):
            return
        if self._told_s is not None and not is_new:
            interval_s = min(max(at_s - self._told_s, GAP_S_MIN), INTERVAL_S_MAX)
            pushes = {key: count - self._merges.get(key, count) for key, count in merges.items()}
            for key in _some([key for key, count in pushes.items() if count > 0]):
                self._launch(key, pushes[key], at_s, interval_s, is_push=True)
            for key in _some(list(merges)):
                self._launch(key, step - self._step, at_s + TRAVEL_S, interval_s, is_push=False)
        else:
            self._launches.clear()
        self._leader, self._told_s, self._step, self._merges = status.key, at_s, step, merges

    def look_away(self) -> None:
        """Nobody sees what travels; the next status is the first one again."""
        self._launches.clear()
        self._told_s = None

    def _launch(
        self, lane: str, count: int, at_s: float, interval_s: float, *, is_push: bool
    ) -> None:
        """So many packets, evenly over the time until there is news again."""
        shown = min(count, max(int(interval_s / GAP_S_MIN), 1))
        # Lanes do not march in step: each begins at a place of its own within the gap.
        shift = sum(lane.encode()) % 16 / 16
        for number in range(shown):
            begins_s = at_s + (number + shift) * interval_s / shown
            self._launches.append(_Launch(begins_s, lane, is_push))

    def moving(self, now_s: float) -> Iterator[Packet]:
        """What is under way at `now_s`; what has arrived is forgotten."""
        self._launches = [one for one in self._launches if now_s - one.at_s <= TRAVEL_S]
        for one in self._launches:
            if one.at_s <= now_s:
                yield Packet(one.lane, one.is_push, (now_s - one.at_s) / TRAVEL_S)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way, nor about to set out."""
        return not self._launches


def _some(keys: list[str]) -> list[str]:
    """At most `LANES_MAX` of them, from all over."""
    return keys[:: -(-len(keys) // LANES_MAX) or 1]
