"""Several ranks as one learner: torch's process group, and what goes through it.

Every rank holds the whole model, or a part of each tensor (`node.trainer.ranks.sharded`). In a
local step each works on its part of the batch, their gradients are added up, and each takes the
same optimizer step; the sum over the ranks is that over the micro-batches of one device, but for
the order of additions. Gloo on processors, NCCL (RCCL) on NVIDIA's and AMD's devices, XCCL on
Intel's.

The ranks of a learner are on one machine. They find each other through a file without a name, and
talk over the loopback interface: nothing listens to the network.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Final

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch._C._distributed_c10d import FileStore

from node.trainer.failures import RankLost, is_out_of_memory

BACKENDS: Final = {"cpu": "gloo", "cuda": "nccl", "xpu": "xccl"}

LOOPBACK: Final = "lo0" if sys.platform == "darwin" else "lo"

COLLECTIVE_S: Final = 600.0
"""A rank that does not come for so long is lost: the trainer ends, and another one starts."""

BUCKET_BYTES: Final = 32 << 20
"""Gradients travel in pieces of about this size, two under way."""

UNDER_WAY_MAX: Final = 2


class RankGroup:
    """One rank's membership of the process group of its trainer."""

    def __init__(self, rank: int, ranks: int, device: torch.device, meeting: str) -> None:
        """Returns once all ranks have met. meeting: path of the file they meet at.

        RankLost if they do not meet, RuntimeError if torch has no backend for the device.
        """
        if device.type not in BACKENDS:
            raise RuntimeError(f"torch joins no several processes on {device.type}")
        for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "CCL_KVS_IFACE"):
            os.environ[name] = LOOPBACK
        self.rank, self.ranks, self.device = rank, ranks, device
        if device.type == "cuda":
            torch.cuda.set_device(device)
        with together():
            dist.init_process_group(
                BACKENDS[device.type],
                store=FileStore(meeting, ranks),
                rank=rank,
                world_size=ranks,
                timeout=timedelta(seconds=COLLECTIVE_S),
            )
            dist.barrier()

    def agree(self, loss: float, *, is_abandoned: bool) -> float | None:
        """The sum of all ranks' losses; None if any of them gives the step up."""
        told = torch.tensor([loss, float(is_abandoned)], dtype=torch.float64, device=self.device)
        with together():
            dist.all_reduce(told)
        total, abandoned = told.tolist()
        return None if abandoned else float(total)

    def least(self, number: int) -> int:
        """The smallest of all ranks' numbers."""
        told = torch.tensor(number, dtype=torch.int64, device=self.device)
        with together():
            dist.all_reduce(told, op=dist.ReduceOp.MIN)
        return int(told)

    def add_up(self, parameters: Sequence[nn.Parameter]) -> None:
        """Every gradient becomes the sum of all ranks' gradients, with the same bits everywhere."""
        gradients = [_gradient(one) for one in parameters if one.requires_grad]
        under_way: deque[tuple[dist.Work, Tensor, list[Tensor]]] = deque()
        with together():
            for bucket in buckets(gradients):
                flat = torch.cat([one.reshape(-1) for one in bucket])
                work = dist.all_reduce(flat, async_op=True)
                assert work is not None
                under_way.append((work, flat, bucket))
                if len(under_way) == UNDER_WAY_MAX:
                    _finish(*under_way.popleft())
            while under_way:
                _finish(*under_way.popleft())

    def spread(self, tensors: Sequence[Tensor]) -> None:
        """Rank 0's values become everybody's, in place."""
        with together():
            for tensor in tensors:
                dist.broadcast(tensor, src=0)


@contextmanager
def together() -> Iterator[None]:
    """What a back-end says when a rank does not take part comes as RankLost."""
    try:
        yield
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise
        raise RankLost(f"the trainer's ranks lost contact with each other ({error})") from error


def share_of(rank: int, ranks: int, sequences: int) -> tuple[int, int]:
    """First and last + 1 of the batch's sequences that are this rank's; they differ by one at most.

    Together the ranks have every sequence once.
    """
    return sequences * rank // ranks, sequences * (rank + 1) // ranks


def buckets(gradients: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Neighbours together, up to `BUCKET_BYTES`; a larger one alone."""
    bucket: list[Tensor] = []
    size = 0
    for gradient in gradients:
        if bucket and size + gradient.nbytes > BUCKET_BYTES:
            yield bucket
            bucket, size = [], 0
        bucket.append(gradient)
        size += gradient.nbytes
    if bucket:
        yield bucket


def _gradient(parameter: nn.Parameter) -> Tensor:
    """Zeros where this rank's part of the batch gave none: the others may have some."""
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad


def _finish(work: dist.Work, flat: Tensor, bucket: list[Tensor]) -> None:
    work.wait()
    first = 0
    for gradient in bucket:
        last = first + gradient.numel()
        gradient.copy_(flat[first:last].view_as(gradient))
        first = last
