"""Who takes part in run.py, in the order of the table."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

THEIRS = str(Path(__file__).parents[2] / ".venv-bench/bin/python")
OURS = sys.executable


@dataclass(frozen=True)
class Contender:
    """What runs for one row of the table: services first, then M workers."""

    name: str
    title: str
    script: str
    package: str
    variant: str = ""
    services: tuple[str, ...] = ()
    python: str = THEIRS


GLOO, HIVEMIND = "gloo_allreduce.py", "hivemind_average.py"
FLOWER, TORCHFT = "flower_fedavg.py", "torchft_diloco.py"

CONTENDERS = (
    Contender("gloo", "torch.distributed gloo all-reduce, float32", GLOO, "torch", "fp32"),
    Contender("gloo-bf16", "torch.distributed gloo all-reduce, bfloat16", GLOO, "torch", "bf16"),
    Contender("hivemind", "hivemind averaging, float32", HIVEMIND, "hivemind", "fp32"),
    Contender("hivemind-fp16", "hivemind averaging, float16", HIVEMIND, "hivemind", "fp16"),
    Contender(
        "torchft", "torchft DiLoCo, float32", TORCHFT, "torchft-nightly", services=("lighthouse",)
    ),
    Contender("flower", "Flower FedAvg, float32", FLOWER, "flwr", services=("server",)),
)
