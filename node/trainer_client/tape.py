"""A learner's tape: what its trainer was told, and behind which local step it took effect.

Small, for it holds no tensor: a replayer has the weights from the syncer's tape, and draws the
rest again. What cannot be repeated, such as moments that came from another learner, is said.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Protocol

import msgspec

from host.runtime.processor import model_name
from node.trainer.link.messages import Ready
from node.trainer_client.fragment_bank import Delivery
from protocol import tape
from protocol.project import Charter, InnerSpec, encode

FRAME_BYTES = 64
"""About what a frame of a learner's tape takes in memory."""


class Sink(Protocol):
    """Where frames go: `host.tape.tape_file.TapeRecorder`."""

    def put(
        self, frame: Callable[[], tape.Frame], size: int, *, is_urgent: bool = False
    ) -> None: ...


@dataclass(slots=True)
class TrainerTape:
    """Records one daemon's trainers, one after the other."""

    sink: Sink
    incarnation: int = 0
    _charter: Charter | None = None
    _steps: tape.StepsDone | None = None
    """Local steps that are not written yet: they go together until something else happens."""
    _is_live: bool = False
    _marks: dict[int, Callable[[int], tape.Frame]] = field(default_factory=dict)
    """What a command's answer will mean, by its number."""

    def began(
        self,
        *,
        genesis: bytes,
        charter: Charter,
        inner: InnerSpec,
        micro_batch: int,
        seed_salt: int,
        replay_class: tape.ReplayClass,
        drops_error_feedback: bool = False,
    ) -> None:
        """A trainer is ready."""
        self._steps, self._marks = None, {}
        self._charter, self._is_live = charter, True
        self.took(
            tape.TrainerBegan(
                incarnation=self.incarnation,
                genesis=genesis,
                charter=encode(charter),
                inner=msgspec.msgpack.encode(inner),
                micro_batch=micro_batch,
                seed_salt=seed_salt,
                replay_class=replay_class,
                drops_error_feedback=drops_error_feedback,
            ),
            len(genesis),
        )

    def fed(self, start: int, stop: int, skip: int) -> None:
        self.took(tape.Fed(start, stop, skip))

    def stepped(self, local_step: int, progress: float) -> None:
        """A local step is done; many of the same kind become one frame."""
        former = self._steps
        if former is not None and former.progress != progress:
            self._flush()
        self._steps = tape.StepsDone(local_step, progress)

    def expect(self, number: int, mark: Callable[[int], tape.Frame]) -> None:
        """The answer to this command, at a local step, means what `mark` gives."""
        self._marks[number] = mark

    def answered(self, number: int, local_step: int) -> None:
        """A command took effect behind this local step."""
        mark = self._marks.pop(number, None)
        if mark is not None:
            self.took(mark(local_step))

    def captured(self, sequence: int, fragment: int, base_version: int, name: bytes) -> None:
        """A push was made; on tape before anybody can have merged it, unless the disk is slow."""
        self._flush()
        frame = tape.PushCaptured(sequence, fragment, base_version, name)
        self.sink.put(lambda: frame, FRAME_BYTES, is_urgent=True)

    def closed(self, fragment: int, sequence: int, *, is_merged: bool) -> None:
        self.took(tape.PushClosed(fragment, sequence, is_merged))

    def under(self, charter: Charter) -> None:
        """Pushes are made under this charter."""
        if self._is_live and charter is not self._charter:
            self._charter = charter
            self.took(tape.CharterInForce(encode(charter)))

    def inexact(self, reason: str) -> None:
        self.took(tape.Inexact(reason))

    def _flush(self) -> None:
        if self._steps is not None:
            steps, self._steps = self._steps, None
            self.sink.put(lambda: steps, FRAME_BYTES)

    def took(self, frame: tape.Frame, size: int = 0) -> None:
        """Something took effect here and now. size: bytes, of a large one."""
        self._flush()
        self.sink.put(lambda: frame, FRAME_BYTES + size)


def applied(
    fragment: int, delivery: Delivery, merged_sequence: int | None
) -> Callable[[int], tape.Frame]:
    """The mark of a delivery."""
    number, is_assign, kept_frac = delivery.version, delivery.is_assign, delivery.kept_frac
    return lambda step: tape.VersionApplied(
        fragment, number, step, is_assign, merged_sequence, kept_frac
    )


def snapshot(fragment: int) -> Callable[[int], tape.Frame]:
    """The mark of a snapshot."""
    return lambda step: tape.SnapshotTaken(fragment, step)


def how_trained(ready: Ready) -> str:
    """The device, as far as it decides about the bits: several ranks add up in another order, a
    compiler chooses its own, and what is held in fewer bits is rounded."""
    how = "".join(f"{one}, " for one in (*("compiled",) * ready.is_compiled, *ready.in_low_bits))
    return how + (ready.device if ready.ranks == 1 else f"{ready.ranks} ranks on {ready.device}")


def replay_class(
    device: str, threads: int, corpus: bytes | None, *, precision: str = "f32"
) -> tape.ReplayClass:
    """That of a trainer on this host."""
    return tape.ReplayClass(
        device=device,
        threads=threads,
        python=platform.python_version(),
        torch=_version("torch"),
        transformers=_version("transformers"),
        numpy=_version("numpy"),
        cpu=_cpu(),
        corpus=corpus,
        precision=precision,
    )


@cache
def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


@cache
def _cpu() -> str:
    """Machine and model: libraries choose their arithmetic by the model."""
    return f"{platform.machine()} {model_name() or platform.processor()}".strip()
