"""What the daemon lets through from a donor that may lie, and what it holds meanwhile."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from host.bulk.blob_store import BlobStore
from node.machine.jobs import (
    CaptureMoments,
    DonorsFound,
    FetchMoments,
    FindDonors,
    InstallMoments,
    MomentsCaptured,
    MomentsFetched,
    MomentsInstalled,
)
from node.machine.moments import moments_numel
from node.trainer_client.fragment_bank import FragmentBank
from node.trainer_client.moments_port import MomentsPort
from protocol import limits
from protocol.errors import MalformedPayload, NotHeld, TransientError
from protocol.machine import Failed
from protocol.numerics.outer import digest
from tests.support.builders import TWO, layout, project

LAYOUT = layout()
CHARTER = project().charter


def honest(fragment, steps=5):
    values = np.zeros(moments_numel(fragment), np.float32)
    values[: fragment.numel] = 1e-3
    values[fragment.numel : 2 * fragment.numel] = 1e-4
    values[2 * fragment.numel :] = steps
    return values


class FakeTrainer:
    """Gives and takes moments, unless it is dying."""

    def __init__(self, blob_store):
        self.bank = FragmentBank(LAYOUT, blob_store)
        self.is_dying = False
        self.installed = {}

    async def in_pool(self, work):
        return await asyncio.to_thread(work)

    async def capture_moments(self, numels):
        assert numels == [moments_numel(fragment) for fragment in LAYOUT.fragments]
        return None if self.is_dying else [honest(fragment) for fragment in LAYOUT.fragments]

    async def install_moments(self, fragment, values):
        self.installed[fragment] = values
        return not (self.is_dying and fragment)


class FakeTransport:
    """Another host's shelf, and whatever happens before a blob comes from it."""

    def __init__(self):
        self.blob_store = BlobStore()
        self.before = lambda: None
        self.fetched = 0

    async def fetch(self, peer, name, length, *, into):
        assert peer == TWO.key
        self.before()
        self.fetched += 1
        blob = self.blob_store.get(name)
        if blob is None:
            raise NotHeld("gone")
        if len(blob) != length:
            raise MalformedPayload("another length")
        into[:] = blob

    def offer(self, *arrays):
        names = []
        for values in arrays:
            content = values.tobytes()
            chunk = limits.MOMENTS_CHUNK_BYTES
            for first in range(0, len(content), chunk):
                blob = content[first : first + chunk]
                names.append(digest(blob))
                self.blob_store.put(names[-1], blob)
        return tuple(names)


class FakeLocator:
    def __init__(self, transport):
        self.transport = transport

    async def donors_or_none(self):
        return [TWO.key]


class Scene:
    def __init__(self):
        self.blob_store = BlobStore()
        self.transport = FakeTransport()
        self.trainer = FakeTrainer(self.blob_store)
        self.faults = []
        self.port = MomentsPort(
            FakeLocator(self.transport),
            self.trainer,
            lambda peer, error: self.faults.append((peer, error.reason)),
        )

    def run(self, job):
        return asyncio.run(self.port.run_job(job))

    def fetch(self, *arrays):
        return self.run(FetchMoments(TWO.key, self.transport.offer(*arrays), CHARTER.inner))


@pytest.fixture
def scene():
    return Scene()


@pytest.fixture(params=[1 << 20, 100], ids=["whole", "in pieces"])
def chunks(request, monkeypatch):
    monkeypatch.setattr(limits, "MOMENTS_CHUNK_BYTES", request.param)


def everything():
    return [honest(fragment, steps=at + 1) for at, fragment in enumerate(LAYOUT.fragments)]


def test_what_one_captures_another_installs_bit_for_bit(scene, chunks):
    captured = scene.run(CaptureMoments())
    assert isinstance(captured, MomentsCaptured)
    other = Scene()
    other.transport.blob_store = scene.blob_store
    assert other.run(FetchMoments(TWO.key, captured.blobs, CHARTER.inner)) == MomentsFetched()
    assert other.run(InstallMoments()) == MomentsInstalled(5)
    for fragment in LAYOUT.fragments:
        np.testing.assert_array_equal(other.trainer.installed[fragment.index], honest(fragment))
    assert other.run(InstallMoments()) == Failed("the moments are gone")


def test_a_snapshot_leaves_the_shelf_when_it_is_withdrawn_or_taken_again(scene):
    first = scene.run(CaptureMoments())
    count = len(scene.blob_store)
    assert scene.run(CaptureMoments()) == first
    assert len(scene.blob_store) == count
    scene.port.withdraw()
    assert len(scene.blob_store) == 0


def test_a_trainer_that_ends_leaves_nothing_on_the_shelf(scene):
    scene.trainer.is_dying = True
    assert isinstance(scene.run(CaptureMoments()), Failed)
    assert len(scene.blob_store) == 0


def test_a_trainer_that_ends_while_installing_is_told(scene):
    scene.fetch(*everything())
    scene.trainer.is_dying = True
    assert isinstance(scene.run(InstallMoments()), Failed)


def poisoned(change):
    arrays = everything()
    change(arrays[2], LAYOUT.fragments[2].numel)
    return arrays


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda a, n: a.__setitem__(0, np.nan), id="not finite"),
        pytest.param(lambda a, n: a.__setitem__(n, -1.0), id="negative"),
        pytest.param(lambda a, n: a.__setitem__(0, 1e6), id="a jump"),
        pytest.param(lambda a, n: a.__setitem__(slice(n, 2 * n), 1.0), id="frozen"),
        pytest.param(lambda a, n: a.__setitem__(2 * n, 0.0), id="no steps"),
    ],
)
def test_an_impossible_state_is_an_offence_and_not_kept(scene, change):
    result = scene.fetch(*poisoned(change))
    assert isinstance(result, Failed)
    assert scene.faults == [(TWO.key, "malformed-payload")]
    assert isinstance(scene.run(InstallMoments()), Failed)
    assert scene.trainer.installed == {}


@pytest.mark.parametrize("count", [0, 3, 5])
def test_another_number_of_blobs_is_an_offence_before_anything_is_fetched(scene, count):
    names = tuple(bytes([at]) * 32 for at in range(count))
    result = scene.run(FetchMoments(TWO.key, names, CHARTER.inner))
    assert isinstance(result, Failed)
    assert scene.faults == [(TWO.key, "malformed-payload")]
    assert scene.transport.fetched == 0


def test_a_blob_of_another_length_is_an_offence(scene):
    arrays = everything()
    arrays[1] = arrays[1][:-1]
    assert isinstance(scene.fetch(*arrays), Failed)
    assert scene.faults == [(TWO.key, "malformed-payload")]


def test_a_donor_that_is_gone_is_no_offence(scene):
    names = scene.transport.offer(*everything())
    scene.transport.blob_store = BlobStore()
    with pytest.raises(TransientError):
        scene.run(FetchMoments(TWO.key, names, CHARTER.inner))
    assert scene.faults == []


def test_a_fetch_that_nobody_wants_any_more_ends_at_the_next_fragment(scene):
    scene.transport.before = scene.port.forget
    assert scene.fetch(*everything()) == Failed("no longer wanted")
    assert scene.transport.fetched == 1
    assert isinstance(scene.run(InstallMoments()), Failed)


def test_donors_come_from_the_table(scene):
    assert scene.run(FindDonors()) == DonorsFound((TWO.key,))
