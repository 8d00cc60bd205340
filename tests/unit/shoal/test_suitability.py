"""Before joining: when a machine is tried, and what keeps it from a project."""

from __future__ import annotations

import msgspec
import pytest

from host.files.home import Home
from host.files.local_settings import LimitSettings, Settings
from node.trainer.tools.trial_facts import TrialAnswer
from shoal.doctor import probes, requirements, suitability
from shoal.doctor.diagnosis import GIB
from shoal.doctor.requirements import Needs
from tests.support.builders import project

SMALL = Needs(
    parameters=1_000_000,
    step_tokens=512,
    local_steps=16,
    payload_bytes_up=500_000,
    payload_bytes_down=500_000,
    fragment_bytes_max=100_000,
    pull_timeout_s=30.0,
    token_budget=10**9,
)
LARGE = msgspec.structs.replace(
    SMALL, parameters=1_000_000_000, step_tokens=1 << 17, local_steps=100
)
ID = bytes(32)


@pytest.mark.parametrize(
    ("needs", "available", "most", "is_tried"),
    [
        (SMALL, 8 * GIB, 8 * GIB, False),
        (LARGE, 64 * GIB, 64 * GIB, True),
        (LARGE, 4 * GIB, 4 * GIB, False),
        (SMALL, 10 << 20, 24 * GIB, True),
    ],
    ids=["nobody is too slow", "may be too slow", "fits nowhere", "an accelerator may hold it"],
)
def test_a_trial_is_made_where_it_could_change_the_verdict(needs, available, most, is_tried):
    assert suitability.wants_trial(needs, available, most) is is_tried


@pytest.fixture
def home(tmp_path):
    return Home(tmp_path)


@pytest.fixture
def trial(monkeypatch):
    """The answer of the only trial, and how often it was made."""
    told = {"answer": TrialAnswer(device="cpu", tokens_per_s=1e4, memory_bytes=1 << 20), "made": 0}

    def make(wish):
        told["made"] += 1
        return told["answer"]

    monkeypatch.setattr(probes, "try_training", make)
    return told


def judged(home, settings=None):
    judge = suitability.judge_of(home, ID, settings or Settings())
    tiny = project()
    return None if judge is None else judge(tiny.genesis, tiny.charter)


def test_a_machine_that_suits_is_not_asked_again(home, trial):
    assert judged(home) == ""
    assert trial["made"] == 0
    assert judged(home) is None
    other = Settings(learner=msgspec.structs.replace(Settings().learner, device="cuda:1"))
    assert judged(home, other) == ""


@pytest.mark.parametrize(
    ("learner", "room"),
    [
        ({"sharded": True, "ranks": 4}, 96 * GIB),
        ({"sharded": True, "device": "cuda:0,cuda:1"}, 48 * GIB),
        ({"sharded": True, "ranks": 4, "device": "cpu"}, None),
        ({"ranks": 4}, None),
    ],
)
def test_accelerators_that_hold_a_model_together_have_their_room_together(
    monkeypatch, learner, room
):
    monkeypatch.setattr(probes, "most_memory", lambda available: 24 * GIB)
    changed = msgspec.structs.replace(Settings().learner, **learner)
    found = suitability.devices_together(Settings(learner=changed))
    assert (found and found.device_bytes) == room
    if room is not None:
        # 16 GB of weights, gradients and moments, and 12 GB beside them in the daemon.
        assert requirements.fit(found, LARGE, 16 * GIB).verdict == "good"
        assert requirements.fit(found, LARGE, 8 * GIB).verdict == "trouble"


def test_a_model_that_does_not_fit_is_said_with_what_to_do(home, trial):
    said = judged(home, Settings(limits=LimitSettings(ram_bytes_max=1000)))
    assert said.startswith("This machine does not suit tiny: ")
    assert "do not fit" in said
    assert "--anyway" in said
    assert judged(home) is not None, "it is judged again"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (TrialAnswer(device="cpu", tokens_per_s=0.001), "too slow for this project"),
        (TrialAnswer(device="cuda", is_out_of_memory=True), "do not fit"),
        (TrialAnswer(trouble="it did not finish within 60 s"), ""),
    ],
)
def test_what_a_trial_found_decides(home, trial, monkeypatch, answer, said):
    monkeypatch.setattr(suitability, "SLOWEST_FLOPS", 1e-9)
    trial["answer"] = answer
    found = judged(home)
    assert trial["made"] == 1
    assert (said in found) if said else found == ""


def test_an_uplink_that_cannot_carry_one_push_in_time_is_too_slow(home, trial, monkeypatch):
    real = requirements.needs_of
    monkeypatch.setattr(
        requirements,
        "needs_of",
        lambda *of: msgspec.structs.replace(real(*of), fragment_bytes_max=10**9),
    )
    assert "limits.up_bytes_per_s allows" in judged(
        home, Settings(limits=LimitSettings(up_bytes_per_s=1 << 20))
    )
