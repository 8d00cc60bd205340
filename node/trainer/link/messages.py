"""What the daemon and its trainer say to each other, and how it is framed.

Both ends hold one end of a Unix stream socket pair. A frame is a 4-byte big-endian length and that
many bytes of MessagePack. Weights never travel in frames: they lie in slots
(`node.trainer.link.shared_memory`), anonymous memory files whose descriptor rides on the first byte
of an `OfferSlot`. The kernel frees a slot when both ends are gone, however they went.

The trainer knows nothing of peers, rounds or versions. It carries out commands strictly in the
order sent, at local-step boundaries only; a pause makes it give up the step it is in. This module
imports neither torch nor asyncio, and does no scheduling: `node.trainer_client.process` and
`node.trainer.main` own the two ends.
"""

from __future__ import annotations

import os
import socket
from collections import deque
from typing import Annotated, Final, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from host.runtime.received import receive
from protocol import decoders, limits
from protocol.errors import InternalError, ShoalError
from protocol.ids import Count
from protocol.messages import Gain, SequencePlaces

FRAME_BYTES_MAX: Final = limits.GENESIS_BYTES_MAX + (64 << 10)
"""A genesis travels inside `Configure`; every other message is far smaller."""
LENGTH_BYTES: Final = 4
READ_BYTES: Final = 64 << 10
DESCRIPTORS_PER_READ_MAX: Final = 16
"""The kernel ends a read at the first frame that carries a descriptor, so one would do."""

EXIT_OK: Final = 0
EXIT_MODEL: Final = 65
"""The genesis does not describe a model that this installation can build."""
EXIT_DATA: Final = 66
"""The text could not be read, or there is too little of it."""
EXIT_DEVICE: Final = 69
"""The accelerator is missing or broke."""
EXIT_INTERNAL: Final = 70
"""A bug in the trainer, or a daemon that broke the order of commands."""
EXIT_MEMORY: Final = 71
"""Too little memory, whatever the micro-batch."""
EXIT_OOM: Final = 75
"""Out of memory: worth another try with a smaller micro-batch."""

FailureKind = Literal["oom", "memory", "data", "model", "device", "internal"]
"""oom: a smaller micro-batch may do; memory: whatever the micro-batch, it is too little."""

EXIT_CODES: Final[dict[FailureKind, int]] = {
    "oom": EXIT_OOM,
    "memory": EXIT_MEMORY,
    "data": EXIT_DATA,
    "model": EXIT_MODEL,
    "device": EXIT_DEVICE,
    "internal": EXIT_INTERNAL,
}

SlotId = Annotated[int, Meta(ge=0, lt=2**31)]


class LinkClosed(ShoalError):
    """The other end is gone; there is nobody left to talk to."""


# --------------------------------------------------------------------------- daemon -> trainer


class Configure(Struct, frozen=True, array_like=True, tag=True):
    """The first command, sent once. The trainer answers with `Ready` or `Failed`."""

    genesis: bytes
    """Genesis bytes as stored."""
    inner: bytes
    """MessagePack of `protocol.project.InnerSpec`. Where its batch has a range, the trainer takes
    the fewest sequences on a processor, and on an accelerator as many as go through it at once."""
    data_cache: str
    """Directory for tokenised text; trainers of one host may share it."""
    threads: Annotated[int, Meta(ge=1, le=1024)]
    micro_batch: Annotated[int, Meta(ge=1)] | None = None
    """Sequences in one forward pass; None: as many as fit, found by a dry step."""
    duty_frac: Annotated[float, Meta(gt=0.0, le=1.0)] = 1.0
    """Share of wall time spent working; the rest is slept after each local step."""
    seed_salt: Count = 0
    """Mixed into the random stream (dropout), so that learners differ."""
    device: str | None = None
    """`cpu`, `cuda`, `cuda:1`, `mps`, `xpu`, `xla`; None: the best that `accelerate` finds."""
    nice: Annotated[int, Meta(ge=0, le=19)] = 0
    data_location: str | None = None
    """Where the text lies on this machine, if not where the genesis says."""
    gpu_memory_frac: Annotated[float, Meta(gt=0.0, le=1.0)] = 1.0
    """Share of the accelerator's memory that the trainer may take."""
    ram_bytes_max: Count | None = None
    """Memory of the machine that the trainer may hold."""
    ranks: Annotated[int, Meta(ge=1, le=1024)] = 1
    """Processes that train as one, a device each; `device` may then name several, with commas."""
    compiles: bool = False
    """Whether torch compiles the model, where it can."""
    trainer: str = ""
    """Training code of the owner of this machine, `package.module:Class`; empty for the project's,
    or Shoal's own."""
    base_in_4_bits: bool = False
    """Whether the frozen base of an adapter is held so."""
    checkpoints_activations: bool = False
    """Whether activations are computed again in the backward pass from the start."""
    ram_ceiling_bytes: Count | None = None
    """Memory of the machine that all of Shoal may hold, `ram_bytes_max` included."""
    optimizer_in_8_bits: bool = False
    """Whether AdamW's moments are kept so."""
    sharded: bool = False
    """Whether the ranks hold the model together, each of them some rows of every tensor."""
    in_f32: bool = False
    """Whether passes are computed in f32 where something else would be faster."""

    @property
    def in_low_bits(self) -> tuple[str, ...]:
        """What is held in fewer bits than the project says, in words."""
        base = ("base in 4 bits",) if self.base_in_4_bits else ()
        return (*base, "moments in 8 bits") if self.optimizer_in_8_bits else base


