"""What a copy of another learner's optimizer state is worth to one that comes back.

.venv/bin/python benchmarks/moments_rejoin.py [--cache DIR] [--out FILE]

Three learners train in one process with the daemons' own inner loop: every two local steps the next
of eight fragments is merged by mean and Nesterov, so each fragment every 16 steps (overwrite). At
some steps one learner is restarted in several ways from the very same state of everything, and
everybody goes on over the same text. Exact displacements, no codec: only the optimizer differs.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import nn

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from node.machine.moments import check_moments, moments_numel  # noqa: E402
from node.trainer.loop import InnerLoop, make_accelerator  # noqa: E402
from node.trainer.model import FragmentView, build_model, describe_model, layout_of  # noqa: E402
from node.trainer.moments_view import MomentsView  # noqa: E402
from node.trainer.text.corpus import Corpus, describe_corpus, open_corpus  # noqa: E402
from node.trainer.text.reader import BlockReader  # noqa: E402
from protocol.fragments import build_layout  # noqa: E402
from protocol.numerics.outer import outer_step  # noqa: E402
from protocol.project import DataSpec, Genesis, InnerSpec, TensorSpec  # noqa: E402

FRAGMENTS, H, LEARNERS = 8, 16, 3
TOTAL_STEPS = 480
"""Length of the run that the learning rate is planned for."""

RESTART_AT = (120, 240)
AFTER = 48
WINDOWS = ((0, 4), (4, 8), (8, 16), (16, 32), (32, 48))
KINDS = ("undisturbed", "fresh, ramp of 10", "fresh, no ramp", "peer")
CONFIG = {
    "vocab_size": 257,
    "hidden_size": 128,
    "intermediate_size": 344,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 128,
    "tie_word_embeddings": True,
}
INNER = InnerSpec("adamw", 2e-3, 0.1, 0.9, 0.95, 1.0, 8, 0.05, 0.1, 10)
DATA = DataSpec("python-stdlib", "", "text", "bytes", 128, 16, 1, 0.02, bytes(32))


@dataclass
class Swarm:
    """Learners, and the global value with its momentum."""

    genesis: Genesis
    corpus: Corpus
    loops: list[InnerLoop] = field(default_factory=list)
    theta: list[np.ndarray] = field(default_factory=list)
    momentum: list[np.ndarray] = field(default_factory=list)
    step: int = 0

    def __post_init__(self) -> None:
        self.layout = layout_of(self.genesis)
        for number in range(LEARNERS):
            self.loops.append(self.new_loop(number))
        view = FragmentView(self.loops[0].model, self.layout)
        for fragment in self.layout.fragments:
            values = np.zeros(fragment.numel, np.float32)
            view.read(fragment.index, values)
            self.theta.append(values)
            self.momentum.append(np.zeros_like(values))

    def new_loop(self, number: int, inner: InnerSpec = INNER) -> InnerLoop:
        """A trainer as it starts; each learner has its own text."""
        reader = BlockReader(self.corpus, block_sequences=DATA.block_sequences)
        model = build_model(self.genesis.model, seed=self.genesis.seed)
        loop = InnerLoop(model, reader, inner, accelerator=make_accelerator("cpu"))
        first = 1000 * number + self.step
        reader.append(((first, first + 1000),))
        return loop

    def advance(self) -> list[float]:
        """One local step of everybody, and the merge that is due; the losses."""
        losses = []
        for loop in self.loops:
            loop.progress = self.step / TOTAL_STEPS
            losses.append(loop.step().loss)
        self.step += 1
        every = H // FRAGMENTS
        if self.step % every == 0:
            self._merge((self.step // every) % FRAGMENTS)
        return losses

    def _merge(self, at: int) -> None:
        moved = np.zeros_like(self.theta[at])
        local = np.empty_like(moved)
        views = [FragmentView(loop.model, self.layout) for loop in self.loops]
        for view in views:
            view.read(at, local)
            moved += (self.theta[at] - local) / np.float32(LEARNERS)
        self.theta[at], self.momentum[at] = outer_step(
            self.theta[at], self.momentum[at], moved, learning_rate=0.7, momentum_coefficient=0.5
        )
        for view in views:
            view.write(at, self.theta[at])

    def restart(self, victim: int, kind: str) -> None:
        """The victim's trainer is lost with its unmerged steps, and another one starts."""
        if kind == "undisturbed":
            return
        steps = 0 if kind == "fresh, no ramp" else INNER.fresh_moment_steps
        inner = InnerSpec(*(*_values(INNER)[:9], steps))
        loop = self.new_loop(victim, inner)
        loop.reader = self.loops[victim].reader  # The same text for every kind.
        view = FragmentView(loop.model, self.layout)
        for at, values in enumerate(self.theta):
            view.write(at, values)
        if kind == "peer":
            donor = self.loops[(victim + 1) % LEARNERS].moments(self.layout)
            own = loop.moments(self.layout)
            for fragment in self.layout.fragments:
                values = np.empty(moments_numel(fragment), np.float32)
                donor.read(fragment.index, values)
                check_moments(fragment, values, INNER)
                own.write(fragment.index, values)
            loop.is_seasoned = True
        self.loops[victim] = loop

    def heldout(self) -> float:
        """Held-out loss of the global value."""
        values = np.concatenate(self.theta)
        return self.loops[0].evaluate(self.corpus.heldout(64), layout=self.layout, values=values)


