"""Tapes for tests: a simulated swarm that records, and tapes altered with sound checksums."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from host.tape.tape_file import TapeFile, find_tapes
from protocol.tape import Frame, TapeWriting, encode_frame
from simulator.hosts.tape import SwarmTape
from simulator.scenarios.swarm import Swarm, build_swarm


def record_swarm(
    folder: Path,
    seed: int,
    *,
    syncers: int = 1,
    until_s: float = 60.0,
    mib_max: int = 64,
    **choices: object,
) -> Swarm:
    """A simulated swarm, its syncers' tapes in `folder`; the first syncer is away for a while."""
    tape = SwarmTape(folder, mib_max=mib_max)
    swarm = build_swarm(seed, syncers=syncers, tape=tape.of, **choices)
    first = swarm.syncers[0]
    swarm.world.at(0.5 * until_s, first.crash)
    swarm.world.at(0.5 * until_s + 3.0, first.boot)
    swarm.world.run(until_s)
    assert not tape.close()
    return swarm


def file_of(path: Path) -> TapeFile:
    """One file of a tape, opened."""
    lives = find_tapes(path.parent)
    (file,) = [
        one for life in lives for files in life.files.values() for one in files if one.path == path
    ]
    return file


def frames_of(file: TapeFile) -> list[Frame]:
    """All that is in it."""
    return [frame for group in file.groups() for frame in group.frames]


def alter(path: Path, change: Callable[[list[Frame]], list[Frame]]) -> None:
    """Write a tape's file anew with other frames; every checksum is right."""
    file = file_of(path)
    frames = change(frames_of(file))
    writing = TapeWriting(file.preface)
    path.write_bytes(writing.first + writing.group([encode_frame(frame) for frame in frames]))