class OfferSlot(Struct, frozen=True, array_like=True, tag=True):
    """Shares a slot; its descriptor rides on this frame."""

    slot: SlotId
    numel: Count


class DropSlot(Struct, frozen=True, array_like=True, tag=True):
    """The trainer forgets a slot."""

    slot: SlotId


class OnSlot(Struct, frozen=True, array_like=True, tag=True):
    """A command about one fragment and the slot with its values. Answered by `Done`."""

    job: Count
    fragment: Count
    slot: SlotId
    numel: Count


class Assign(OnSlot, frozen=True, array_like=True, tag=True):
    """theta_p becomes the slot's values, but for the share it keeps. Answered by `Done`."""

    kept_frac: Annotated[float, Meta(ge=0.0, lt=1.0)] = 0.0


class Add(OnSlot, frozen=True, array_like=True, tag=True):
    """The slot's values are added to theta_p. Answered by `Done`."""


class Snapshot(OnSlot, frozen=True, array_like=True, tag=True):
    """theta_p is copied into the slot, padding zeroed. Answered by `Done`."""


class CaptureMoments(OnSlot, frozen=True, array_like=True, tag=True):
    """The optimizer's state of a fragment is copied into the slot. Answered by `Done`."""


class InstallMoments(OnSlot, frozen=True, array_like=True, tag=True):
    """The optimizer's state of a fragment becomes the slot's, before `Begin`. Answered by `Done`.

    Once every fragment has come, local steps do without the ramp for fresh moments.
    """


class Blocks(Struct, frozen=True, array_like=True, tag=True):
    """Appends leased positions [start, stop) to the work queue, in this order."""

    ranges: tuple[tuple[Count, Count], ...]
    start_sequence: Count = 0
    """Sequences of the first block that are already read."""


class DropBlocks(Struct, frozen=True, array_like=True, tag=True):
    """Empties the work queue; the next local step needs new `Blocks`."""


class SetProgress(Struct, frozen=True, array_like=True, tag=True):
    """Position of the learning-rate schedule: committed tokens over the budget."""

    frac: Annotated[float, Meta(ge=0.0, le=1.0)]


class SetDuty(Struct, frozen=True, array_like=True, tag=True):
    """Changes the share of wall time spent working."""

    frac: Annotated[float, Meta(gt=0.0, le=1.0)]


class Evaluate(Struct, frozen=True, array_like=True, tag=True):
    """Held-out loss of the model in the slot, not of the trained one. Answered by `Evaluated`."""

    job: Count
    slot: SlotId
    """theta of every fragment in fragment order, one after the other."""
    numel: Count
    sequences: Annotated[int, Meta(ge=1)]


class MeasureGain(Struct, frozen=True, array_like=True, tag=True):
    """What other values of one fragment do to the loss of two texts, of the model in the slot.

    Weights in training and their random stream stay as they are. Commands that move fragments or
    name text are carried out meanwhile. Answered by `GainMeasured`.
    """

    job: Count
    slot: SlotId
    """theta of every fragment in fragment order, then the other values of `fragment`."""
    numel: Count
    fragment: Count
    own: SequencePlaces
    other: SequencePlaces


class Generate(Struct, frozen=True, array_like=True, tag=True):
    """Samples text. Answered by `Generated`."""

    job: Count
    prompt: Annotated[str, Meta(max_length=limits.TEXT_CHARS_MAX)]
    tokens: Annotated[int, Meta(ge=1, le=4096)]
    slot: SlotId | None = None
    """As in `Evaluate`; None: the weights in training."""
    numel: Count = 0
    seed: Count = 0
    temperature: Annotated[float, Meta(gt=0.0, le=10.0)] = 0.8


