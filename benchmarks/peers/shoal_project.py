"""The project behind Shoal's row; its model also says how large everybody's fragments are.

The rule is set to what the others compute: equal weights, plain means, an outer step that takes the
merged displacement as it is. Every merge waits for all workers that are alive, and for a second, or
as long as is asked for, before it believes that one is not.
"""

from __future__ import annotations

from pathlib import Path

from host.files.home import Home
from host.files.signed_project import read_signed
from protocol.fragments import build_layout
from shoal.project import file_commands
from shoal.project.template import Value, create_text

MODELS = {"4m": (256, 4), "16m": (512, 4), "40m": (640, 6)}
"""Width and depth of Llama models of about so many parameters, over a vocabulary of bytes."""


def model_of(width: int, depth: int, fragments: int) -> dict[str, Value]:
    """Settings of a Llama that is merged without end and never judged."""
    return {
        "model.fragments": fragments,
        "model.config.hidden_size": width,
        "model.config.intermediate_size": 4 * width,
        "model.config.num_hidden_layers": depth,
        "model.config.num_attention_heads": width // 64,
        "model.config.num_key_value_heads": width // 64,
        "training.batch_sequences": 1,
        "rounds.eligible": "step",
        "limits.tokens": 1 << 40,
        "limits.evaluate_every": 1_000_000,
    }


PATIENCE_S = 1.0


def signed(
    folder: Path,
    model: str,
    fragments: int,
    workers: int,
    codec: str,
    *,
    patience_s: float = PATIENCE_S,
) -> Path:
    """The signed project file, its home in `folder`/home."""
    changes: dict[str, Value] = {
        **model_of(*MODELS[model], fragments),
        "model.merge.embeddings": "mean",
        "model.merge.matrices": "mean",
        "model.merge.vectors": "mean",
        "outer.learning_rate": 1.0,
        "outer.momentum": 0.0,
        "outer.nesterov": False,
        "outer.trust": "all",
        "rounds.local_steps": max(1, fragments // 2),
        "rounds.overlap_steps": fragments,
        "rounds.quorum": workers,
        "rounds.patience_s": patience_s,
        "rounds.weights": "equal",
        "rounds.up_codec": codec,
        "rounds.down_codec": codec,
    }
    path = folder / "bench.toml"
    path.write_text(create_text("bench", changes=changes))
    file_commands.sign(path, home=Home(folder / "home"))
    return path.with_suffix(".shoal")


def sizes(path: Path) -> list[int]:
    """Parameters of each fragment."""
    genesis = read_signed(path).genesis
    layout = build_layout(genesis.model.tensors, genesis.strategy, genesis.fragments)
    return [fragment.numel for fragment in layout.fragments]
