"""Which sections of a version are here, and which chunk is asked for next."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from host.files.rooms import MemoryRoom
from node.download.assembly import Assembly
from protocol import limits
from protocol.numerics import chunks
from protocol.numerics.versions import state_manifests
from tests.support.donors import a_state

CHUNK_BYTES = 4096


@pytest.fixture(autouse=True, scope="module")
def small_chunks():
    former, limits.STATE_CHUNK_BYTES = limits.STATE_CHUNK_BYTES, CHUNK_BYTES
    yield
    limits.STATE_CHUNK_BYTES = former


def begun(state):
    """An assembly that has both manifests, and all blobs of the state."""
    theta, momentum = state
    manifests = state_manifests(theta, momentum)
    blobs = {name: memoryview(blob) for name, blob in manifests.blobs(theta, momentum)}
    assembly = Assembly(0, 1, manifests.digests, theta.size)
    for root in (assembly.state.theta, assembly.state.momentum):
        if root in assembly.parts:
            assembly.take_manifest(root, blobs[root])
    return assembly, blobs


def picked(assembly, **how):
    """All chunks that may be asked for, in the order in which they are picked."""
    found = []
    while (digest := assembly.pick_idle(random.Random(7), **how)) is not None:
        found.append(digest)
    return found


@given(count=st.integers(1, 400))
def test_sections_come_in_order_and_none_is_left_out_where_there_are_enough_chunks(count):
    sections = [chunks.section_of(index, count) for index in range(count)]
    assert sections == sorted(sections)
    assert sections[0] >= 0
    assert sections[-1] < chunks.SECTIONS
    assert len(set(sections)) == min(count, chunks.SECTIONS)


@pytest.mark.parametrize("count", [5, 64, 100, 200])
@pytest.mark.parametrize("is_fresh", [True, False])
def test_a_section_is_told_of_once_all_of_it_is_here(count, is_fresh):
    theta, momentum = a_state(count, chunks=count, is_fresh=is_fresh)
    assembly, blobs = begun((theta, momentum))
    arrays = {assembly.state.theta: theta, assembly.state.momentum: momentum}
    order = picked(assembly)
    for digest in order:
        assembly.take_chunk(digest, blobs[digest], b"donor")
        for root in arrays:
            names = chunks.digests(blobs[root])
            missing = {
                chunks.section_of(at, len(names))
                for at, name in enumerate(names)
                if name not in assembly.held
            }
            sections = {chunks.section_of(at, len(names)) for at in range(len(names))}
            told = {at for at in sections if assembly.held_sections.get(root, 0) >> at & 1}
            assert told == sections - missing
    assert assembly.is_complete
    assert not assembly.roots_lacking()
    assert all(bytes(assembly.held[digest]) == bytes(blobs[digest]) for digest in order)
    assert np.array_equal(assembly.arrays()[0], theta)


def test_what_was_begun_is_finished_first():
    assembly, blobs = begun(a_state(1, chunks=200, is_fresh=True))
    names = chunks.digests(blobs[assembly.state.theta])
    of_values = [name for name in picked(assembly) if name in names]
    sections = [chunks.section_of(names.index(name), len(names)) for name in of_values]
    changes = sum(one != other for one, other in itertools.pairwise(sections))
    assert changes == chunks.SECTIONS - 1


def test_only_what_a_donor_has_is_picked_and_nothing_that_others_have():
    state = a_state(2, chunks=128)
    assembly, blobs = begun(state)
    names = chunks.digests(blobs[assembly.state.theta])
    held = {assembly.state.theta: 0b101}
    assert set(picked(assembly, held=held)) == {names[0], names[1], names[4], names[5]}
    everything = {root: chunks.ALL_SECTIONS for root in held}
    beside = picked(assembly, beside=everything)
    assert set(beside) == set(chunks.digests(blobs[assembly.state.momentum]))


def test_shares_are_all_of_it_and_have_nothing_in_common():
    assembly, _ = begun(a_state(3, chunks=100))
    shares = [picked(assembly, share=(turn, 3)) for turn in range(3)]
    assert sum(map(len, shares)) == 200
    assert len({name for share in shares for name in share}) == 200
    assert all(len(share) > 40 for share in shares)


class KeptRoom(MemoryRoom):
    """In memory that outlives the assembly."""

    is_begun = True


def kept_rooms():
    held = {}
    return lambda root, size: held.setdefault(root, KeptRoom(root, size))


def with_manifests(state, rooms):
    """An assembly that looks at what is there from a life before."""
    theta, momentum = state
    manifests = state_manifests(theta, momentum)
    blobs = {name: memoryview(blob) for name, blob in manifests.blobs(theta, momentum)}
    assembly = Assembly(0, 1, manifests.digests, theta.size, rooms)
    for root in dict.fromkeys((assembly.state.theta, assembly.state.momentum)):
        assembly.look_for(root, blobs[root])
        assembly.take_manifest(root, blobs[root])
    return assembly, blobs


@pytest.mark.parametrize("is_fresh", [True, False])
@pytest.mark.parametrize("count", [1, 5, 70])
def test_another_life_goes_on_with_what_had_come(count, is_fresh):
    state, rooms = a_state(count, chunks=count, is_fresh=is_fresh), kept_rooms()
    assembly, blobs = with_manifests(state, rooms)
    order = picked(assembly)
    for digest in order[: count // 2 + 1]:
        assembly.write(digest, blobs[digest])
    again, _ = with_manifests(state, rooms)
    zeros = again.size_bytes if is_fresh else 0
    came = sum(len(blobs[digest]) for digest in order[: count // 2 + 1])
    assert again.done_bytes == again.kept_bytes == zeros + came
    rest = picked(again)
    assert set(rest) == set(order[count // 2 + 1 :])
    assert all(bytes(again.held[digest]) == bytes(blobs[digest]) for digest in order[: count // 2])
    for digest in rest:
        again.take_chunk(digest, blobs[digest], b"donor")
    assert again.is_complete
    assert again.done_bytes == again.total_bytes
    assert sum(again.sources.values()) == sum(len(blobs[digest]) for digest in rest)
    for mine, theirs in zip(again.arrays(), state, strict=True):
        assert np.array_equal(mine, theirs)


def test_what_was_damaged_meanwhile_comes_again_and_zeros_are_made_good():
    state, rooms = a_state(3, chunks=6, is_fresh=True), kept_rooms()
    assembly, blobs = with_manifests(state, rooms)
    for digest in picked(assembly):
        assembly.take_chunk(digest, blobs[digest], b"donor")
    theta, momentum = assembly.arrays()
    theta[CHUNK_BYTES // 4] += 1
    momentum[-1] = 1
    again, _ = with_manifests(state, rooms)
    damaged = chunks.digests(blobs[again.state.theta])[1]
    assert picked(again) == [damaged]
    again.take_chunk(damaged, blobs[damaged], b"donor")
    assert again.is_complete
    for mine, theirs in zip(again.arrays(), state, strict=True):
        assert np.array_equal(mine, theirs)


def test_a_chunk_that_was_written_before_another_place_was_known_goes_there_too():
    one = np.random.default_rng(4).normal(size=CHUNK_BYTES // 4).astype(np.float32)
    other = np.random.default_rng(5).normal(size=CHUNK_BYTES // 4).astype(np.float32)
    theta, momentum = np.concatenate([one, other]), np.concatenate([other, one])
    manifests = state_manifests(theta, momentum)
    blobs = {name: memoryview(blob) for name, blob in manifests.blobs(theta, momentum)}
    assembly = Assembly(0, 1, manifests.digests, theta.size)
    assembly.take_manifest(assembly.state.theta, blobs[assembly.state.theta])
    names = picked(assembly)
    for digest in names:
        assembly.write(digest, blobs[digest])
    assembly.take_manifest(assembly.state.momentum, blobs[assembly.state.momentum])
    for digest in names:
        assembly.take_chunk(digest, blobs[digest], b"donor")
    assert assembly.is_complete
    assert np.array_equal(assembly.arrays()[1], momentum)