class LoopState(Struct, frozen=True, array_like=True):
    """What makes up an inner loop besides its weights and moments."""

    local_step: Count
    tokens_total: Count
    progress: float
    is_seasoned: bool
    ranges: tuple[tuple[Count, Count, Count], ...]
    """Leased positions [start, stop) not yet read, and the sequences read of the first."""
    position: Count
    sequence: Count
    random: bytes
    """State of the random stream on the processor."""
    device_random: bytes = b""
    """The same on the accelerator."""
    extras: bytes = b""
    """What training code keeps besides weights and moments."""


class CutPart(Struct, frozen=True, array_like=True, tag=True):
    """All of the trainer's state, at one boundary. Answered by `PartCut`."""

    job: Count
    slot: SlotId
    """theta of every fragment in fragment order, then the moments of every fragment."""
    numel: Count


class RestorePart(Struct, frozen=True, array_like=True, tag=True):
    """The trainer's state becomes that of a part, before `Begin`. Answered by `Done`."""

    job: Count
    slot: SlotId
    """As in `CutPart`."""
    numel: Count
    state: LoopState


class Suspend(Struct, frozen=True, array_like=True, tag=True):
    """The trainer answers `Suspended`, and ends. What its slots hold by then is the rest of it."""

    job: Count


class Restore(Struct, frozen=True, array_like=True, tag=True):
    """The inner loop goes on where a suspended one stood; weights and moments must have come.

    Answered by `Done`.
    """

    job: Count
    state: LoopState


class Begin(Struct, frozen=True, array_like=True, tag=True):
    """Local steps start. Every fragment must have been assigned before."""


class Pause(Struct, frozen=True, array_like=True, tag=True):
    """No local steps until `Resume`; commands are still carried out."""


class Resume(Struct, frozen=True, array_like=True, tag=True):
    """Ends a pause."""


class Quit(Struct, frozen=True, array_like=True, tag=True):
    """The trainer ends with exit code 0."""


Command = (
    Configure
    | OfferSlot
    | DropSlot
    | Assign
    | Add
    | Snapshot
    | CaptureMoments
    | InstallMoments
    | CutPart
    | RestorePart
    | Suspend
    | Restore
    | Blocks
    | DropBlocks
    | SetProgress
    | SetDuty
    | Evaluate
    | MeasureGain
    | Generate
    | Begin
    | Pause
    | Resume
    | Quit
)


AMID: Final = (
    OfferSlot,
    DropSlot,
    Assign,
    Add,
    Snapshot,
    CaptureMoments,
    CutPart,
    Blocks,
    DropBlocks,
    SetProgress,
    SetDuty,
)
"""Commands that do not wait until a gain is measured: they are short, and touch nothing of it."""


# --------------------------------------------------------------------------- trainer -> daemon


class Ready(Struct, frozen=True, array_like=True, tag=True):
    """The model and the text are there; weights may be assigned."""

    layout_digest: bytes
    """Digest of the fragment layout that the trainer uses, to be compared with the daemon's."""
    device: str
    parameters: Count
    micro_batch: Count
    corpus_digest: bytes
    corpus_matches: bool
    """Whether this host's training split is the one that the project was signed with."""
    train_tokens: Count
    heldout_tokens: Count
    startup_s: dict[str, float]
    """Seconds by phase: import, data, model, device, ranks."""
    ranks: Annotated[int, Meta(ge=1)] = 1
    is_compiled: bool = False
    adjustments: tuple[str, ...] = ()
    """What was wanted and is not available, in words."""
    batch_sequences: Count = 0
    """In each local step."""
    in_low_bits: tuple[str, ...] = ()
    """What is held in fewer bits than the project says, in words."""
    is_sharded: bool = False
    """Every rank holds a part of the model."""
    precision: str = "f32"
    """Of its passes: f32 or bf16."""


class Stepped(Struct, frozen=True, array_like=True, tag=True):
    """One local step is done. Counters start at 0 in each new trainer process."""

    local_step: Count
    tokens_total: Count
    loss: float
    """Mean cross-entropy per token in nats. NaN: gradients were not finite, weights unchanged."""
    step_s: float
    """Wall seconds since the last local step ended, sleep included; waiting for blocks is not, nor
    is measuring."""
    work_s: float
    """Wall seconds of computation."""
    position: Count
    """Leased position last read from."""
    sequence: Count
    """Sequences of that block that are read; equal to the block's size when it is finished."""
    learning_rate: float
    progress: float = 0.0
    measured_s: float = 0.0
    """Wall seconds that went into measuring since the last local step, its rests included."""


class Done(Struct, frozen=True, array_like=True, tag=True):
    """A command that names a fragment is carried out, at this place in the text."""

    job: Count
    local_step: Count
    tokens_total: Count
    seconds: float
    position: Count = 0
    sequence: Count = 0


