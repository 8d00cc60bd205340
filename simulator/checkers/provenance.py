"""Where weights are sets of local steps: whether every set is what it must be.

See `simulator.stand_ins.provenance` for the sets themselves.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from node.machine.learner import LearnerMachine
from protocol.log.records import FragmentMerged
from protocol.numerics.codecs import F32, decode, encode
from simulator.checkers.ledger import Ledger, Violation
from simulator.hosts.learner import SimLearner
from simulator.stand_ins.provenance import UNIT, ProvenanceBackend, ProvenanceTrainer

ROUNDING = 1e-3
"""Of a step: what float32 may lose where merges have gone in at another rate than 1."""

Push = tuple[bytes, int, int]
"""(learner, incarnation, sequence)."""


def _trainer(host: SimLearner) -> ProvenanceTrainer:
    assert isinstance(host.trainer, ProvenanceTrainer)
    return host.trainer


class ProvenanceChecker:
    """Compares sets whenever a learner hands in, and whenever a merge is committed."""

    def __init__(
        self, ledger: Ledger, backend: ProvenanceBackend, learners: list[SimLearner]
    ) -> None:
        self.ledger = ledger
        self.backend = backend
        self.pushes: dict[Push, tuple[int, frozenset[int]]] = {}
        """Fragment and steps of everything handed in."""
        self.compared = 0
        fragments = len(learners[0].layout.fragments)
        self._values: list[list[F32]] = [
            [np.zeros(backend.capacity, np.float32)] for _ in range(fragments)
        ]
        self._merged: list[dict[int, int]] = [{} for _ in range(fragments)]
        """Step -> version of the fragment that contains it."""
        self._discarded: dict[tuple[bytes, int, int], set[int]] = {}
        """Learner, trainer and fragment -> steps whose displacement an assignment overwrote."""
        ledger.on_merge.append(self._on_merge)
        for learner in learners:
            learner.on_capture.append(self._on_capture)
            learner.on_assign.append(self._on_assign)

    # What a trainer does.

    def _on_assign(self, host: SimLearner, fragment: int) -> None:
        """The inner loop starts over from the global value: what was not handed in is gone."""
        if not host.is_void:
            self._overwritten(host, fragment).update(_trainer(host).slots)

    def _on_capture(
        self, host: SimLearner, fragment: int, sequence: int, base: int, payload: bytes
    ) -> None:
        """A push was encoded: it is what this trainer did since it last handed in."""
        if host.is_void:
            return
        local = _trainer(host).theta[fragment]
        assert local is not None
        who = f"{host.name}: push {sequence} of fragment {fragment}"
        if base >= len(self._values[fragment]):
            raise Violation(f"{who} is based on version {base}, which was never committed")
        displacement = self._values[fragment][base] - local
        codec = host.tiny.charter.rounds.up_codec
        if self.backend.is_uneven:
            is_rebase = host.tiny.charter.rounds.apply == "rebase"
            if is_rebase and payload != encode(codec, displacement):
                raise Violation(f"{who} is not the displacement that is not handed in")
            return
        values = decode(codec, payload, displacement.size)
        steps = self._steps(who, values)
        self._compare(host, fragment, base, who, steps)
        self.pushes[host.key, host.incarnation, sequence] = (fragment, steps)
        self.compared += 1

    def _compare(
        self, host: SimLearner, fragment: int, base: int, who: str, steps: frozenset[int]
    ) -> None:
        mine = set(_trainer(host).slots)
        strange = steps - mine
        if strange:
            whose = {self.backend.takers[slot] for slot in strange}
            kind = "a trainer that is gone" if whose == {host.key} else "other learners"
            raise Violation(f"{who} contains {len(strange)} local steps of {kind}")
        merged = {slot for slot in mine if self._merged[fragment].get(slot, base + 1) <= base}
        twice = steps & merged
        if twice:
            raise Violation(f"{who} contains {len(twice)} local steps that were merged before")
        missing = mine - steps - merged - self._overwritten(host, fragment)
        if missing:
            raise Violation(f"{who} lacks {len(missing)} local steps that were never merged")

    def _steps(self, who: str, values: F32) -> frozenset[int]:
        steps = values > UNIT / 2
        if np.abs(values - UNIT * steps).max() > UNIT * ROUNDING:
            raise Violation(
                f"{who} is no set: {values.min() / UNIT:g} to {values.max() / UNIT:g} of a step"
            )
        return frozenset(np.flatnonzero(steps).tolist())

    def _overwritten(self, host: SimLearner, fragment: int) -> set[int]:
        return self._discarded.setdefault((host.key, host.trainer_number, fragment), set())

    def check_cut(self, host: SimLearner, fragment: int) -> None:
        """A part was cut: what is not handed in is what this trainer did since it last did."""
        local = _trainer(host).theta[fragment]
        assert local is not None
        standing = host.bank.standing()[fragment]
        base = standing.base.version
        who = f"{host.name}: its part of fragment {fragment}"
        if not self.backend.is_uneven:
            steps = self._steps(who, self._values[fragment][base] - local)
            # What is known to be in the base and not taken off yet is told by the part, too.
            machine = host.machine
            assert isinstance(machine, LearnerMachine)
            told = machine.fragment_sync.local_fragments[fragment].merged_sequence
            known = {
                slot
                for (key, _, sequence), (at, handed) in self.pushes.items()
                if key == host.key and at == fragment
                if sequence in standing.merged or sequence == told
                for slot in handed
                if self._merged[fragment].get(slot, base + 1) <= base
            }
            self._compare(host, fragment, base, who, steps - known)
            self.compared += 1

    def discarded(self, host: SimLearner) -> list[set[int]]:
        """Of its trainer, by fragment: what assignments overwrote so far."""
        return [set(self._overwritten(host, at)) for at in range(len(self._values))]

    def merged_of(self, learner: bytes) -> int:
        """Local steps of this learner that are in the global value, summed over fragments."""
        takers = self.backend.takers
        return sum(takers[slot] == learner for merged in self._merged for slot in merged)

    def go_back(self, versions: Sequence[int]) -> None:
        """Merges behind these versions never were."""
        for at, version in enumerate(versions):
            del self._values[at][version + 1 :]
            merged = self._merged[at]
            self._merged[at] = {slot: found for slot, found in merged.items() if found <= version}

    def go_on(self, host: SimLearner, discarded: list[set[int]]) -> None:
        """A trainer went on from a part: whatever was overwritten behind the cut never was."""
        for at, slots in enumerate(discarded):
            self._discarded[host.key, host.trainer_number, at] = set(slots)

    # What the log says.

    def _on_merge(self, merged: FragmentMerged, payload: bytes | None) -> None:
        fragment, former = merged.fragment, self._values[merged.fragment][-1]
        if payload is None:
            raise Violation(f"the payload of fragment {fragment} v{merged.version} is nowhere")
        values = decode(merged.codec, payload, self.backend.capacity)
        rate = np.float32(merged.learning_rate)
        self._values[fragment].append((former - rate * values).astype(np.float32))
        if self.backend.is_uneven:
            return
        expected = np.zeros(self.backend.capacity, np.float32)
        for part in merged.contributions:
            self._count(merged, (part.learner, part.incarnation, part.sequence), expected)
            _, steps = self.pushes[part.learner, part.incarnation, part.sequence]
            if part.steps != len(steps):
                raise Violation(
                    f"a push of fragment {fragment} claims {part.steps} local steps and "
                    f"contains {len(steps)}"
                )
        if np.abs(values - expected).max() > UNIT * ROUNDING:
            raise Violation(f"fragment {fragment} v{merged.version} is not what was handed in")

    def _count(self, merged: FragmentMerged, push: Push, expected: F32) -> None:
        known = self.pushes.get(push)
        if known is None or known[0] != merged.fragment:
            raise Violation(f"push {push[1:]} was merged and never handed in")
        for slot in known[1]:
            if slot in self._merged[merged.fragment]:
                raise Violation(f"local step {slot} of fragment {merged.fragment} was merged twice")
            self._merged[merged.fragment][slot] = merged.version
            expected[slot] += UNIT
