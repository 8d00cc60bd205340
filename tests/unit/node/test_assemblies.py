"""What was begun of each fragment: kept for the next try, given to others, and forgotten."""

from __future__ import annotations

import numpy as np
import pytest

from node.download.assemblies import Assemblies
from node.machine.jobs import FetchState
from protocol import limits
from protocol.numerics.versions import state_manifests
from tests.support.donors import a_state

CHUNKS = 4


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(limits, "STATE_CHUNK_BYTES", 4096)


def job_of(state, fragment=0, version=1):
    return FetchState(fragment, version, state_manifests(*state).digests)


def begun(assemblies, state, fragment=0):
    """One that has the manifest of its values; the digests of their chunks."""
    theta, momentum = state
    assembly = assemblies.begin(job_of(state, fragment), theta.size)
    blobs = dict(state_manifests(theta, momentum).blobs(theta, momentum))
    assembly.take_manifest(assembly.state.theta, memoryview(blobs[assembly.state.theta]))
    chunks = [name for name, part in assembly.parts.items() if not part.is_manifest]
    for name in chunks[:1]:
        assembly.take_chunk(name, memoryview(blobs[name]), b"donor")
    return assembly, chunks


def test_a_second_try_goes_on_and_another_version_begins_anew():
    assemblies, state = Assemblies(), a_state(0, chunks=CHUNKS)
    first, _ = begun(assemblies, state)
    assert assemblies.begin(job_of(state), state[0].size) is first
    other = a_state(1, chunks=CHUNKS)
    assert assemblies.begin(job_of(other, version=2), other[0].size) is not first


def test_others_find_the_chunks_that_are_here_and_hear_of_their_sections():
    assemblies, state = Assemblies(), a_state(0, chunks=CHUNKS)
    assert not assemblies.has_any
    assembly, chunks = begun(assemblies, state)
    begun(assemblies, a_state(1, chunks=CHUNKS), fragment=1)
    assert assemblies.has_any
    found = assemblies.find(chunks[0])
    assert found is not None
    assert np.array_equal(np.frombuffer(found, np.float32), state[0][: len(found) // 4])
    assert assemblies.find(chunks[1]) is None
    assert assemblies.held_sections(assembly.state.theta).bit_count() == 1
    assert assemblies.held_sections(assembly.state.momentum) == 0


def test_what_is_forgotten_is_given_to_nobody():
    assemblies, state = Assemblies(), a_state(0, chunks=CHUNKS)
    assembly, chunks = begun(assemblies, state)
    assemblies.forget(0)
    assemblies.forget(0)
    assert assemblies.find(chunks[0]) is None
    assert assemblies.held_sections(assembly.state.theta) == 0
    assert not assemblies.has_any
