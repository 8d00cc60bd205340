"""What an attacker sees when it hands in a push: what it learned, and what its side and all saw."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from protocol.fragments import Fragment
from protocol.numerics.codecs import F32

MERGED_KEPT = 4
"""Merged displacements of each fragment that a side remembers, as hosts do."""


@dataclass(frozen=True, slots=True)
class Sight:
    """All arrays are flat f32, as long as the fragment."""

    fragment: Fragment
    honest: F32
    """The displacement that it learned."""
    side: tuple[F32, ...]
    """The newest honest displacement of everybody on its side, its own among them."""
    merged: tuple[F32, ...]
    """The last merged displacements of this fragment, which are public; the newest last."""
    pushes: int
    """How many it handed in before."""
    clip_to_median: float
    """The charter's."""

    @property
    def known(self) -> tuple[F32, ...]:
        """Its side's displacements, and the merged ones too where its own is the only one."""
        return self.side if len(self.side) > 1 else (*self.side, *self.merged)


@dataclass(slots=True)
class Side:
    """Attackers that act together, and what they tell each other."""

    learned: dict[tuple[int, int], F32] = field(default_factory=dict)
    """By fragment and attacker: the newest honest displacement."""
    merged: dict[int, deque[tuple[int, F32]]] = field(default_factory=dict)
    """By fragment: version and merged displacement, the newest last."""

    def learn(self, fragment: int, attacker: int, honest: F32) -> None:
        """One of them is about to hand in a push."""
        self.learned[fragment, attacker] = honest

    def hear(self, fragment: int, version: int, merged: F32) -> None:
        """All learners were sent the displacement that made this version."""
        heard = self.merged.setdefault(fragment, deque(maxlen=MERGED_KEPT))
        if not heard or version > heard[-1][0]:
            heard.append((version, merged))

    def sight(
        self, fragment: Fragment, attacker: int, *, pushes: int, clip_to_median: float
    ) -> Sight:
        """What this attacker sees, once it has learned something on this fragment."""
        index = fragment.index
        known = sorted(place for place in self.learned if place[0] == index)
        return Sight(
            fragment=fragment,
            honest=self.learned[index, attacker],
            side=tuple(self.learned[place] for place in known),
            merged=tuple(values for _, values in self.merged.get(index, ())),
            pushes=pushes,
            clip_to_median=clip_to_median,
        )