class PartCut(Struct, frozen=True, array_like=True, tag=True):
    """The slot holds the trainer's arrays, and this is the rest of its state."""

    job: Count
    state: LoopState


class Suspended(Struct, frozen=True, array_like=True, tag=True):
    """The last event of a trainer that was suspended."""

    job: Count
    state: LoopState


class Evaluated(Struct, frozen=True, array_like=True, tag=True):
    """Held-out loss in nats per token over `tokens` tokens; no number for a wrecked model."""

    job: Count
    loss: float
    tokens: Count
    seconds: float
    is_cut: bool = False
    """A pause cut it short: the loss means nothing."""


GainTrouble = Literal["paused", "other text", "no memory", "not finite", "no losses"]


class GainMeasured(Struct, frozen=True, array_like=True, tag=True):
    """The gain on both texts, or why there is none."""

    job: Count
    own: Gain | None
    other: Gain | None
    seconds: float
    trouble: GainTrouble | None = None


class Generated(Struct, frozen=True, array_like=True, tag=True):
    """Sampled text, without the prompt."""

    job: Count
    text: str


class Adjusted(Struct, frozen=True, array_like=True, tag=True):
    """The trainer goes on, but otherwise than it said when it was ready. No local step is lost."""

    micro_batch: Count
    reason: str


class Starved(Struct, frozen=True, array_like=True, tag=True):
    """The queue holds less than one local step; the trainer sleeps until a command comes."""

    local_step: Count


class Failed(Struct, frozen=True, array_like=True, tag=True):
    """The last event of a trainer that ends by itself; its exit code is `EXIT_CODES[kind]`."""

    kind: FailureKind
    message: str


Event = (
    Ready
    | Stepped
    | Done
    | PartCut
    | Suspended
    | Evaluated
    | GainMeasured
    | Generated
    | Starved
    | Adjusted
    | Failed
)

Framed = Struct
"""Any message; between the ranks of a trainer there are others than these."""

M = TypeVar("M")

_ENCODER: Final = msgspec.msgpack.Encoder()
COMMANDS: Final = decoders.msgpack_decoder(Command)
EVENTS: Final = decoders.msgpack_decoder(Event)


def frame(message: Framed) -> bytes:
    """The message as it goes over the socket. InternalError if it is over `FRAME_BYTES_MAX`."""
    body = _ENCODER.encode(message)
    if len(body) > FRAME_BYTES_MAX:
        raise InternalError(f"a {type(message).__name__} of {len(body)} bytes is too long to send")
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


class FrameReader:
    """Turns what a socket yields, in whatever pieces, into frames and their descriptors."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._descriptors: deque[int] = deque()

    def feed(self, piece: bytes, descriptors: list[int]) -> None:
        """Takes over one read, descriptors included."""
        self._buffer += piece
        self._descriptors.extend(descriptors)

    def next_frame(self) -> bytes | None:
        """The next complete frame without its length; None until more is fed. InternalError if
        a length is out of bounds."""
        if len(self._buffer) < LENGTH_BYTES:
            return None
        size = int.from_bytes(self._buffer[:LENGTH_BYTES], "big")
        if size > FRAME_BYTES_MAX:
            raise InternalError(f"the trainer link announced a frame of {size} bytes")
        end = LENGTH_BYTES + size
        if len(self._buffer) < end:
            return None
        body = bytes(self._buffer[LENGTH_BYTES:end])
        del self._buffer[:end]
        return body

    def take_descriptor(self) -> int:
        """The oldest descriptor not yet taken, now the caller's. InternalError if there is none."""
        if not self._descriptors:
            raise InternalError("a slot was offered without its descriptor")
        return self._descriptors.popleft()

    def close(self) -> None:
        """Closes the descriptors that nobody took."""
        while self._descriptors:
            os.close(self._descriptors.popleft())


def decode(decoder: msgspec.msgpack.Decoder[M], body: bytes) -> M:
    """The message in a frame. InternalError if the two ends disagree about the messages."""
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InternalError(f"the trainer link carried an unknown message: {error}") from error


def read_into(reader: FrameReader, end: socket.socket) -> bool:
    """Moves what is waiting on the socket into the reader; False at end of file.

    Never blocks. Raises BlockingIOError if nothing is waiting.
    """
    try:
        piece, descriptors = receive(end, READ_BYTES, DESCRIPTORS_PER_READ_MAX)
    except ConnectionResetError:
        return False  # The other end died with unread bytes in its queue: as gone as at EOF.
    reader.feed(piece, descriptors)
    return bool(piece)
