"""An exported model, as anybody would load it: `python -m node.trainer.tools.score --help`.

Held-out loss over the same sequences that the project's learners measure, and text sampled from it.
The model comes from `from_pretrained`; of Shoal only the held-out text is used.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from node.trainer.files import read_document, write_atomically
from node.trainer.main import be_quiet
from node.trainer.setup import limit_threads
from node.trainer.text.reader import learned_tokens
from protocol.errors import UserError
from protocol.project import DocumentRule, Genesis

if TYPE_CHECKING:
    import transformers

HELDOUT_SEQUENCES: Final = 64
PIECE_SEQUENCES: Final = 8
"""Sequences evaluated at once."""


class ScoreResult(Struct, frozen=True):
    """What an exported model is worth."""

    eval_loss: float
    """Held-out loss in nats per token."""
    sequences: int
    tokens: int
    sample: str
    """The prompt and the text that the model made of it; empty if none was asked for."""
    seconds: float
    """Of evaluation; start-up and sampling excluded."""


def score(
    genesis: Genesis,
    folder: Path,
    *,
    data_cache: Path,
    sequences: int = HELDOUT_SEQUENCES,
    prompt: str = "",
    tokens: int = 0,
    threads: int = 1,
) -> ScoreResult:
    """Evaluates the model in `folder` and samples `tokens` tokens after `prompt`.

    UserError if the text is not available or `folder` holds no model that `transformers` loads.
    """
    from node.trainer.setup import open_text
    from node.trainer.tools.export import require_writing

    require_writing(genesis)
    corpus = open_text(genesis, data_cache)
    heldout = corpus.heldout(sequences)
    import torch

    torch.set_num_threads(threads)
    model = _load(folder)
    started = time.monotonic()
    loss = heldout_loss(model, heldout, genesis.documents)
    seconds = time.monotonic() - started
    text = _sample(model, folder, prompt, tokens, seed=genesis.seed) if tokens else ""
    predicted = learned_tokens(heldout)
    return ScoreResult(loss, len(heldout), predicted, text, round(seconds, 3))


def heldout_loss(model: Any, sequences: NDArray[np.int64], documents: DocumentRule = None) -> float:
    """Mean cross-entropy of the learned tokens of [n, sequence_tokens + 1] under the model."""
    import torch

    from node.trainer.objective import apart, cross_entropy_sum

    model = apart(model) if documents == "separate" else model
    total = 0.0
    with torch.no_grad():
        for first in range(0, len(sequences), PIECE_SEQUENCES):
            piece = torch.from_numpy(sequences[first : first + PIECE_SEQUENCES])
            total += float(cross_entropy_sum(model, piece))
    return total / max(1, learned_tokens(sequences))


def _load(folder: Path) -> transformers.PreTrainedModel:
    import torch
    from transformers import AutoModelForCausalLM

    try:
        model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, local_files_only=True
        )
    except (OSError, ValueError) as error:
        raise UserError(
            f"{folder} holds no model that transformers loads ({error}). Name a folder that "
            "`shoal export` wrote."
        ) from error
    return model.eval()


def _sample(
    model: transformers.PreTrainedModel, folder: Path, prompt: str, tokens: int, *, seed: int
) -> str:
    """The prompt and what follows it, drawn as the exported generation settings say."""
    import torch
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    ids = [tokenizer.bos_token_id, *tokenizer.encode(prompt, add_special_tokens=False)]
    torch.manual_seed(seed)
    generate: Callable[..., Any] = model.generate
    with torch.no_grad():
        produced = generate(torch.tensor([ids]), max_new_tokens=tokens)
    return str(tokenizer.decode(produced[0], skip_special_tokens=True))


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 0, or 2 with one line on stderr if the user can fix it."""
    parser = argparse.ArgumentParser(prog="node.trainer.tools.score", description=__doc__)
    parser.add_argument("--genesis", type=Path, required=True, help="genesis bytes")
    parser.add_argument("--model", type=Path, required=True, help="folder with the exported model")
    parser.add_argument("--data-cache", type=Path, required=True, help="tokenised text")
    parser.add_argument("--json", type=Path, required=True, help="file to write the result to")
    parser.add_argument("--sequences", type=int, default=HELDOUT_SEQUENCES, help="held-out ones")
    parser.add_argument("--prompt", default="", help="text to go on from")
    parser.add_argument("--tokens", type=int, default=0, help="tokens to sample; 0 samples none")
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args(arguments)
    if given.sequences < 1 or given.threads < 1 or given.tokens < 0:
        parser.error("--sequences and --threads must be at least 1, --tokens at least 0")
    be_quiet()
    limit_threads(given.threads)
    try:
        result = score(
            read_document(given.genesis, Genesis),
            given.model,
            data_cache=given.data_cache,
            sequences=given.sequences,
            prompt=given.prompt,
            tokens=given.tokens,
            threads=given.threads,
        )
        write_atomically(given.json, msgspec.json.encode(result))
    except UserError as error:
        print(error, file=sys.stderr)
        return UserError.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
