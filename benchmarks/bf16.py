"""Local steps on a processor in bf16 and in f32: how fast, how much memory, what is learned.

    .venv/bin/python benchmarks/bf16.py [--sizes 0.1m,1m,10m,100m] [--threads 2] [--turns 3]
    .venv/bin/python benchmarks/bf16.py --sizes 1m --steps 600 --turns 2

The trainer's own inner loop, without a swarm, in a process of its own for each turn; precisions
take turns, in changing order. With `--steps` each turn trains for so many local steps, and the
held-out loss behind them, which is measured in f32, is told as well; turns then differ in their
seeds. A processor that has no instructions for bf16 only emulates it. Prints a table.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from host.files.home import Home
from host.files.signed_project import read_signed
from host.runtime.process_status import status_bytes
from shoal.project import file_commands
from shoal.project.template import Value, create_text

ROOT: Final = Path(__file__).parents[1]
SIZES: Final = {
    "0.1m": (64, 2, 8, 64),
    "0.5m": (128, 2, 8, 64),
    "1m": (160, 3, 8, 128),
    "10m": (320, 8, 8, 256),
    "100m": (768, 12, 2, 512),
}
"""Width and layers of Llama models over bytes, sequences in a local step, and their length."""

HEADS: Final = {64: 4, 128: 4, 160: 4, 320: 5, 768: 12}
PRECISIONS: Final = ("f32", "bf16")
SECONDS: Final = 8.0


def signed(folder: Path, size: str, seed: int) -> Path:
    """A project of this size in a folder of its own."""
    width, layers, sequences, tokens = SIZES[size]
    changes: dict[str, Value] = {
        "model.config.hidden_size": width,
        "model.config.intermediate_size": 8 * round(width / 3),
        "model.config.num_hidden_layers": layers,
        "model.config.num_attention_heads": HEADS[width],
        "model.config.num_key_value_heads": HEADS[width],
        "model.config.max_position_embeddings": tokens,
        "data.sequence_tokens": tokens,
        "training.batch_sequences": sequences,
        "project.seed": seed,
    }
    folder.mkdir(parents=True)
    path = folder / "bf16.toml"
    path.write_text(create_text("bf16", changes=changes))
    file_commands.sign(path, home=Home(folder / "home"))
    return path.with_suffix(".shoal")


def turn(path: Path, precision: str, threads: int, steps: int) -> dict[str, Any]:
    """In this process: local steps, their speed, and what was learned."""
    import accelerate
    import torch

    from node.trainer.builtin import builtin_loop
    from node.trainer.model import build_model
    from simulator.compare.bench import open_bench

    project = read_signed(path)
    bench = open_bench(project.genesis, project.charter, path.parent / "cache")
    torch.set_num_threads(threads)
    name = "bf16" if precision == "bf16" else "no"
    loop = builtin_loop(
        build_model(bench.model, seed=project.genesis.seed),
        bench.reader(0, 1 << 20),
        project.charter.inner,
        accelerator=accelerate.Accelerator(cpu=True, mixed_precision=name),
        micro_batch=project.charter.inner.batch_sequences,
    )
    loop.step()
    began_s, done = time.monotonic(), 0
    while done < steps - 1 if steps else time.monotonic() - began_s < SECONDS:
        loop.progress = done / steps if steps else 0.0
        loop.step()
        done += 1
    took_s = time.monotonic() - began_s
    found = {"step_s": took_s / max(done, 1), "peak_mb": (status_bytes("VmHWM") or 0) / 1e6}
    if steps:
        found["heldout"] = bench.heldout_loss(loop, loop.view(bench.layout).copies())
    return {**found, "parameters": sum(one.numel for one in project.genesis.model.tensors)}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", default=",".join(SIZES), help=", ".join(SIZES))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--turns", type=int, default=3, help="of each precision and size")
    parser.add_argument("--steps", type=int, default=0, help="local steps of a turn")
    parser.add_argument("--turn", nargs=2, metavar=("PROJECT", "PRECISION"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.turn:
        path, precision = given.turn
        print(json.dumps(turn(Path(path), precision, given.threads, given.steps)))
        return 0
    print("| parameters | sequences | f32, s | bf16, s | times | memory, MB | held-out |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="shoal-bench-") as folder:
        for size in given.sizes.split(","):
            print(row(Path(folder), size, given), flush=True)
    return 0


def row(folder: Path, size: str, given: argparse.Namespace) -> str:
    """Of the table."""
    found: dict[str, list[dict[str, Any]]] = {one: [] for one in PRECISIONS}
    for at in range(given.turns):
        path = signed(folder / f"{size}-{at}", size, seed=1 + at if given.steps else 1)
        for precision in PRECISIONS if at % 2 else PRECISIONS[::-1]:
            words = ["--turn", str(path), precision, "--threads", str(given.threads)]
            done = subprocess.run(
                [sys.executable, __file__, *words, "--steps", str(given.steps)],
                stdout=subprocess.PIPE,
                check=True,
                cwd=ROOT,
            )
            found[precision].append(json.loads(done.stdout.splitlines()[-1]))
    step_s, peak_mb = (
        {one: statistics.median(turn[what] for turn in found[one]) for one in PRECISIONS}
        for what in ("step_s", "peak_mb")
    )
    _, _, sequences, tokens = SIZES[size]
    losses = [
        " ".join(f"{turn['heldout']:.4f}" for turn in found[one] if "heldout" in turn)
        for one in PRECISIONS
    ]
    return (
        f"| {found['f32'][0]['parameters']:,} | {sequences} of {tokens} | {step_s['f32']:.3f}"
        f" | {step_s['bf16']:.3f} | {step_s['f32'] / step_s['bf16']:.2f}"
        f" | {peak_mb['f32']:.0f}, {peak_mb['bf16']:.0f} | {', '.join(filter(None, losses))} |"
    )


if __name__ == "__main__":
    sys.exit(main())
