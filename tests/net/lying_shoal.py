"""The `shoal` command of a learner that lies about one thing, as anybody can who owns the machine.

    python -m tests.net.lying_shoal ARGUMENTS...    # LIE in the environment says about what

- `huge`: its payloads are 2**100 times as long, which no merged payload could hold;
- `evaluator`: it is an honest learner, and measures a held-out loss of 0 whatever it is asked;
- `copy`: it hands in what was merged of the fragment last, once there is something.
"""

from __future__ import annotations

import dataclasses
import os
import runpy

from node.daemon import learner_daemon
from node.trainer_client import fragment_bank
from node.trainer_client.client import TrainerPort
from protocol.numerics.codecs import decode
from protocol.numerics.outer import encode_with_feedback
from shoal.local_swarm import processes

LIE = "LIE"
HUGE = 2.0**100


def huge(codec, values, residual, *, minus):
    nothing = 0 * residual
    payload, _ = encode_with_feedback(codec, HUGE * (values - minus), nothing)
    return payload, nothing


real_evaluate = TrainerPort.evaluate


async def evaluate(self, job):
    return dataclasses.replace(await real_evaluate(self, job), loss=0.0)


class Copier(fragment_bank.FragmentBank):
    """Remembers what it was sent, and offers that."""

    def __init__(self, *given):
        super().__init__(*given)
        self.merged = {}

    def advance(self, merged, payload):
        super().advance(merged, payload)
        self.merged[merged.fragment] = merged.codec, bytes(payload)

    def push(self, fragment, sequence, local):
        if fragment not in self.merged:
            return super().push(fragment, sequence, local)
        last = decode(*self.merged[fragment], local.size)

        def copied(codec, values, residual, *, minus):
            return encode_with_feedback(codec, last, 0 * residual)

        vars(fragment_bank)["encode_with_feedback"] = copied
        return super().push(fragment, sequence, local)


def spawning(lies):
    """Starts the daemons of these names with the lie of each, and all others as ever."""

    def spawn(name, command, environment, output):
        if name in lies:
            command = [__spec__.name if word == "shoal" else word for word in command]
            environment = {**environment, LIE: lies[name]}
        return processes.spawn(name, command, environment, output)

    return spawn


if __name__ == "__main__":
    if os.environ[LIE] == "huge":
        vars(fragment_bank)["encode_with_feedback"] = huge
    elif os.environ[LIE] == "copy":
        vars(learner_daemon)["FragmentBank"] = Copier
    else:
        TrainerPort.evaluate = evaluate
    runpy.run_module("shoal", run_name="__main__", alter_sys=True)
