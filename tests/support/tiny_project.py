"""A project small enough to train inside a test: a Llama of 58 000 parameters on invented text."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec

from node.trainer.link.messages import Configure
from node.trainer.model import describe_model
from node.trainer.text.corpus import describe_corpus
from protocol.project import (
    Charter,
    DataSpec,
    Genesis,
    InnerSpec,
    LimitSpec,
    OuterSpec,
    RoundSpec,
    Voter,
    encode,
    project_id,
)

SEQUENCE_TOKENS = 32
BLOCK_SEQUENCES = 6
FRAGMENTS = 3

CONFIG = {
    "vocab_size": 257,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
}

INNER = InnerSpec(
    optimizer="adamw",
    learning_rate=3e-3,
    weight_decay=0.1,
    beta1=0.9,
    beta2=0.95,
    grad_norm_max=1.0,
    batch_sequences=4,
    warmup_frac=0.1,
    final_learning_rate_frac=0.1,
    fresh_moment_steps=4,
)


def write_text(path: Path, *, chars: int = 60_000, seed: int = 5) -> Path:
    """Lines of words drawn from a small vocabulary."""
    draw = random.Random(seed)
    words = ["shoal", "herring", "drifts", "past", "the", "quiet", "harbour", "at", "noon", "and"]
    lines = []
    while chars > 0:
        lines.append(" ".join(draw.choices(words, k=12)) + "\n")
        chars -= len(lines[-1])
    path.write_text("".join(lines))
    return path


def data_spec(location: Path | str, **changes: object) -> DataSpec:
    """A `file` source, not yet counted."""
    spec = DataSpec(
        source="file",
        location=str(location),
        text_field="text",
        tokenizer="bytes",
        sequence_tokens=SEQUENCE_TOKENS,
        block_sequences=BLOCK_SEQUENCES,
        blocks=1,
        heldout_frac=0.2,
        digest=bytes(32),
    )
    return msgspec.structs.replace(spec, **changes)


SPLIT_FRAGMENTS = 9
"""So many that `rows` splits the table of words of the tiny model."""


def tiny_genesis(folder: Path, *, is_split: bool = False) -> Genesis:
    """A project on a text file in `folder`, tokenised into `folder / "cache"`."""
    data = data_spec(write_text(folder / "text.txt"))
    counted = describe_corpus(data, cache=folder / "cache")
    return Genesis(
        wire_version=1,
        name="tiny",
        owner=bytes(32),
        model=describe_model("LlamaForCausalLM", CONFIG),
        data=msgspec.structs.replace(data, blocks=counted.blocks, digest=counted.digest),
        seed=11,
        strategy="rows" if is_split else "balanced",
        fragments=SPLIT_FRAGMENTS if is_split else FRAGMENTS,
    )


def tiny_charter(
    genesis: Genesis, *, steps: int, outer: OuterSpec, grace_safety: float, pace_share: float
) -> Charter:
    """For runs in virtual time: int4, H = 6, K = 1, and tokens for so many local steps in all."""
    tokens = steps * INNER.batch_sequences * SEQUENCE_TOKENS
    return Charter(
        project=project_id(encode(genesis)),
        revision=1,
        voters=(Voter(bytes([1]) * 32, "syncer", 50),),
        banned=(),
        inner=INNER,
        outer=outer,
        rounds=RoundSpec(
            6, 2, 1, grace_safety, pace_share, 20.0, 20.0, "overwrite", "int4", "int4"
        ),
        limits=LimitSpec(tokens, 16, 10**6, 8, 60.0, 64),
    )


def configure(genesis: Genesis, folder: Path, **changes: object) -> Configure:
    """The first command for a trainer of this project, on the CPU with one thread."""
    command = Configure(
        genesis=encode(genesis),
        inner=msgspec.msgpack.encode(INNER),
        data_cache=str(folder / "cache"),
        threads=1,
        device="cpu",
    )
    return msgspec.structs.replace(command, **changes)
