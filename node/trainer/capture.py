"""How fragments leave the device and reach it: at a boundary, but beside the computations.

On the processor a copy is a copy: done when it is asked for (`benchmarks/inner_loop.py` says what
it takes of a local step). On NVIDIA's and AMD's devices it goes over a stream of its own, from or
into the slot itself, which is locked in memory for that. What leaves is copied while the next local
step already computes: passes only read the weights, and before anything moves them the device, not
the program, waits for the copy. What arrives is copied into memory of its own on the device, at
best while a local step still computes, and changes the weights at the boundary where its turn is.

The part for accelerators has not been run on a real device.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import torch
from torch import Tensor

from node.trainer.link.shared_memory import Slot

if TYPE_CHECKING:
    from node.trainer.model import FragmentView, Values

CUDA: Final[Any] = torch.cuda
"""Torch's own types say nothing of its streams."""

Then: TypeAlias = Callable[[], None]
"""Called once the slot is done with: it holds the fragment, or its values are on the device."""

Change: TypeAlias = "Callable[[Values], None]"
"""Changes the weights by a fragment's values, f32 [numel], in the slot or on the device."""


class Copies:
    """Copies of fragments; each is done when it is asked for."""

    def read(self, view: FragmentView, fragment: int, slot: Slot, then: Then) -> None:
        """Begins to copy a fragment as it is now."""
        view.read(fragment, slot.values)
        then()

    def stage(self, slot: Slot) -> None:
        """The slot's values will be written soon, and stay as they are until then."""

    def write(self, slot: Slot, change: Change, then: Then) -> None:
        """Changes weights by the slot's values: copies begun before do not show it, all later ones
        and all later local steps do."""
        change(slot.values)
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
    """Over a stream beside that of the computations, from and into locked memory."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = CUDA.Stream(device)
        self._under_way: deque[tuple[Any, Then]] = deque()
        self._staged: dict[int, tuple[Tensor, Any]] = {}
        """By slot: its values on the device, and the event behind which they are there."""
        self._locked: dict[int, int] = {}
        """Slots by number, and where they lie; 0 where the system does not lock them."""

    def read(self, view: FragmentView, fragment: int, slot: Slot, then: Then) -> None:
        self._lock(slot)
        self._stream.wait_stream(CUDA.current_stream(self._device))
        with CUDA.stream(self._stream):
            view.read(fragment, slot.values, non_blocking=True)
        self._under_way.append((self._stream.record_event(), then))

    def stage(self, slot: Slot) -> None:
        self._lock(slot)
        try:
            with CUDA.stream(self._stream):
                values = torch.empty(slot.numel, device=self._device)
                values.copy_(torch.from_numpy(slot.values), non_blocking=True)
        except torch.OutOfMemoryError:
            return  # It is written piece by piece, which waits, and needs less room.
        self._staged[slot.identity] = (values, self._stream.record_event())

    def write(self, slot: Slot, change: Change, then: Then) -> None:
        if slot.identity not in self._staged:
            self.stage(slot)
        computing = CUDA.current_stream(self._device)
        computing.wait_stream(self._stream)
        if slot.identity not in self._staged:
            change(slot.values)
            self._under_way.append((computing.record_event(), then))
            return
        values, event = self._staged.pop(slot.identity)
        values.record_stream(computing)  # Its memory is not another's before it is used.
        change(values)
        # The slot may be filled anew as soon as it is read, whatever computes until then.
        self._under_way.append((event, then))

    def fence(self) -> None:
        CUDA.current_stream(self._device).wait_stream(self._stream)

    def poll(self) -> None:
        while self._under_way and self._under_way[0][0].query():
            self._under_way.popleft()[1]()

    def finish(self) -> None:
        while self._under_way:
            event, then = self._under_way.popleft()
            event.synchronize()
            then()

    def forget(self, slot: Slot) -> None:
        _, event = self._staged.pop(slot.identity, (None, None))
        if event is not None:
            event.synchronize()
        address = self._locked.pop(slot.identity, 0)
        if address:
            self.finish()
            self._runtime().cudaHostUnregister(address)

    def _lock(self, slot: Slot) -> None:
        """A copy from or into memory that may be moved would be done before it returns."""
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