def _values(inner: InnerSpec) -> list:
    return [getattr(inner, name) for name in inner.__struct_fields__]


def clone(swarm: Swarm) -> Swarm:
    """Everything again, but for the text."""
    return copy.deepcopy(swarm, {id(swarm.corpus): swarm.corpus, id(swarm.genesis): swarm.genesis})


def branch(swarm: Swarm, victim: int, kind: str) -> tuple[list[float], float]:
    """Training losses of the victim after the restart, and the held-out loss at the end."""
    twin = clone(swarm)
    twin.restart(victim, kind)
    losses = [twin.advance()[victim] for _ in range(AFTER)]
    return losses, twin.heldout()


def measure_copy(parameters: int) -> float:
    """Seconds that a donor's inner loop stands still for a copy of all moments, on the CPU."""
    specs = tuple(TensorSpec(f"layers.{at}", (parameters // FRAGMENTS,), "rda") for at in range(8))
    model = nn.Module()
    model.layers = nn.ParameterList(torch.zeros(spec.shape) for spec in specs)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    cut = build_layout(specs, "balanced", FRAGMENTS)
    view = MomentsView(model, optimizer, cut)
    slots = [np.zeros(moments_numel(fragment), np.float32) for fragment in cut.fragments]
    started = time.monotonic()
    for at, slot in enumerate(slots):
        view.read(at, slot)
    return time.monotonic() - started


def main() -> int:
    """Prints a table of differences to the undisturbed run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cache", type=Path, default=Path("/tmp/shoal-benchmark-text"))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    chosen.cache.mkdir(parents=True, exist_ok=True)
    for parameters in (1 << 20, 100 << 20):
        seconds = measure_copy(parameters)
        print(f"a copy of the moments of {parameters:,} parameters takes {1000 * seconds:.1f} ms")
    started = time.monotonic()
    facts = describe_corpus(DATA, cache=chosen.cache)
    data = DataSpec(*(*_values(DATA)[:6], facts.blocks, DATA.heldout_frac, facts.digest))
    model = describe_model("LlamaForCausalLM", CONFIG)
    found: list[dict] = []
    for seed in chosen.seeds:
        corpus = open_corpus(data, seed=seed, cache=chosen.cache)
        genesis = Genesis(1, "rejoin", bytes(32), model, data, seed, "balanced", FRAGMENTS)
        swarm = Swarm(genesis, corpus)
        for victim, at in enumerate(RESTART_AT):
            while swarm.step < at:
                swarm.advance()
            for kind in KINDS:
                losses, heldout = branch(swarm, victim, kind)
                found.append(dict(seed=seed, at=at, kind=kind, losses=losses, heldout=heldout))
                means = [statistics.fmean(losses[a:b]) for a, b in WINDOWS]
                shown = "  ".join(f"{mean:.4f}" for mean in means)
                print(
                    f"seed {seed} step {at} {kind:18} {shown}  held-out {heldout:.4f}", flush=True
                )
    heads = "  ".join(f"{a + 1}-{b}" for a, b in WINDOWS)
    print(f"\nmean difference to undisturbed, local steps {heads}, held-out after {AFTER}")
    plain = {(r["seed"], r["at"]): r for r in found if r["kind"] == KINDS[0]}
    for kind in KINDS[1:]:
        rows = [(r, plain[r["seed"], r["at"]]) for r in found if r["kind"] == kind]
        gaps = [
            statistics.fmean(
                statistics.fmean(r["losses"][a:b]) - statistics.fmean(p["losses"][a:b])
                for r, p in rows
            )
            for a, b in WINDOWS
        ]
        last = statistics.fmean(r["heldout"] - p["heldout"] for r, p in rows)
        print(f"{kind:18} " + "  ".join(f"{gap:+.4f}" for gap in gaps) + f"  {last:+.4f}")
    print(f"{time.monotonic() - started:.0f} s")
    if chosen.out:
        chosen.out.write_text(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
