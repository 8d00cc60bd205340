"""What becomes of an adapter when learners merge its two matrices apart.

.venv/bin/python benchmarks/adapter_merge.py [--learners 4] [--seeds 3] [--out FILE]

A small Llama learns the text of some modules of Python's library; an adapter beside it then learns
that of others, of which each learner reads a part. Every `--steps` local steps the learners'
adapters become one, in one of these ways, and all go on from it:

- alone: one learner with as many sequences a step as all of them, nothing merged
- apart: the mean of A and the mean of B
- b: A stays as drawn, the mean of B; then the mean of B A is exact
- products: the best A and B of the same rank for the mean of B A, by singular values

Told are held-out loss at the end, and how far the merged product is from the mean of the products,
over the length of what the learners moved: 0 where a merge is exact.
"""

from __future__ import annotations

import argparse
import copy
import json
import sysconfig
from pathlib import Path
from typing import Final, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from node.trainer.adapters.network import begin_adapter
from node.trainer.model import build_model
from protocol.project import AdapterSpec, ModelSpec

Way = Literal["alone", "apart", "b", "products"]
WAYS: Final[tuple[Way, ...]] = ("alone", "apart", "b", "products")

CONFIG: Final = {
    "vocab_size": 256,
    "hidden_size": 96,
    "intermediate_size": 256,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 128,
    "tie_word_embeddings": True,
    "initializer_range": 0.06,
}
TOKENS: Final = 96
BATCH: Final = 8
BASE_STEPS: Final = 400
RATE_BASE: Final = 4e-3


def text(patterns: tuple[str, ...]) -> Tensor:
    """The bytes of the library's modules that match, one after the other."""
    library = Path(sysconfig.get_paths()["stdlib"])
    files = [one for pattern in patterns for one in sorted(library.glob(pattern))]
    return torch.frombuffer(
        bytearray(b"".join(one.read_bytes() for one in files)), dtype=torch.uint8
    )


class Batches:
    """Sequences drawn from a text."""

    def __init__(self, content: Tensor, seed: int) -> None:
        self.content, self.draw = content, np.random.default_rng(seed)

    def next(self, count: int) -> Tensor:
        starts = self.draw.integers(0, len(self.content) - TOKENS - 1, size=count)
        return torch.stack([self.content[at : at + TOKENS + 1] for at in starts]).long()


def loss_of(model: nn.Module, batch: Tensor) -> Tensor:
    logits = model(input_ids=batch[:, :-1], use_cache=False).logits
    return functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), batch[:, 1:].reshape(-1))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, batches: Batches, count: int) -> None:
    batch = batches.next(count)
    loss_of(model, batch).backward()
    nn.utils.clip_grad_norm_([p for p in model.parameters() if p.requires_grad], 1.0)
    optimizer.step()
    optimizer.zero_grad()


def trained(model: nn.Module) -> dict[str, Tensor]:
    return {name: one.data for name, one in model.named_parameters() if ".lora_" in name}


def layers(adapter: dict[str, Tensor]) -> list[tuple[str, str]]:
    firsts = [name for name in adapter if ".lora_A." in name]
    return [(name, name.replace(".lora_A.", ".lora_B.")) for name in firsts]


def merge(parts: list[dict[str, Tensor]], way: Way) -> dict[str, Tensor]:
    """One adapter of several."""
    if way != "products":
        return {name: torch.stack([one[name] for one in parts]).mean(0) for name in parts[0]}
    found: dict[str, Tensor] = {}
    for first, second in layers(parts[0]):
        product = torch.stack([one[second] @ one[first] for one in parts]).mean(0)
        left, values, right = torch.linalg.svd(product, full_matrices=False)
        rank = parts[0][first].shape[0]
        root = values[:rank].sqrt()
        # Turned so that A stays as near as may be to what it was: moments go on meaning something.
        a, b = root[:, None] * right[:rank], left[:, :rank] * root
        mean = torch.stack([one[first] for one in parts]).mean(0)
        u, _, v = torch.linalg.svd(mean @ a.T, full_matrices=False)
        turn = u @ v
        found[first], found[second] = turn @ a, b @ turn.T
    return found


