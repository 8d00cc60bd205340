"""A small swarm of real daemons on this machine, for benchmarks."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from protocol.status import NodeStatus
from shoal.local_swarm.swarm import LocalSwarm
from shoal.project.template import Value

ROOT = Path(__file__).parents[1]
POLL_S = 0.02
ROOMS = ("protocol", "host", "node")
"""What is trained on is their source."""


class SmallSwarm(LocalSwarm):
    """A swarm whose learner is waited for."""

    def await_learner(self, is_so: Callable[[NodeStatus], bool]) -> NodeStatus:
        """The learner's first status that is so."""

        def look() -> NodeStatus | None:
            now = self.learner()
            return now if now is not None and is_so(now) else None

        return self.until(look, "the learner")


@contextlib.contextmanager
def small_swarm(
    *, hidden: int = 128, local_steps: int = 24, changes: Mapping[str, Value] | None = None
) -> Iterator[SmallSwarm]:
    """A swarm with a project and without daemons yet, in a directory that goes with it.

    changes: other values of the project file, by dotted key.
    """
    with (
        tempfile.TemporaryDirectory(prefix="shoal-bench-") as folder,
        SmallSwarm(Path(folder), poll_s=POLL_S) as swarm,
    ):
        text = swarm.folder / "text.txt"
        parts = [part for room in ROOMS for part in sorted((ROOT / room).rglob("*.py"))]
        text.write_text("".join(part.read_text() for part in parts))
        settings: dict[str, Value] = {
            "model.fragments": 4,
            "model.config.hidden_size": hidden,
            "model.config.intermediate_size": 4 * hidden,
            "model.config.num_hidden_layers": 4,
            "model.config.num_attention_heads": 4,
            "model.config.num_key_value_heads": 4,
            "model.config.max_position_embeddings": 64,
            "data.source": "file",
            "data.location": str(text),
            "data.sequence_tokens": 64,
            "data.block_sequences": 16,
            "training.batch_sequences": 8,
            "rounds.quorum": 1,
            "rounds.local_steps": local_steps,
            "limits.tokens": 10**10,
            **(changes or {}),
        }
        swarm.write_project("small", settings)
        swarm.sign()
        yield swarm
