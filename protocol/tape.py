"""The tape: what a daemon was told and what it decided, as checksummed groups of frames.

    file  = preface, group*
    group = length u32 | codec u8 | check 4 B | checksum 8 B | body

A body is one frame behind another, all of one group compressed together. Every check and checksum
also covers the groups before, so that a group that is lost, doubled or moved shows. The last group
may be half written, as after a kill or a power cut: it is cut off, and said so. Damage anywhere
else is an error that names the place. What the frames of a syncer's inputs contain is the
syncer's own affair (`syncer_node.storage.tape_recorder`).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Final, Literal

import msgspec
from blake3 import blake3
from msgspec import Meta, Struct

from protocol import decoders
from protocol.errors import CorruptState
from protocol.ids import Digest, NodeKey
from protocol.project import CodecName

MAGIC: Final = b"shoal tape 1\n"
VERSION: Final = 6
"""Goes up when frames change, and when machines decide otherwise for the same inputs."""

CHECK_BYTES: Final = 4
CHECKSUM_BYTES: Final = 8
HEAD_BYTES: Final = 4 + 1 + CHECK_BYTES + CHECKSUM_BYTES
PREFACE_BYTES_MAX: Final = 1 << 16
GROUP_BYTES_MAX: Final = 1 << 30
"""Frames of one group, decompressed; a whole fragment of 250 million parameters in f32."""

STORED, DEFLATED = 0, 1
ZLIB_LEVEL: Final = 1
"""Heartbeats shrink to a third with it; higher levels take several times as long for a tenth."""

Role = Literal["syncer", "learner"]
Strand = Literal["events", "payloads"]
Scheme = Literal["ed25519", "simulated"]
BasePart = Literal["theta", "momentum", "residual", "merged-1", "merged-2", "merged-3", "merged-4"]
MERGED_PARTS: Final[tuple[BasePart, ...]] = ("merged-1", "merged-2", "merged-3", "merged-4")
Seq = Annotated[int, Meta(ge=0)]


class TapeDamaged(CorruptState):
    """A tape that cannot be read on, with the file and the offset."""


class OtherTapeVersion(TapeDamaged):
    """A whole tape that another version of Shoal wrote."""

    def __init__(self, name: str, version: int) -> None:
        age = "an older" if version < VERSION else "a newer"
        super().__init__(
            f"{name}: this tape was written by {age} Shoal (tape version {version}, this one reads "
            f"{VERSION}); replay it with the version that wrote it"
        )


class Preface(Struct, frozen=True, array_like=True):
    """First thing in every file of a tape."""

    version: int
    project: Digest
    role: Role
    key: NodeKey
    scheme: Scheme
    """How hosts sign: the simulator has a cheaper way."""
    strand: Strand
    life: Annotated[bytes, Meta(min_length=8, max_length=8)]
    """Drawn at the daemon's start: files of one life belong together."""
    number: Seq
    """Of the file within its life and strand, from 0."""
    former: Annotated[bytes, Meta(max_length=CHECKSUM_BYTES)]
    """Checksum of the last group of the file before; empty in the first."""
    wall_s: float
    """When the file was begun, for people."""
    name: str
    """What the host calls itself."""


# What a syncer's tape tells.


class Began(Struct, frozen=True, array_like=True, tag="began"):
    """A machine was built: all that it was given."""

    software: str
    genesis: bytes
    setup: bytes
    """The syncer's own encoding of what its machine was built from."""
    signatures: tuple[bytes, ...]


class Input(Struct, frozen=True, array_like=True, tag="in"):
    """Something the machine was told, when, and what it made of it."""

    at_s: float
    kind: str
    content: bytes
    outcome: bytes
    """Digest of all effects, in order."""
    decided: tuple[tuple[str, bytes], ...]
    """The effects that decide something, whole: merges asked for, records certified."""
    signatures: tuple[bytes, ...]
    """That the machine made meanwhile, in order: no private key is needed to replay."""


class MachineState(Struct, frozen=True, array_like=True, tag="state"):
    """All that the machine knew here, so that a replay can begin here as well."""

    at_s: float
    genesis: bytes
    machine: bytes
    """The syncer's own encoding (`syncer_node.storage.machine_state`)."""


class TapeEnded(Struct, frozen=True, array_like=True, tag="ended"):
    """The tape of this life ends here, and why."""

    reason: str


class PushPayload(Struct, frozen=True, array_like=True, tag="push"):
    """The bytes of one push."""

    learner: NodeKey
    incarnation: Seq
    sequence: Seq
    fragment: Seq
    codec: CodecName
    content: bytes


