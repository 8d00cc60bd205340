"""What a daemon does for a probe: what it fetches, from whom, what it believes, what it says."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from host.bulk.blob_store import BlobStore
from node.machine.jobs import NotProbed, ProbePush, PushProbed
from node.trainer.link.messages import GainMeasured
from node.trainer_client import probe_port
from node.trainer_client.fragment_bank import FragmentBank
from node.trainer_client.probe_port import ProbePort
from protocol.errors import CorruptState, MalformedPayload, TransientError
from protocol.messages import Gain, SequencePlace
from protocol.numerics.codecs import encode, payload_bytes
from protocol.numerics.outer import digest
from protocol.numerics.versions import state_manifests
from tests.support.builders import SYNCER, layout

LAYOUT = layout()
NUMEL = LAYOUT.fragments[1].numel
OWN, OTHER = Gain(3.0, 0.02, 0.05, 1), Gain(3.1, 0.01, 0.04, 1)
PLACES = (SequencePlace(3, 0),)


def theta_of(fragment):
    return np.random.default_rng(fragment.index).normal(size=fragment.numel).astype(np.float32)


class FakeTrainer:
    """Measures what it is told to."""

    def __init__(self):
        self.bank = FragmentBank(LAYOUT, BlobStore(clock=lambda: 0.0))
        self.has_signed_text = True
        self.result = GainMeasured(1, OWN, OTHER, 0.5)
        self.measured = []

    async def in_pool(self, work):
        return await asyncio.to_thread(work)

    async def measure_gain(self, job, displacement):
        self.measured.append((job, displacement))
        return self.result


class FakeLocator:
    """The leader's shelf, and what happens before a blob comes from it."""

    def __init__(self):
        self.shelf = {}
        self.asked = []
        self.before = asyncio.sleep

    async def fetch_from(self, sources, wanted, on_fault):
        self.asked.append((sources, wanted))
        await self.before(0)
        ((name, length),) = wanted
        if name not in self.shelf:
            raise TransientError("nobody has it")
        assert len(self.shelf[name]) == length
        return sources[0], [memoryview(self.shelf[name])]


class Scene:
    def __init__(self):
        self.trainer, self.locator = FakeTrainer(), FakeLocator()
        self.faults = []
        self.port = ProbePort(
            self.locator,
            self.trainer,
            lambda peer, error: self.faults.append((peer, error.reason)),
        )

    def job(self, payload, **changes):
        self.locator.shelf[digest(payload)] = bytes(payload)
        usual = {
            "leader": SYNCER.key,
            "fragment": 1,
            "codec": "f32",
            "payload": digest(payload),
            "payload_bytes": len(payload),
            "own": PLACES,
            "other": PLACES,
        }
        return ProbePush(**{**usual, **changes})

    def run(self, payload, **changes):
        return asyncio.run(self.port.run_job(self.job(payload, **changes)))


@pytest.fixture
def scene():
    return Scene()


def sound(codec="f32"):
    return encode(codec, np.linspace(-1.0, 1.0, NUMEL, dtype=np.float32))


def test_a_payload_is_fetched_from_the_leader_decoded_and_measured(scene):
    payload = sound()
    assert scene.run(payload) == PushProbed(OWN, OTHER, 0.5)
    assert scene.locator.asked == [([SYNCER.key], [(digest(payload), len(payload))])]
    ((job, displacement),) = scene.trainer.measured
    assert job.fragment == 1
    np.testing.assert_array_equal(displacement, np.linspace(-1.0, 1.0, NUMEL, dtype=np.float32))
    assert scene.faults == []


def test_text_that_differs_is_said_before_anything_is_fetched(scene):
    scene.trainer.has_signed_text = False
    assert scene.run(sound()).trouble == "other text"
    assert scene.locator.asked == []


def test_a_payload_that_does_not_come_is_said(scene):
    job = scene.job(sound())
    scene.locator.shelf = {}
    told = asyncio.run(scene.port.run_job(job))
    assert told == NotProbed("no payload", "nobody has it")
    assert (scene.faults, scene.trainer.measured) == ([], [])


def test_another_size_than_the_codec_has_is_not_fetched(scene):
    told = scene.run(sound(), payload_bytes=payload_bytes("f32", NUMEL) + 4)
    assert told.trouble == "no payload"
    assert scene.locator.asked == []
    assert scene.faults == [(SYNCER.key, MalformedPayload.reason)]


def test_a_payload_of_numbers_that_are_none_is_blamed_on_the_leader(scene):
    values = np.zeros(NUMEL, np.float32)
    values[3] = np.nan
    told = scene.run(values.tobytes())
    assert told.trouble == "no payload"
    assert scene.faults == [(SYNCER.key, MalformedPayload.reason)]
    assert scene.trainer.measured == []


def test_a_leader_that_stalls_is_not_waited_for(scene, monkeypatch):
    monkeypatch.setattr(probe_port, "FETCH_S_MAX", 0.0)
    scene.locator.before = lambda _: asyncio.Event().wait()
    told = scene.run(sound())
    assert told.trouble == "no payload"
    assert "did not come within" in told.detail


def test_what_nobody_waits_for_is_not_fetched_further(scene):
    ended = []

    async def stall(_):
        scene.port.forget()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    scene.locator.before = stall
    told = scene.run(sound())
    assert "nobody waits" in told.detail
    assert (ended, scene.trainer.measured) == ([True], [])
    scene.locator.before = asyncio.sleep
    assert scene.run(sound()) == PushProbed(OWN, OTHER, 0.5)


@pytest.mark.parametrize(
    ("result", "trouble"),
    [
        (None, "failed"),
        (GainMeasured(1, None, None, 0.1, "paused"), "paused"),
        (GainMeasured(1, None, None, 0.1, "no memory"), "no memory"),
        (GainMeasured(1, None, None, 0.1, "other text"), "other text"),
        (GainMeasured(1, None, None, 0.1, "not finite"), "failed"),
    ],
)
def test_what_keeps_a_trainer_from_measuring_is_said(scene, result, trouble):
    scene.trainer.result = result
    assert scene.run(sound()).trouble == trouble


def test_a_push_is_subtracted_from_the_newest_value_of_its_fragment():
    bank = FragmentBank(LAYOUT, BlobStore(clock=lambda: 0.0))
    displacement = np.full(NUMEL, 0.25, np.float32)
    with pytest.raises(CorruptState):
        bank.pushed(1, displacement)
    for fragment in LAYOUT.fragments:
        theta = theta_of(fragment)
        momentum = np.zeros_like(theta)
        state = state_manifests(theta, momentum).digests
        bank.install(fragment.index, 5, state, theta, momentum)
    *values, changed = bank.pushed(1, displacement)
    for fragment, theta in zip(LAYOUT.fragments, values, strict=True):
        np.testing.assert_array_equal(theta, theta_of(fragment))
    np.testing.assert_array_equal(changed, theta_of(LAYOUT.fragments[1]) - displacement)
    *_, ruined = bank.pushed(1, np.full(NUMEL, -3e38, np.float32) * np.float32(1.1))
    assert ruined.shape == changed.shape
