"""Three syncers, each with a small disk of its own: full disks, and files that rot.

One swarm of real processes over links with latency goes through all of it. Every test waits until
all is well, breaks something, and looks; none needs another one before it.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time

import pytest

from host.runtime.atomic_files import DISK_FREE_BYTES_MIN
from tests.net.lab_voters import LEARNERS, Voters
from tests.netlab import Lab, Link
from tests.netlab.marks import needs_lab

pytestmark = [pytest.mark.net, pytest.mark.timeout(1500), needs_lab]

SYNCERS = ("s0", "s1", "s2")
NODES = (*SYNCERS, *LEARNERS)
LINK = Link(latency_s=0.015)
DISK_BYTES = DISK_FREE_BYTES_MIN + (64 << 20)
FILLING = "filling"
"""The file that fills a disk."""

PIECE = bytes(1 << 20)
FULL_S = 8.0
FLIPPED = 16


@pytest.fixture(scope="module")
def swarm(tmp_path_factory):
    folder = tmp_path_factory.mktemp("disks")
    with (
        Lab(NODES, link=LINK, seed=5) as lab,
        contextlib.ExitStack() as mounts,
        Voters(lab, folder) as voters,
    ):
        for node in SYNCERS:
            mounts.enter_context(small_disk(voters.store(node)))
        voters.open()
        yield voters
        voters.check_outputs()


@contextlib.contextmanager
def small_disk(place):
    """A file system of its own in memory; it takes no more of that than what is written."""
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES},mode=0700", "shoal-lab", place]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"no small disk for a syncer: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)


@pytest.fixture
def well(swarm):
    """The swarm while all is well; afterwards nothing may be missing."""
    swarm.wait_well()
    swarm.keep_in_mind()
    yield swarm
    for node in SYNCERS:
        (swarm.store(node) / FILLING).unlink(missing_ok=True)
    swarm.wait_well()
    swarm.check_kept()


def fill(place, *, left_bytes):
    """Take room until at most so much is free; with 0, until not a byte can be written."""
    with (place / FILLING).open("ab", buffering=0) as handle, contextlib.suppress(OSError):
        while os.statvfs(place).f_bavail * os.statvfs(place).f_frsize > left_bytes:
            handle.write(PIECE)


# Full disks.


@pytest.mark.parametrize("left_bytes", [DISK_FREE_BYTES_MIN // 2, 0], ids=["reserve", "nothing"])
def test_a_leader_whose_disk_fills_stops_before_it_hurts(well, left_bytes):
    former, _ = well.leader()
    store = well.store(former)
    fill(store, left_bytes=left_bytes)

    def has_stopped():
        """It says so, or another one leads."""
        found = well.leader()
        own = well.own_words(former)
        return (found and found[0] != former) or (own and "paused" in own.sentence and own)

    stopped = well.until(has_stopped, "a pause")
    print(getattr(stopped, "sentence", f"{well.leader()} leads"))
    well.keep_in_mind()
    well.watch(FULL_S)
    well.processes.check()
    (store / FILLING).unlink()
    _, before = well.until(well.leader, "a leader")

    def merged():
        found = well.leader()
        return found and found[1].swarm.global_step > before.swarm.global_step

    well.until(merged, "merges again, by themselves")


def test_a_standby_with_a_full_disk_holds_nobody_up(well):
    leader, _ = well.leader()
    victim = next(node for node in SYNCERS if node != leader)
    store = well.store(victim)
    fill(store, left_bytes=0)

    def told():
        own = well.own_words(victim)
        return own and "disk" in own.sentence and own

    said = well.until(told, "a word about the disk")
    print(said.sentence)
    node, before = well.leader()
    well.watch(FULL_S)
    assert well.wait_merge(before)[0] == node == leader
    well.processes.check()
    (store / FILLING).unlink()
    well.wait_well()


# Files that rot.


def flip(path, *, from_end=None):
    """Turn some bits over, in the middle or so many bytes before the end."""
    size = path.stat().st_size
    at = size // 2 if from_end is None else max(0, size - from_end)
    with path.open("r+b") as handle:
        handle.seek(at)
        found = handle.read(FLIPPED)
        handle.seek(at)
        handle.write(bytes(0xFF ^ byte for byte in found))


def rot_payloads(store):
    found = sorted((store / "payloads").glob("*.bin"))
    assert found
    for path in found:
        flip(path)


def rot_newest_checkpoint(store):
    places = [one for one in (store / "checkpoints").iterdir() if one.name.isdigit()]
    flip(max(places, key=lambda one: int(one.name)) / "state.safetensors")


def rot_all_checkpoints(store):
    for place in (store / "checkpoints").iterdir():
        if place.name.isdigit():
            flip(place / "state.safetensors")


def rot_log_tail(store):
    flip(newest_log(store), from_end=700)


def rot_log_middle(store):
    flip(newest_log(store))


def newest_log(store):
    found = [one for one in store.glob("log*") if one.suffix == ""]
    return max(found, key=lambda one: one.stat().st_mtime)


ROT = [rot_payloads, rot_newest_checkpoint, rot_all_checkpoints, rot_log_tail, rot_log_middle]


@pytest.mark.parametrize("rot", ROT, ids=lambda rot: rot.__name__)
def test_rotten_files_of_a_leader_are_set_aside_and_fetched_again(well, rot):
    """The bytes change under the running leader; it finds out when it is killed and comes back."""
    former, _ = well.leader()
    rot(well.store(former))
    well.kill(former)
    well.wait_takeover(former)
    time.sleep(1.0)
    well.start_again(former)
    well.wait_well()
    output = well.output(former)
    assert "Traceback" not in output
    print([line for line in output.splitlines() if "set aside" in line or "damage" in line][-3:])
