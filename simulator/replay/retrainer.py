"""A learner's trainers once more, from its tape: whatever inner loop stands behind them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
from msgspec import Struct

from host.bulk.blob_store import BlobStore
from host.tape.tape_file import TapeLife
from node.trainer_client.fragment_bank import Delivery, FragmentBank
from protocol import decoders, tape
from protocol.fragments import build_layout
from protocol.numerics.codecs import F32
from protocol.numerics.versions import state_manifests
from protocol.project import Charter, Genesis

Kind = Literal["push", "untried", "diverged", "done"]


class PushOutcome(Struct, omit_defaults=True):
    """What came of one push; `done`, with the local steps, at the end of a tape."""

    kind: Kind
    incarnation: int = 0
    sequence: int = 0
    digest: str = ""
    place: str = ""
    text: str = ""
    number: int = 0


class Unreplayable(Exception):
    """This trainer cannot be repeated here, and why."""


def version_path(spool: Path, fragment: int, version: int) -> Path:
    """Where the global value of a fragment's version lies, as f32."""
    return spool / f"{fragment}-{version}.f32"


def require_class(recorded: tape.ReplayClass, here: tape.ReplayClass) -> None:
    """Raises Unreplayable where this host adds up otherwise than the one that recorded."""
    others = recorded.differences(here)
    if others:
        raise Unreplayable(f"this host is of another class ({'; '.join(others)})")


class Retrainer(ABC):
    """Repeats the trainers of one daemon, in order."""

    def __init__(self, life: TapeLife, spool: Path) -> None:
        """spool: where the global values are that its trainers were given."""
        self.life = life
        self.spool = spool
        self.incarnation = 0
        self.steps = 0
        self._bank: FragmentBank | None = None
        self._reason = ""
        """Why what follows cannot be repeated; empty while it can."""

    @property
    def bank(self) -> FragmentBank:
        assert self._bank is not None, "a trainer began"
        return self._bank

    def outcomes(self) -> Iterator[PushOutcome]:
        """What came of every push, and at the end of the local steps."""
        for place, frame in self.life.frames("events"):
            if not self._reason or isinstance(frame, tape.TrainerBegan):
                try:
                    found = self._take(place, frame)
                    if found is not None:
                        yield found
                    continue
                except Unreplayable as error:
                    self._reason = str(error)
            if isinstance(frame, tape.PushCaptured):
                yield PushOutcome("untried", self.incarnation, frame.sequence, text=self._reason)
        yield PushOutcome("done", number=self.steps)

    def _take(self, place: str, frame: tape.Frame) -> PushOutcome | None:
        match frame:
            case tape.TrainerBegan():
                self._began(frame)
            case tape.CharterInForce(charter):
                self.bank.charter = decoders.msgpack_decoder(Charter).decode(charter)
            case tape.PushClosed(fragment, sequence, is_merged):
                self.bank.settle(fragment, sequence, is_merged=is_merged)
            case tape.PushCaptured():
                return self._push(place, frame)
            case _:
                self.train(place, frame)
        return None

    def _began(self, frame: tape.TrainerBegan) -> None:
        if self._bank is not None and self._reason:
            # What the former trainer's merged pushes left behind is not known.
            raise Unreplayable(
                f"an earlier trainer of this learner was not repeated: {self._reason}"
            )
        self.incarnation = frame.incarnation
        if self._bank is None:
            genesis = decoders.msgpack_decoder(Genesis).decode(frame.genesis)
            layout = build_layout(genesis.model.tensors, genesis.strategy, genesis.fragments)
            self._bank = FragmentBank(layout, BlobStore(clock=lambda: 0.0))
        self.bank.charter = decoders.msgpack_decoder(Charter).decode(frame.charter)
        self.bank.trainer_lost()
        if frame.drops_error_feedback:
            self.bank.drop_error_feedback()
        self.begin(frame)

    def _push(self, place: str, frame: tape.PushCaptured) -> PushOutcome:
        """The push made again of the fragment's values: the same, or `diverged`."""
        values = self.values(frame.fragment)
        if values is None:
            raise Unreplayable(f"there are no values of fragment {frame.fragment} at {place}")
        made = self.bank.push(frame.fragment, frame.sequence, values)
        name = made.digest.hex()
        if made.digest == frame.digest and made.base_version == frame.base_version:
            return PushOutcome("push", self.incarnation, frame.sequence, name, place)
        self._reason = "it diverged before"
        text = f"push {frame.sequence} came out differently than its learner recorded"
        return PushOutcome("diverged", self.incarnation, frame.sequence, name, place, text)

    def deliver(self, frame: tape.VersionApplied) -> Delivery:
        """What the trainer was given with this version. Raises Unreplayable if no tape has it."""
        path = version_path(self.spool, frame.fragment, frame.version)
        try:
            theta = np.fromfile(path, "<f4").astype(np.float32, copy=False)
        except OSError:
            raise Unreplayable(
                f"version {frame.version} of fragment {frame.fragment} is not on any tape here"
            ) from None
        momentum = np.zeros_like(theta)  # Not what it was: the inner loop never sees it.
        state = state_manifests(theta, momentum).digests
        self.bank.install(frame.fragment, frame.version, state, theta, momentum)
        return self.bank.deliver(
            frame.fragment,
            is_assign=frame.is_assign,
            merged_sequence=frame.merged_sequence,
            kept_frac=frame.kept_frac,
        )

    @abstractmethod
    def begin(self, frame: tape.TrainerBegan) -> None:
        """A trainer as that one was. Raises Unreplayable."""

    @abstractmethod
    def train(self, place: str, frame: tape.Frame) -> None:
        """Do what the trainer did. Raises Unreplayable where that cannot be done."""

    @abstractmethod
    def values(self, fragment: int) -> F32 | None:
        """What is handed in of a fragment."""
