"""Whether experts should be merged by the tokens that each of them saw.

.venv/bin/python benchmarks/expert_merge.py [--seeds 1 2 3] [--rounds 10] [--steps 16] [--shared]

A small mixture of experts learns a little of four kinds of text. Then four learners go on, each
with one kind alone, so the router sends an expert many tokens at one learner and few at another;
with `--shared` each draws from all four, as learners of a project do that lease one text's blocks.
Every `--steps` local steps their models become one, in one of these ways, and all go on from it:

- alone: one learner with the sequences of all four in every step, nothing merged
- learner: as Shoal does; an expert's tensors count by their learner's tokens, which are equal here
- apart: the same weights, but each expert is merged by itself: one length and direction for each
- expert: each expert by itself, by the tokens that the router sent it

Merges are Shoal's own arithmetic: by mean with a plain outer step (rate 1, no momentum), and
radially with the outer step of a new project file. Told are held-out loss on equal parts of all
kinds of text, and how uneven the tokens of an expert were: the share of the learner that sent it
most, 0.25 if all send the same.
"""

from __future__ import annotations

import argparse
import copy
import json
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from node.trainer.model import build_model, describe_model
from node.trainer.objective import objective_of
from protocol.fragments import BLOCK, build_layout
from protocol.numerics.merge import Contribution, merge_fragment
from protocol.numerics.outer import encode_with_feedback, outer_step
from protocol.project import MergeRule, TensorSpec

Way = Literal["alone", "learner", "apart", "expert"]
WAYS: Final[tuple[Way, ...]] = ("alone", "learner", "apart", "expert")
OUTER: Final[dict[MergeRule, tuple[float, float]]] = {"mean": (1.0, 0.0), "rda": (0.4, 0.7)}
"""Rate and momentum of the outer step that goes with each rule."""

EXPERTS: Final = 8
CONFIG: Final = {
    "vocab_size": 256,
    "hidden_size": 64,
    "moe_intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 16,
    "num_experts": EXPERTS,
    "num_experts_per_tok": 2,
    "router_aux_loss_coef": 0.001,
    "max_position_embeddings": 128,
    "tie_word_embeddings": True,
    "initializer_range": 0.06,
}
TOKENS: Final = 64
BATCH: Final = 4
BASE_STEPS: Final = 300
RATE_BASE: Final = 4e-3
NO_CLIPPING: Final = 1e6
CHARS_MAX: Final = 1_500_000


def texts() -> list[Tensor]:
    """Code, prose, tables of characters, and C++: what every machine with torch has."""
    library = Path(sysconfig.get_paths()["stdlib"])
    headers = Path(torch.__file__).parent / "include" / "ATen"
    kinds = [
        sorted(library.glob("asyncio/*.py")) + sorted(library.glob("email/*.py")),
        sorted(library.glob("pydoc_data/topics.py")),
        sorted(library.glob("encodings/cp*.py")),
        sorted(headers.glob("*.h")),
    ]
    found = []
    for files in kinds:
        content = b"".join(one.read_bytes() for one in files)[:CHARS_MAX]
        found.append(torch.frombuffer(bytearray(content), dtype=torch.uint8))
    return found


class Batches:
    """Sequences drawn from texts, as many of each."""

    def __init__(self, contents: Sequence[Tensor], seed: int) -> None:
        self.contents, self.draw = contents, np.random.default_rng(seed)

    def next(self, count: int) -> Tensor:
        found = []
        for at in range(count):
            text = self.contents[at % len(self.contents)]
            start = int(self.draw.integers(0, len(text) - TOKENS - 1))
            found.append(text[start : start + TOKENS + 1])
        return torch.stack(found).long()


class Counter:
    """Tokens that the router of each layer sends each expert: [layers, experts]."""

    def __init__(self, model: nn.Module) -> None:
        gates = [one for name, one in model.named_modules() if name.endswith("mlp.gate")]
        self.tokens = np.zeros((len(gates), EXPERTS))
        for layer, gate in enumerate(gates):
            gate.register_forward_hook(lambda _m, _i, out, at=layer: self._add(at, out))

    def _add(self, layer: int, output: tuple[Tensor, ...]) -> None:
        chosen = output[-1].reshape(-1)
        self.tokens[layer] += torch.bincount(chosen, minlength=EXPERTS).numpy()


class Learner:
    """A model, its optimizer, its text."""

    def __init__(self, base: nn.Module, batches: Batches, rate: float, sequences: int) -> None:
        self.model, self.batches, self.sequences = copy.deepcopy(base), batches, sequences
        self.counter = Counter(self.model)
        self.objective = objective_of(self.model)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=rate, betas=(0.9, 0.99), weight_decay=0.1
        )

    def step(self) -> None:
        batch = self.batches.next(self.sequences)
        loss = self.objective(self.model, batch) / (len(batch) * TOKENS)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def values(self) -> dict[str, np.ndarray]:
        return {name: one.detach().numpy() for name, one in self.model.named_parameters()}

    def take(self, theta: dict[str, np.ndarray]) -> None:
        with torch.no_grad():
            for name, one in self.model.named_parameters():
                one.copy_(torch.from_numpy(theta[name]))


