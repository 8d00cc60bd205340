"""hivemind's DecentralizedAverager: butterfly all-reduce between peers that find each other.

A group is formed before the round, as hivemind's own optimizer does ahead of time; `load` waits for
it and tells how long it took. Then the trigger is given and the averaging alone is timed.
"""

from __future__ import annotations

import os
import time
from typing import Any

import torch

# Its processes are killed in the end; by default each would leave its tensors in /dev/shm for good.
os.environ["HIVEMIND_MEMORY_SHARING_STRATEGY"] = "file_descriptor"

from hivemind import DHT
from hivemind.averaging import DecentralizedAverager
from hivemind.averaging.control import AveragingStage, StepControl
from hivemind.compression import Float16Compression, NoCompression
from work import Floats, Process, Task, serve

MATCHMAKING_S = 60.0
CHUNK_S = 30.0
"""A peer that sends nothing for so long is left out of the round; with 5 s rounds of 40 million
parameters failed over lines at home, where all send to each at once."""


class Worker(Process):
    dht: DHT
    averager: DecentralizedAverager
    step: StepControl | None = None
    matchmaking_s = 0.0
    group = 0

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        torch.set_num_threads(1)
        if task.rank == 0:
            self.dht = DHT(start=True, host_maddrs=[f"/ip4/{task.host}/tcp/0"])

    def place(self) -> Any:
        if self.task.rank:
            return None
        return [str(one) for one in self.dht.get_visible_maddrs()]

    def connect(self, places: list[Any]) -> None:
        if self.task.rank:
            maddrs = [f"/ip4/{self.task.host}/tcp/0"]
            self.dht = DHT(initial_peers=places[0], start=True, host_maddrs=maddrs)
        self.averager = DecentralizedAverager(
            [torch.zeros(size) for size in self.task.sizes],
            self.dht,
            prefix="bench",
            target_group_size=self.task.workers,
            min_group_size=self.task.workers,
            min_matchmaking_time=5.0,
            request_timeout=3.0,
            next_chunk_timeout=CHUNK_S,
            compression=Float16Compression() if self.task.variant == "fp16" else NoCompression(),
            start=True,
        )

    def load(self) -> None:
        with self.averager.get_tensors() as tensors:
            for fragment, tensor in enumerate(tensors):
                tensor.copy_(torch.from_numpy(self.task.displacement(fragment)))
        began_s = time.monotonic()
        self.step = self.averager.step(wait=False, require_trigger=True, timeout=MATCHMAKING_S)
        while self.step.stage != AveragingStage.AWAITING_TRIGGER and not self.step.done():
            time.sleep(0.002)
        self.matchmaking_s = time.monotonic() - began_s

    def sync(self) -> None:
        assert self.step is not None
        self.step.allow_allreduce()
        found = self.step.result()
        if found is None:
            raise RuntimeError("no group, or the averaging failed")
        self.group = len(found)

    def note(self) -> dict[str, Any]:
        return {"matchmaking_s": self.matchmaking_s, "group": self.group}

    def result(self, fragment: int) -> Floats:
        with self.averager.get_tensors() as tensors:
            found: Floats = tensors[fragment].numpy().copy()
        return found

    def close(self) -> None:
        self.averager.shutdown()
        self.dht.shutdown()


if __name__ == "__main__":
    serve(Worker)
