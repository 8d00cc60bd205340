"""Sums over what a syncer daemon merged, for people."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from protocol.fragments import Layout
from protocol.log.records import FragmentMerged
from protocol.numerics.payload_sizes import payload_bytes
from protocol.project import RoundSpec
from protocol.status import MergeRow
from protocol.trace import FragmentCommitted


@dataclass(slots=True)
class MergeTotals:
    """Sums over the merges of this daemon's life; of pushes also over merges before it."""

    merges: int = 0
    participants: int = 0
    """Pushes that were merged, also by whoever led before."""
    steps: float = 0.0
    """Local steps in them."""
    push_bytes: int = 0
    push_params: int = 0
    payload_bytes: int = 0
    payload_params: int = 0
    grace_s: float = 0.0
    """Of the newest round."""
    recent: deque[MergeRow] = field(default_factory=lambda: deque(maxlen=64))

    @property
    def effective_h(self) -> float:
        """Local steps per merged push; 0 before the first."""
        return self.steps / self.participants if self.participants else 0.0

    def recall(self, merged: FragmentMerged) -> None:
        """A merge that the log has from before this daemon led."""
        self.participants += len(merged.contributions)
        self.steps += sum(part.steps for part in merged.contributions)

    def add(self, fact: FragmentCommitted, layout: Layout, rounds: RoundSpec) -> None:
        """One merge more."""
        fragment = layout.fragments[fact.fragment]
        params = sum(span.numel for span in fragment.spans)
        self.merges += 1
        self.participants += fact.participants
        self.steps += fact.mean_steps * fact.participants
        self.push_bytes += fact.participants * payload_bytes(rounds.up_codec, fragment.numel)
        self.push_params += fact.participants * params
        self.payload_bytes += payload_bytes(rounds.down_codec, fragment.numel)
        self.payload_params += params
        self.recent.append(
            MergeRow(
                global_step=fact.global_step,
                fragment=fact.fragment,
                participants=fact.participants,
                mean_steps=fact.mean_steps,
                seconds=fact.merge_s,
            )
        )
