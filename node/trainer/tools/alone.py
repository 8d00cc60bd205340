"""The baseline: one learner without a swarm, `python -m node.trainer.tools.alone --help`.

Same model, text order, inner loop and learning-rate schedule as a learner of the project; nothing
is merged. After N local steps the held-out loss is written as JSON.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from node.trainer import files
from node.trainer.failures import TrainerFailure
from node.trainer.link.messages import Configure
from node.trainer.main import be_quiet
from node.trainer.setup import TrainerSetup, limit_resources
from protocol.errors import UserError
from protocol.project import Charter, Genesis, encode

SAYS_EVERY_S: Final = 1.0


class AloneResult(Struct, frozen=True):
    """What training alone reached."""

    eval_loss: float
    """Held-out loss in nats per token."""
    train_loss: float
    """Of the last local step."""
    steps: int
    tokens: int
    seconds: float
    """Of training; start-up and evaluation excluded."""


def train_alone(
    genesis: Genesis,
    charter: Charter,
    *,
    steps: int,
    data_cache: Path,
    threads: int = 1,
    device: str | None = None,
    weights: Path | None = None,
    base: Path | None = None,
    out_weights: Path | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> AloneResult:
    """Trains from version 0 for `steps` local steps and evaluates.

    `weights` names a file with version 0; without it the seed draws it, or it is taken from the
    project's base model in the folder `base`. `say` gets a line of
    progress now and then. UserError if model, text or device is not available.
    """
    configure = Configure(
        genesis=encode(genesis),
        inner=msgspec.msgpack.encode(charter.inner),
        data_cache=str(data_cache),
        threads=threads,
        device=device,
    )
    limit_resources(configure)
    try:
        setup = TrainerSetup(configure)
    except TrainerFailure as error:
        raise UserError(str(error)) from error
    from node.trainer.base_model import first_weights

    if weights is not None:
        fragments = files.read_fragments(weights, setup.layout)
    elif genesis.trainer is not None:
        fragments = setup.view.copies()  # As the seed made them.
    else:
        fragments = first_weights(genesis, base)
    for index, values in enumerate(fragments):
        setup.view.write(index, values)
    train_loss, seconds = _train(setup, charter, steps=steps, say=say)
    fragments = setup.view.copies()
    if out_weights is not None:
        files.write_fragments(fragments, out_weights)
    eval_loss = setup.heldout_loss(fragments, charter.limits.heldout_sequences)
    return AloneResult(eval_loss, train_loss, steps, setup.loop.tokens_total, round(seconds, 3))


def _train(
    setup: TrainerSetup, charter: Charter, *, steps: int, say: Callable[[str], None]
) -> tuple[float, float]:
    """Loss of the last local step, and seconds."""
    sequences = steps * charter.inner.batch_sequences
    blocks = -(-sequences // setup.corpus.spec.block_sequences)
    setup.loop.reader.append(((0, blocks),))
    started = said = time.monotonic()
    loss = 0.0
    for step in range(steps):
        setup.loop.progress = step / steps
        loss = setup.loop.step().loss
        if time.monotonic() - said > SAYS_EVERY_S:
            said = time.monotonic()
            say(f"local step {step + 1} of {steps}, loss {loss:.3f}")
    return loss, time.monotonic() - started


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 0, or 2 with one line on stderr if the user can fix it."""
    parser = argparse.ArgumentParser(prog="node.trainer.tools.alone", description=__doc__)
    parser.add_argument("--genesis", type=Path, required=True, help="genesis bytes")
    parser.add_argument("--charter", type=Path, required=True, help="charter bytes")
    parser.add_argument("--steps", type=int, required=True, help="local steps")
    parser.add_argument("--data-cache", type=Path, required=True, help="tokenised text")
    parser.add_argument("--json", type=Path, required=True, help="file to write the result to")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", help="cpu, cuda, ...; the best available if not given")
    parser.add_argument("--weights", type=Path, help="version 0; drawn from the seed if not given")
    parser.add_argument("--from", type=Path, dest="base", help="folder of the base model")
    parser.add_argument("--out-weights", type=Path, help="where to write the trained fragments")
    given = parser.parse_args(arguments)
    if given.steps < 1 or given.threads < 1:
        parser.error("--steps and --threads must be at least 1")
    be_quiet()
    try:
        result = train_alone(
            files.read_document(given.genesis, Genesis),
            files.read_document(given.charter, Charter),
            steps=given.steps,
            data_cache=given.data_cache,
            threads=given.threads,
            device=given.device,
            weights=given.weights,
            base=given.base,
            out_weights=given.out_weights,
            say=lambda line: print(line, file=sys.stderr, flush=True),
        )
        files.write_atomically(given.json, msgspec.json.encode(result))
    except UserError as error:
        print(error, file=sys.stderr)
        return UserError.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
