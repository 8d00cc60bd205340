"""Tapes for tests: a simulated swarm that records, and tapes altered with sound checksums."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from node.host.tape_file import TapeLabel, TapeWriter, find_tapes
from protocol.tape import Frame, TapeWriting, encode_frame
from simulator.scenario import Swarm, build_swarm
from simulator.syncers import SimSyncer


class Direct:
    """Writes at once, in the caller's thread."""

    def __init__(self, writer: TapeWriter) -> None:
        self.writer = writer
        self.stopped = ""

    @property
    def is_running(self) -> bool:
        return not self.stopped

    def put(self, frame: Callable[[], Frame], size: int) -> None:
        self.writer.put(frame())

    def stop(self, reason: str) -> None:
        self.stopped = reason


def record_swarm(folder: Path, seed: int, *, syncers: int = 1, until_s: float = 60.0) -> Swarm:
    """A simulated swarm, its syncers' tapes in `folder`; the first syncer is away for a while."""
    made: list[Direct] = []

    def tape(host: SimSyncer) -> Direct:
        label = TapeLabel(host.tiny.project, "syncer", host.key, host.name, "simulated")
        life = host.life.to_bytes(8, "big")
        wall_s = 1.0 + host.world.now_s
        sink = Direct(TapeWriter(folder / host.name, label, life, mib_max=64, wall_s=wall_s))
        made.append(sink)
        return sink

    swarm = build_swarm(seed, syncers=syncers, tape=tape)
    first = swarm.syncers[0]
    swarm.world.at(0.5 * until_s, first.crash)
    swarm.world.at(0.5 * until_s + 3.0, first.boot)
    swarm.world.run(until_s)
    for sink in made:
        assert not sink.stopped
        sink.writer.close()
    return swarm


def alter(path: Path, change: Callable[[list[Frame]], list[Frame]]) -> None:
    """Write a tape's file anew with other frames; every checksum is right."""
    (life,) = [
        one
        for one in find_tapes(path.parent)
        if any(file.path == path for files in one.files.values() for file in files)
    ]
    (file,) = [one for files in life.files.values() for one in files if one.path == path]
    frames = change([frame for group in file.groups() for frame in group.frames])
    writing = TapeWriting(file.preface)
    path.write_bytes(writing.first + writing.group([encode_frame(frame) for frame in frames]))