def error(
    parts: list[dict[str, Tensor]], before: dict[str, Tensor], after: dict[str, Tensor]
) -> float:
    """Of the merged product from the mean of the products, over the length of the mean movement."""
    off = moved = 0.0
    for first, second in layers(before):
        mean = torch.stack([one[second] @ one[first] for one in parts]).mean(0)
        off += float((after[second] @ after[first] - mean).square().sum())
        moved += float((mean - before[second] @ before[first]).square().sum())
    return (off / moved) ** 0.5 if moved else 0.0


def run(
    base: nn.Module, way: Way, given: argparse.Namespace, seed: int, rate: float
) -> dict[str, float]:
    """Held-out loss and mean error of one run."""
    kind = AdapterSpec(
        given.rank, 2.0 * given.rank, 0.0, ("all-linear",), "b" if way == "b" else "both", "f32"
    )
    content = text(tuple(given.text))
    cut = int(0.9 * len(content))
    count = 1 if way == "alone" else given.learners
    sequences = BATCH * given.learners // count
    learners, parts = [], np.array_split(np.arange(cut), count)
    for at in range(count):
        model = copy.deepcopy(base)
        begin_adapter(model, kind, seed)
        named = [one for one in model.parameters() if one.requires_grad]
        optimizer = torch.optim.AdamW(named, lr=rate, betas=(0.9, 0.99), weight_decay=0.0)
        learners.append((model, optimizer, Batches(content[parts[at]], 100 * seed + at)))
    errors = []
    for _ in range(given.rounds):
        before = {name: one.clone() for name, one in trained(learners[0][0]).items()}
        for model, optimizer, batches in learners:
            for _ in range(given.steps):
                train(model, optimizer, batches, sequences)
        moved = [trained(model) for model, _, _ in learners]
        if count > 1:
            after = merge(moved, way)
            errors.append(error(moved, before, after))
            for one in moved:
                for name, values in after.items():
                    one[name].copy_(values)
    heldout = Batches(content[cut:], 7)
    with torch.no_grad():
        loss = float(
            np.mean([float(loss_of(learners[0][0].eval(), heldout.next(32))) for _ in range(8)])
        )
    return {"loss": loss, "error": float(np.mean(errors)) if errors else 0.0}


def main() -> None:
    """Prints a row for each way, and writes them as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--learners", type=int, default=4)
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--steps", type=int, default=24, help="local steps between two merges")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rates", type=float, nargs="+", default=[2e-3, 6e-3])
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--text", nargs="+", default=["json/*.py", "email/*.py"])
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    base = build_model(ModelSpec("LlamaForCausalLM", dict(CONFIG), ()), seed=1)
    optimizer = torch.optim.AdamW(base.parameters(), lr=RATE_BASE, weight_decay=0.1)
    batches = Batches(text(("asyncio/*.py", "unittest/*.py", "xml/*/*.py")), 1)
    for step in range(BASE_STEPS):
        optimizer.param_groups[0]["lr"] = RATE_BASE * (1 - step / BASE_STEPS)
        train(base, optimizer, batches, BATCH)
    rows = []
    for rate in given.rates:
        for way in given.ways:
            found = [run(base, way, given, seed, rate) for seed in range(1, given.seeds + 1)]
            losses, errors = [one["loss"] for one in found], [one["error"] for one in found]
            rows.append({"way": way, "rate": rate, "losses": losses, "errors": errors})
            print(
                f"{way:9} rate {rate:g}  held-out {np.mean(losses):.4f} "
                f"({min(losses):.4f} to {max(losses):.4f})  off by {np.mean(errors):.3f}",
                flush=True,
            )
    if given.out is not None:
        given.out.write_text(
            json.dumps(
                {"given": {k: str(v) for k, v in vars(given).items()}, "rows": rows}, indent=1
            )
        )


if __name__ == "__main__":
    main()
