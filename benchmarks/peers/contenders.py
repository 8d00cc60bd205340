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
    dies: bool = True
    """Whether a worker is killed at the end; what else differs would not show there."""

    def roles(self, workers: int) -> list[tuple[str, int]]:
        """Of all its processes in the order of starting, with the rank of each worker."""
        services = [(role, -1) for role in self.services]
        return services + [("worker", rank) for rank in range(workers)]


GLOO, HIVEMIND = "gloo_allreduce.py", "hivemind_average.py"
SHOAL = "shoal_merge.py"
FLOWER, TORCHFT = "flower_fedavg.py", "torchft_diloco.py"

CONTENDERS = (
    Contender("shoal", "Shoal, 4 bit (as it comes)", SHOAL, "shoal", "int4", ("syncer",), OURS),
    Contender(
        "shoal-bf16", "Shoal, bfloat16", SHOAL, "shoal", "bf16", ("syncer",), OURS, dies=False
    ),
    Contender("gloo", "gloo all-reduce, float32", GLOO, "torch", "fp32"),
    Contender("gloo-bf16", "gloo all-reduce, bfloat16", GLOO, "torch", "bf16", dies=False),
    Contender("hivemind", "hivemind averaging, float32", HIVEMIND, "hivemind", "fp32", dies=False),
    Contender("hivemind-fp16", "hivemind averaging, float16", HIVEMIND, "hivemind", "fp16"),
    Contender(
        "torchft", "torchft DiLoCo, float32", TORCHFT, "torchft-nightly", "", ("lighthouse",)
    ),
    Contender("flower", "Flower FedAvg, float32", FLOWER, "flwr", "", ("server",)),
)
