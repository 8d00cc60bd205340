"""The `shoal` command of a learner that hands in everything backwards and ten times as long.

No option of Shoal makes a learner lie: this program replaces one function of its own process, as
anybody can who owns the machine. `shoal demo --liar` runs it as `python -m shoal.demo.liar`.
"""

from __future__ import annotations

import runpy
from collections.abc import Mapping, Sequence
from subprocess import Popen
from typing import IO, Final

from node.trainer_client import fragment_bank
from protocol.numerics.codecs import F32
from protocol.numerics.outer import encode_with_feedback
from protocol.project import CodecName
from shoal.local_swarm import processes

FACTOR: Final = 10


def backwards(
    codec: CodecName, values: F32, residual: F32, *, minus: F32
) -> tuple[memoryview, F32]:
    """What `encode_with_feedback` gives for the opposite, ten times as far."""
    nothing = 0 * residual
    payload, _ = encode_with_feedback(codec, FACTOR * (minus - values), nothing)
    return payload, nothing


def spawning(liar: str) -> processes.Spawn:
    """Starts the daemon of that name as a liar, and all others as ever."""

    def spawn(
        name: str, command: Sequence[str], environment: Mapping[str, str], output: IO[bytes]
    ) -> Popen[bytes]:
        if name == liar:
            command = [__name__ if word == "shoal" else word for word in command]
        return processes.spawn(name, command, environment, output)

    return spawn


def main() -> None:
    """The command, with that one function replaced."""
    vars(fragment_bank)["encode_with_feedback"] = backwards
    runpy.run_module("shoal", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
