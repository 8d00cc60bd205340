"""torch.distributed over gloo: one all-reduce per fragment, all at once, as float32 or bfloat16."""

from __future__ import annotations

import datetime
import os
import socket
from typing import Any

import torch
import torch.distributed as dist
from work import Floats, Process, Task, serve


class Worker(Process):
    def __init__(self, task: Task) -> None:
        super().__init__(task)
        torch.set_num_threads(1)
        self.is_half = task.variant == "bf16"
        self.buffers = [torch.zeros(size) for size in task.sizes]
        self.halves = [one.bfloat16() for one in self.buffers] if self.is_half else []

    def place(self) -> Any:
        with socket.create_server((self.task.host, 0)) as found:
            return f"{self.task.host}:{found.getsockname()[1]}"

    def connect(self, places: list[Any]) -> None:
        os.environ["GLOO_SOCKET_IFNAME"] = self.task.interface
        dist.init_process_group(
            "gloo",
            init_method=f"tcp://{places[0]}",
            rank=self.task.rank,
            world_size=self.task.workers,
            timeout=datetime.timedelta(minutes=5),
        )

    def load(self) -> None:
        for fragment, buffer in enumerate(self.buffers):
            buffer.copy_(torch.from_numpy(self.task.displacement(fragment)))

    def sync(self) -> None:
        if self.is_half:
            for half, buffer in zip(self.halves, self.buffers, strict=True):
                half.copy_(buffer)
        work = [
            dist.all_reduce(one, async_op=True)
            for one in (self.halves if self.is_half else self.buffers)
        ]
        for one in work:
            one.wait()
        for at, buffer in enumerate(self.buffers):
            if self.is_half:
                buffer.copy_(self.halves[at])
            buffer /= self.task.workers

    def result(self, fragment: int) -> Floats:
        found: Floats = self.buffers[fragment].numpy()
        return found


if __name__ == "__main__":
    serve(Worker)
