"""Entry of a trainer's rank other than 0, started by rank 0: a module run as a program.

It holds a copy of the model, or its part of each tensor, works on its part of every batch, and is
told everything else. It knows nothing of the daemon. It dies with rank 0: by a parent-death signal,
and at end of file on the socket should that signal be missed.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from host.runtime import garbage
from host.runtime.parent_death import end_with_parent
from node.machine.moments import moments_numel
from node.trainer.duty import DutyCycle
from node.trainer.failures import RankLost
from node.trainer.link import messages as link
from node.trainer.link.endpoint import BlockingEnd
from node.trainer.main import be_quiet, tell_failure
from node.trainer.ranks import messages as rank_link
from node.trainer.setup import TrainerSetup, limit_resources
from protocol import decoders
from protocol.errors import InternalError
from protocol.project import Genesis

if TYPE_CHECKING:
    import torch

    from node.trainer.ranks.group import RankGroup


class Place:
    """This rank's place among the others."""

    def __init__(self, rank: int, ranks: int, end: Orders, meeting: str) -> None:
        self.rank, self.ranks = rank, ranks
        self._end, self._meeting = end, meeting

    def begin(self) -> None:
        """Nobody has to be started by it."""

    def meet(self, device: torch.device) -> RankGroup:
        """The process group, once every rank is ready."""
        from node.trainer.ranks.group import RankGroup

        self._end.send(rank_link.Following(str(device)))
        return RankGroup(self.rank, self.ranks, device, self._meeting)


Orders = BlockingEnd[rank_link.Order]


class Following:
    """Carries out what rank 0 says, in order."""

    def __init__(self, end: Orders, meeting: str) -> None:
        self._end, self._meeting = end, meeting
        self._duty = DutyCycle(self._is_abandoned)

    def run(self) -> None:
        """Never returns by itself; LinkClosed when rank 0 is gone."""
        first = self._end.receive(None)
        if not isinstance(first, rank_link.Follow):
            raise InternalError(f"the first order was {type(first).__name__}, not Follow")
        configure = msgspec.structs.replace(first.configure, nice=0)  # It came with the process.
        limit_resources(configure)
        place = Place(first.rank, configure.ranks, self._end, self._meeting)
        with garbage.seldom_sought():
            setup = TrainerSetup(configure, place)
        seed = decoders.msgpack_decoder(Genesis).decode(configure.genesis).seed
        while True:
            order = self._end.receive(None)
            match order:
                case rank_link.Share():
                    setup.seed(seed, configure.seed_salt, local_step=order.local_step)
                    self._duty.begin()
                    self._duty.duty_frac = order.duty_frac
                    setup.loop.local_step = order.local_step
                    setup.loop.follow(order.pieces, order.learning_rate, self._duty.between)
                case rank_link.SpreadWeights(fragment):
                    setup.spread_weights(fragment)
                case rank_link.SpreadMoments(fragment):
                    cut = setup.layout.fragments[fragment]
                    values = np.zeros(moments_numel(cut), dtype=np.float32)
                    setup.spread_moments(fragment, values)
                    setup.moments.write(fragment, values)
                case (
                    rank_link.Gather() | rank_link.Change() | rank_link.Look() | rank_link.Sample()
                ):
                    setup.follow(order)
                case rank_link.Abandon():
                    pass  # It came when this rank's part was done.
                case _:
                    raise InternalError(f"{type(order).__name__} makes no sense here")

    def _is_abandoned(self, timeout_s: float) -> bool:
        return isinstance(self._end.glance(timeout_s), rank_link.Abandon)


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code; 0 where the others went first."""
    end_with_parent(signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parser = argparse.ArgumentParser(prog="node.trainer.ranks.follower", description=__doc__)
    parser.add_argument("--fd", type=int, required=True, help="the inherited end of the link")
    parser.add_argument("--meeting", required=True, help="path of the file the ranks meet at")
    parser.add_argument("--parent", type=int, required=True, help="process id of rank 0")
    given = parser.parse_args(arguments)
    if os.getppid() != given.parent:
        return link.EXIT_OK  # It ended before the kernel was asked to tell.
    be_quiet()
    end = BlockingEnd(socket.socket(fileno=given.fd), rank_link.ORDERS)
    try:
        Following(end, given.meeting).run()
    except (link.LinkClosed, RankLost) as error:
        print(f"this rank ends: {error}", file=sys.stderr, flush=True)
        return link.EXIT_OK
    except Exception as error:  # Root of the process: every end must reach rank 0 as a reason.
        return tell_failure(error, end)
    raise AssertionError("a rank ends because another one does, or for a reason")


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    # As in node.trainer.main: nothing here is left to save.
    os._exit(code)
