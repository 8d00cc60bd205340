"""How fragments leave the device: at a boundary, but without keeping the next local step waiting.

On the processor a copy is a copy: done when it is asked for (`benchmarks/inner_loop.py` says what
it takes of a local step). On NVIDIA's and AMD's devices it goes over a stream of its own, into the
slot itself, which is locked in memory for that, while the next local step already computes: passes
only read the weights. Before anything moves them the device, not the program, waits for the copy.

The part for accelerators has not been run on a real device.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import torch

from node.trainer.link.shared_memory import Slot

if TYPE_CHECKING:
    from node.trainer.model import FragmentView

CUDA: Final[Any] = torch.cuda
"""Torch's own types say nothing of its streams."""

Then = Callable[[], None]
"""Called once the slot holds the fragment."""


class Copies:
    """Copies of fragments; each is done when it is asked for."""

    def read(self, view: FragmentView, fragment: int, slot: Slot, then: Then) -> None:
        """Begins to copy a fragment as it is now."""
        view.read(fragment, slot.values)
        then()

    def fence(self) -> None:
        """Weights written from now on do not show in copies begun before."""

    def poll(self) -> None:
        """Tells of the copies that are done. Never waits."""

    def finish(self) -> None:
        """Returns when all are done and told."""

    def forget(self, slot: Slot) -> None:
        """The slot's memory is about to go."""


class SideStreamCopies(Copies):
    """Over a stream beside that of the computations, into locked memory."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = CUDA.Stream(device)
        self._under_way: deque[tuple[Any, Then]] = deque()
        self._locked: dict[int, int] = {}
        """Slots by number, and where they lie; 0 where the system does not lock them."""

    def read(self, view: FragmentView, fragment: int, slot: Slot, then: Then) -> None:
        self._lock(slot)
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            view.read(fragment, slot.values, non_blocking=True)
            event = CUDA.Event()
            event.record(self._stream)
        self._under_way.append((event, then))

    def fence(self) -> None:
        torch.cuda.current_stream(self._device).wait_stream(self._stream)

    def poll(self) -> None:
        while self._under_way and self._under_way[0][0].query():
            self._under_way.popleft()[1]()

    def finish(self) -> None:
        while self._under_way:
            event, then = self._under_way.popleft()
            event.synchronize()
            then()

    def forget(self, slot: Slot) -> None:
        address = self._locked.pop(slot.identity, 0)
        if address:
            self.finish()
            self._runtime().cudaHostUnregister(address)

    def _lock(self, slot: Slot) -> None:
        """A copy into memory that may be moved out would be done before it returns."""
        if slot.identity in self._locked or not slot.numel:
            return
        address = int(slot.values.ctypes.data)
        status = self._runtime().cudaHostRegister(address, slot.values.nbytes, 0)
        self._locked[slot.identity] = address if int(status) == 0 else 0

    @staticmethod
    def _runtime() -> Any:
        """CUDA's, or ROCm's under the same names."""
        return CUDA.cudart()


def copies_for(device: torch.device) -> Copies:
    """The way that suits the device."""
    return SideStreamCopies(device) if device.type == "cuda" else Copies()
