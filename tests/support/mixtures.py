"""Projects on a mixture: two texts whose letters tell which one a sequence comes from."""

from __future__ import annotations

import json
import random
from pathlib import Path

import msgspec
import numpy as np

from node.trainer.text.mixture import describe_mixture
from protocol.project import Genesis, MixedSource
from tests.support.tiny_project import data_spec, tiny_genesis

WEIGHTS = (0.7, 0.3)
LETTERS = ("abcdefghijklm", "nopqrstuvwxyz")


def write_letters(path: Path, letters: str, *, chars: int, seed: int = 1) -> Path:
    """A .jsonl file of texts that have no other letters."""
    draw = random.Random(seed)
    rows = [{"text": "".join(draw.choices(letters, k=600))} for _ in range(max(20, chars // 600))]
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    return path


def write_sources(folder: Path, *, chars: tuple[int, ...] = (30_000, 90_000)) -> list[Path]:
    """A file for each alphabet."""
    return [
        write_letters(folder / f"{letters[0]}.jsonl", letters, chars=size, seed=at)
        for at, (letters, size) in enumerate(zip(LETTERS, chars, strict=True))
    ]


def sources_of(paths: list[Path], weights=WEIGHTS) -> tuple[MixedSource, ...]:
    """Not counted yet."""
    return tuple(
        MixedSource("jsonl", str(path), "text", weight, 1, bytes(32))
        for path, weight in zip(paths, weights, strict=True)
    )


def mixed_genesis(folder: Path, *, weights=WEIGHTS, **changes: object) -> Genesis:
    """A tiny project on the mixture in `folder`, tokenised into `folder / "cache"`."""
    genesis = tiny_genesis(folder)
    spec = data_spec("", source="mixture", **changes)
    found = describe_mixture(
        spec, sources_of(write_sources(folder), weights), cache=folder / "cache"
    )
    data = msgspec.structs.replace(spec, blocks=found.blocks, digest=found.digest)
    return msgspec.structs.replace(genesis, data=data, mixture=found.mixture)


def is_second(sequences: np.ndarray) -> np.ndarray:
    """Of each sequence, whether it comes from the second source. All letters must agree."""
    letters = np.maximum(sequences, ~sequences)
    has = [np.isin(letters, [ord(one) for one in alphabet]).any(axis=1) for alphabet in LETTERS]
    assert (has[0] != has[1]).all()
    return has[1]