def padded(values: np.ndarray) -> np.ndarray:
    """Flat, with zeros up to a whole number of blocks."""
    flat = np.zeros(-(-values.size // BLOCK) * BLOCK, np.float32)
    flat[: values.size] = values.reshape(-1)
    return flat


def merged(moved: list[np.ndarray], weights: Sequence[float], rule: MergeRule) -> np.ndarray:
    """One displacement of several, by Shoal's own arithmetic."""
    layout = build_layout((TensorSpec("one", moved[0].shape, rule),), "balanced", 1)
    (fragment,) = layout.fragments
    pushes = []
    for at, (one, weight) in enumerate(zip(moved, weights, strict=True)):
        flat = padded(one)
        payload, _ = encode_with_feedback("f32", flat, np.zeros_like(flat))
        pushes.append(Contribution((bytes([at]) * 32, 1, 1), payload, "f32", float(weight)))
    values = merge_fragment(pushes, fragment, NO_CLIPPING).values
    return values[: moved[0].size].reshape(moved[0].shape)


class Swarm:
    """Learners that train in lock-step, and the model that they come to."""

    def __init__(self, learners: list[Learner], way: Way, rule: MergeRule) -> None:
        self.learners, self.way, self.rule = learners, way, rule
        self.theta = {name: one.copy() for name, one in learners[0].values().items()}
        self.momentum = {name: np.zeros_like(one) for name, one in self.theta.items()}
        self.uneven: list[float] = []

    def merge(self) -> None:
        rate, momentum = OUTER[self.rule]
        counts = np.stack([one.counter.tokens for one in self.learners])
        self.uneven.append(float((counts.max(0) / counts.sum(0).clip(1)).mean()))
        every = [one.values() for one in self.learners]
        for name, before in self.theta.items():
            moved = [before - one[name] for one in every]
            after, kept = outer_step(
                padded(before),
                padded(self.momentum[name]),
                padded(self._merged(name, moved, counts)),
                learning_rate=rate,
                momentum_coefficient=momentum,
            )
            self.theta[name] = after[: before.size].reshape(before.shape)
            self.momentum[name] = kept[: before.size].reshape(before.shape)
        for one in self.learners:
            one.take(self.theta)
            one.counter.tokens[:] = 0

    def _merged(self, name: str, moved: list[np.ndarray], counts: np.ndarray) -> np.ndarray:
        equal = [1.0] * len(moved)
        if self.way == "learner" or ".experts." not in name:
            return merged(moved, equal, self.rule)
        layer = _layer(name)
        found = np.empty_like(moved[0])
        for expert in range(EXPERTS):
            weights = equal if self.way == "apart" else counts[:, layer, expert].tolist()
            found[expert] = merged([one[expert] for one in moved], weights, self.rule)
        return found


def _layer(name: str) -> int:
    return next((int(part) for part in name.split(".") if part.isdigit()), 0)


def loss_of(model: nn.Module, text: Tensor) -> float:
    """Held-out cross-entropy in nats per byte."""
    batches = Batches([text], 7)
    total = 0.0
    for _ in range(4):
        batch = batches.next(32)
        logits = model(input_ids=batch[:, :-1], use_cache=False).logits
        flat = logits.reshape(-1, logits.shape[-1])
        total += float(functional.cross_entropy(flat, batch[:, 1:].reshape(-1)))
    return total / 4


def run(
    base: nn.Module, way: Way, rule: MergeRule, given: argparse.Namespace, seed: int
) -> dict[str, Any]:
    """Held-out losses of one run, and how uneven the experts' tokens were."""
    every = texts()
    trained = [one[: int(0.9 * len(one))] for one in every]
    heldout = [one[int(0.9 * len(one)) :] for one in every]
    kinds = [trained] if way == "alone" else [[one] for one in trained]
    if given.shared and way != "alone":
        kinds = [trained] * len(trained)
    sequences = BATCH * len(trained) // len(kinds)
    learners = [
        Learner(base, Batches(contents, 100 * seed + at), given.rate, sequences)
        for at, contents in enumerate(kinds)
    ]
    swarm = Swarm(learners, way, rule)
    for _ in range(given.rounds):
        for one in learners:
            for _ in range(given.steps):
                one.step()
        if way != "alone":
            swarm.merge()
    with torch.no_grad():
        model = learners[0].model.eval()
        losses = [loss_of(model, one) for one in heldout]
    uneven = float(np.mean(swarm.uneven)) if swarm.uneven else 0.0
    return {"loss": float(np.mean(losses)), "losses": losses, "uneven": uneven}


def begun(seed: int) -> nn.Module:
    """A model that has learned a little of all texts."""
    base: nn.Module = build_model(describe_model("Qwen3MoeForCausalLM", dict(CONFIG)), seed=seed)
    trained = [one[: int(0.9 * len(one))] for one in texts()]
    learner = Learner(base, Batches(trained, seed), RATE_BASE, BATCH)
    for step in range(BASE_STEPS):
        learner.optimizer.param_groups[0]["lr"] = RATE_BASE * (1 - 0.5 * step / BASE_STEPS)
        learner.step()
    base.load_state_dict(learner.model.state_dict())
    return base


def main() -> None:
    """Prints a row for each way, and writes them as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=16, help="local steps between two merges")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--shared", action="store_true", help="every learner reads all texts")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--rules", nargs="+", choices=list(OUTER), default=list(OUTER))
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    bases = {seed: begun(seed) for seed in given.seeds}
    rows = []
    for rule in given.rules:
        for way in given.ways:
            if (way == "alone" and rule != given.rules[0]) or (way, rule) == ("apart", "mean"):
                continue  # A mean of parts is the mean.
            found = [run(base, way, rule, given, seed) for seed, base in bases.items()]
            losses = [one["loss"] for one in found]
            rows.append({"rule": rule, "way": way, "runs": found})
            print(
                f"{rule:5} {way:8} held-out {np.mean(losses):.4f} ({min(losses):.4f} to"
                f" {max(losses):.4f})  {' '.join(f'{one:.4f}' for one in losses)}"
                f"  largest share {np.mean([one['uneven'] for one in found]):.2f}",
                flush=True,
            )
    if given.out is not None:
        about = {key: str(value) for key, value in vars(given).items()}
        given.out.write_text(json.dumps({"given": about, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