class Base(Struct, frozen=True, array_like=True, tag="base"):
    """A part of the version that a merge began from: f32, little-endian.

    `residual` is the quantisation error that the leader carries along; absent where it is zero.
    `merged-1` is the payload of the newest merge, `merged-2` of that before, as far as pushes are
    compared with them.
    """

    fragment: Seq
    version: Seq
    part: BasePart
    is_chained: bool
    """Made by the merge before it in this life, so that it follows from what the tape has."""
    content: bytes
    codec: CodecName = "f32"


# What a learner's tape tells.


class ReplayClass(Struct, frozen=True, array_like=True):
    """What must be the same for the same arithmetic to give the same bits."""

    device: str
    threads: int
    python: str
    torch: str
    transformers: str
    numpy: str
    cpu: str
    """Machine type and model: libraries choose their arithmetic by it."""
    corpus: Digest | None
    precision: str = "f32"
    """Of the passes."""

    def differences(self, other: ReplayClass) -> list[str]:
        """What is not the same, as `name: this one's, not the other's`."""
        return [
            f"{name}: {mine}, not {its}"
            for name in self.__struct_fields__
            if (mine := _shown(getattr(self, name))) != (its := _shown(getattr(other, name)))
        ]


class TrainerBegan(Struct, frozen=True, array_like=True, tag="trainer"):
    """A trainer came to life; everything behind it is its own until the next one."""

    incarnation: Seq
    genesis: bytes
    charter: bytes
    inner: bytes
    micro_batch: int
    seed_salt: int
    """With the project's seed, where its random numbers come from."""
    replay_class: ReplayClass
    drops_error_feedback: bool = False
    """What quantising lost of earlier pushes goes into none of this trainer's."""


class Fed(Struct, frozen=True, array_like=True, tag="fed"):
    """Positions [start, stop) to read next, without the first `skip` sequences."""

    start: Seq
    stop: Seq
    skip: Seq


class StepsDone(Struct, frozen=True, array_like=True, tag="steps"):
    """Local steps up to this one, all at the same share of the token budget."""

    local_step: Seq
    progress: float


class CharterInForce(Struct, frozen=True, array_like=True, tag="charter"):
    """Pushes are made under this charter from here on."""

    charter: bytes


class VersionApplied(Struct, frozen=True, array_like=True, tag="applied"):
    """A fragment's version (p, v) reached the inner loop behind this local step."""

    fragment: Seq
    version: Seq
    local_step: Seq
    is_assign: bool
    merged_sequence: int | None
    kept_frac: Annotated[float, Meta(ge=0.0, lt=1.0)] = 0.0
    """Share that the inner loop kept of its own value."""


class SnapshotTaken(Struct, frozen=True, array_like=True, tag="snapshot"):
    """The inner loop's fragment was copied behind this local step, for the push made next of it."""

    fragment: Seq
    local_step: Seq


class PushCaptured(Struct, frozen=True, array_like=True, tag="captured"):
    """A push was made of the newest copy of this fragment, and its digest."""

    sequence: Seq
    fragment: Seq
    base_version: Seq
    digest: Digest


class PushClosed(Struct, frozen=True, array_like=True, tag="closed"):
    """The fate of a push became known."""

    fragment: Seq
    sequence: Seq
    is_merged: bool


class Inexact(Struct, frozen=True, array_like=True, tag="inexact"):
    """From here on this trainer cannot be repeated from the tape, and why."""

    reason: str


Frame = (
    Began
    | Input
    | MachineState
    | TapeEnded
    | PushPayload
    | Base
    | TrainerBegan
    | Fed
    | StepsDone
    | CharterInForce
    | VersionApplied
    | SnapshotTaken
    | PushCaptured
    | PushClosed
    | Inexact
)

_ENCODER = msgspec.msgpack.Encoder()
_FRAMES: msgspec.msgpack.Decoder[list[Frame]] = decoders.msgpack_decoder(list[Frame])
_PREFACE: msgspec.msgpack.Decoder[Preface] = decoders.msgpack_decoder(Preface)


def encode_frame(frame: Frame) -> bytes:
    """The bytes of a frame, to be put into a group."""
    return _ENCODER.encode(frame)


class TapeWriting:
    """One file being made: its first bytes, then its groups.

    Compressing goes on from group to group of a file, so that small ones, written often, take
    little room all the same.
    """

    def __init__(self, preface: Preface, *, is_packed: bool = True) -> None:
        """is_packed: whether compressing could be of use; pushes are dense already."""
        self._packer = zlib.compressobj(ZLIB_LEVEL) if is_packed else None
        body = _ENCODER.encode(preface)
        assert len(body) <= PREFACE_BYTES_MAX
        self.chain = _checksum(MAGIC, body)
        """Checksum of all that was made so far."""
        self.first = MAGIC + len(body).to_bytes(4, "big") + self.chain + body

    def group(self, frames: list[bytes]) -> bytes:
        """The bytes of a group of encoded frames, to be written behind all before."""
        assert 0 < len(frames) < 1 << 32
        body = b"".join((b"\xdd", len(frames).to_bytes(4, "big"), *frames))
        codec = STORED
        if self._packer is not None:
            codec = DEFLATED
            body = self._packer.compress(body) + self._packer.flush(zlib.Z_SYNC_FLUSH)
        start = len(body).to_bytes(4, "big") + bytes((codec,))
        check = _check(self.chain, start)
        self.chain = _checksum(self.chain + start, body)
        return start + check + self.chain + body


