"""torchft's DiLoCo: a manager per worker, one lighthouse, gloo between them.

The class that users wrap around their training loop: after each local step it may average one
fragment. The local optimizer here moves nothing, weights are put where the displacement says, and
the outer optimizer is plain SGD with a rate of 1, so that weights end up at start minus mean. When
a fragment's all-reduce fails, torchft drops that fragment's round and goes on: it is tried again,
until all fragments went through.
"""

from __future__ import annotations

import contextlib
import datetime
import os
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torchft import Manager, ProcessGroupGloo
from torchft.coordination import LighthouseServer
from torchft.local_sgd import DiLoCo
from work import Floats, Process, Task, serve

TIMEOUT = datetime.timedelta(seconds=60)
"""Over a line, who joins late fetches the whole model first."""

TRIES_MAX = 40


GATHERING_MS = 10_000
"""Over a line. With torchft's own 100 ms the first two begin, and the others fetch the model from
them, which takes longer than their requests wait. When a worker dies, the others wait as long."""

THEIR_OWN_MS = 100


class Lighthouse(Process):
    """Who is there."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        waits_ms = THEIR_OWN_MS if task.interface == "lo" else GATHERING_MS
        self.server = LighthouseServer(
            bind=f"{task.host}:0", min_replicas=2, join_timeout_ms=waits_ms
        )

    def place(self) -> Any:
        return self.server.address().replace(os.uname().nodename, self.task.host)


class Fragment(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size))


class Still(torch.optim.SGD):
    """A local optimizer that has moved the weights already."""

    def step(self, closure: Any = None) -> None:
        """Nothing, but its hooks run."""


class Worker(Process):
    def __init__(self, task: Task) -> None:
        super().__init__(task)
        torch.set_num_threads(1)
        self.parts = nn.ModuleList(Fragment(size) for size in task.sizes)
        self.moved = [torch.zeros(size) for size in task.sizes]
        self.starts = [torch.zeros(size) for size in task.sizes]
        self.stack = contextlib.ExitStack()
        self.tries = 0

    def connect(self, places: list[Any]) -> None:
        os.environ["GLOO_SOCKET_IFNAME"] = self.task.interface
        self.store = dist.TCPStore(self.task.host, 0, is_master=True, wait_for_workers=False)
        self.manager = Manager(
            pg=ProcessGroupGloo(timeout=TIMEOUT),
            load_state_dict=self.parts.load_state_dict,
            state_dict=self.parts.state_dict,
            min_replica_size=2,
            use_async_quorum=False,
            timeout=TIMEOUT,
            quorum_timeout=TIMEOUT,
            connect_timeout=TIMEOUT,
            rank=0,
            world_size=1,
            store_addr=self.task.host,
            store_port=self.store.port,
            lighthouse_addr=places[0],
            replica_id=f"worker-{self.task.rank}",
            hostname=self.task.host,
            init_sync=False,
        )
        self.inner = Still(self.parts.parameters(), lr=0.0)
        outer = [torch.optim.SGD(part.parameters(), lr=1.0) for part in self.parts]
        self.stack.enter_context(
            DiLoCo(
                self.manager, list(self.parts), self.inner, outer, sync_every=self.task.fragments
            )
        )

    def load(self) -> None:
        for fragment, part in enumerate(self.parts):
            self.starts[fragment].copy_(part.weight.detach())
            displaced = torch.from_numpy(self.task.displacement(fragment))
            torch.sub(self.starts[fragment], displaced, out=self.moved[fragment])

    def sync(self) -> None:
        wanted = self.manager.current_step() + self.task.fragments
        self.tries = 0
        while self.manager.current_step() < wanted:
            fragment = self.manager.current_step() % self.task.fragments
            self.parts[fragment].weight.data.copy_(self.moved[fragment])
            self.inner.step()
            self.tries += 1
            if self.tries > TRIES_MAX:
                raise RuntimeError(f"{TRIES_MAX} tries, and no fragment went through")

    def note(self) -> dict[str, Any]:
        return {"tries": self.tries}

    def result(self, fragment: int) -> Floats:
        found: Floats = (self.starts[fragment] - self.parts[fragment].weight.detach()).numpy()
        return found


def main() -> None:
    serve(lambda task: Lighthouse(task) if task.role == "lighthouse" else Worker(task))


if __name__ == "__main__":
    main()
