"""Imports what trainers of most models import, and does nothing else.

For a fork server (`host.runtime.fork_server`), whose children have it all at once. What a trainer
needs beyond this, another architecture above all, it imports itself.
"""

from __future__ import annotations

from node.trainer.main import be_quiet

be_quiet()

from transformers import LlamaForCausalLM  # noqa: E402

from node.trainer import making, session  # noqa: E402
from node.trainer.text import corpus, mixture, published  # noqa: E402
from node.trainer.tools import alone, initialise, score  # noqa: E402

__all__ = [
    "LlamaForCausalLM",
    "alone",
    "corpus",
    "initialise",
    "making",
    "mixture",
    "published",
    "score",
    "session",
]
