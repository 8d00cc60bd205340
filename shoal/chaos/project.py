"""The project of `shoal demo --chaos`: so small that three syncers and three learners fit on two
cores, and one that is signed by three voters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from shoal.project.template import Value

NAME: Final = "shoal-chaos"
SYNCERS: Final = ("s0", "s1", "s2")
LEARNERS: Final = ("kestrel", "osprey", "tortoise")
EVALUATOR: Final = LEARNERS[0]
"""It measures the held-out loss, and no scenario touches it."""

DUTY: Final = 0.2
"""Learners rest most of the time: what is watched is the swarm, not how busy this machine is."""

SETTINGS: Final[Mapping[str, Value]] = {
    "model.fragments": 4,
    "model.config.hidden_size": 64,
    "model.config.intermediate_size": 128,
    "model.config.num_hidden_layers": 2,
    "model.config.num_attention_heads": 2,
    "model.config.num_key_value_heads": 2,
    "model.config.max_position_embeddings": 64,
    "data.sequence_tokens": 64,
    "data.block_sequences": 64,
    "training.batch_sequences": 16,
    "outer.learning_rate": 0.5,
    "outer.momentum": 0.0,
    "training.warmup_frac": 0.0,
    "training.final_learning_rate_frac": 0.1,
    "rounds.local_steps": 8,
    "rounds.overlap_steps": 2,
    "rounds.mergers_max": 0,
    "rounds.quorum": 1,
    "limits.tokens": 1_000_000_000,
    "limits.evaluate_every": 24,
    "limits.heldout_sequences": 16,
}
"""The token budget is never reached."""