@dataclass(frozen=True, slots=True)
class Group:
    """Frames that were written together."""

    offset: int
    frames: list[Frame]
    checksum: bytes


class TapeReading:
    """One file being read: its preface, then its groups. `read(n)` gives at most n bytes."""

    def __init__(self, read: Callable[[int], bytes], name: str) -> None:
        self.name = name
        self.offset = 0
        """Up to which everything is sound."""
        self.cut_bytes = 0
        """Half-written bytes at the end, known when all groups are read."""
        self._read = read
        self._unpacker = zlib.decompressobj()
        self.preface, self.chain = self._begin()

    def _begin(self) -> tuple[Preface, bytes]:
        head = self._read(len(MAGIC) + 4 + CHECKSUM_BYTES)
        if head[: len(MAGIC)] != MAGIC[: len(head)] or not head:
            raise self._damaged("this is no tape of Shoal, or one of another format")
        size = int.from_bytes(head[len(MAGIC) : len(MAGIC) + 4], "big")
        checksum = head[len(MAGIC) + 4 :]
        body = self._read(size) if size <= PREFACE_BYTES_MAX else b""
        if not body or len(body) < size or _checksum(MAGIC, body) != checksum:
            raise self._damaged("its preface is damaged or half written")
        try:
            preface = _PREFACE.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise self._damaged(f"its preface means nothing: {error}") from error
        if preface.version != VERSION:
            raise OtherTapeVersion(self.name, preface.version)
        self.offset = len(head) + size
        return preface, checksum

    def groups(self) -> Iterator[Group]:
        """Every sound group. Raises TapeDamaged where something is wrong before the end."""
        while (head := self._read(HEAD_BYTES)) and len(head) == HEAD_BYTES:
            start, check = head[:5], head[5 : 5 + CHECK_BYTES]
            checksum = head[5 + CHECK_BYTES :]
            size = int.from_bytes(start[:4], "big")
            if _check(self.chain, start) != check:
                self._end_of_zeros(head)
                return
            body = self._read(size)
            if len(body) < size:
                self.cut_bytes = HEAD_BYTES + len(body)
                return
            if _checksum(self.chain + start, body) != checksum:
                if self._read(1):
                    raise self._damaged("a group of events is damaged")
                self.cut_bytes = HEAD_BYTES + size
                return
            frames = self._frames(start[4], body)
            yield Group(self.offset, frames, checksum)
            self.offset += HEAD_BYTES + size
            self.chain = checksum
        self.cut_bytes = len(head)

    def _end_of_zeros(self, head: bytes) -> None:
        """A file may be longer than what was written, with zeros: after a power cut."""
        count = 0
        part = head
        while part:
            if any(part):
                raise self._damaged("a group of events is damaged, or one before it is missing")
            count += len(part)
            part = self._read(1 << 20)
        self.cut_bytes = count

    def _frames(self, codec: int, body: bytes) -> list[Frame]:
        try:
            return _FRAMES.decode(self._unpacked(codec, body))
        except (msgspec.DecodeError, UnicodeDecodeError, ValueError, zlib.error) as error:
            raise self._damaged(f"its events mean nothing to this Shoal: {error}") from error

    def _unpacked(self, codec: int, body: bytes) -> bytes:
        if codec == STORED:
            return body
        if codec != DEFLATED:
            raise ValueError(f"unknown compression {codec}")
        whole = self._unpacker.decompress(body, GROUP_BYTES_MAX)
        if self._unpacker.unconsumed_tail or self._unpacker.unused_data:
            raise ValueError(f"more than {GROUP_BYTES_MAX} bytes in one group")
        return whole

    def _damaged(self, what: str) -> TapeDamaged:
        return TapeDamaged(f"{self.name}, at byte {self.offset}: {what}")


def _checksum(chain: bytes, body: bytes) -> bytes:
    hasher = blake3(chain, derive_key_context="shoal 1 tape group")
    return hasher.update(body).digest(CHECKSUM_BYTES)


def _check(chain: bytes, start: bytes) -> bytes:
    return blake3(chain + start, derive_key_context="shoal 1 tape head").digest(CHECK_BYTES)


def _shown(value: object) -> str:
    return value.hex()[:8] if isinstance(value, bytes) else str(value)
