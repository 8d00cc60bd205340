from __future__ import annotations

import pytest

from host.files.local_settings import Settings, WhenSettings
from node.governor.governor import mode_of
from node.trainer.devices import device_of, in_words, named_devices, ranks_wanted
from protocol.errors import UserError


def test_devices_are_named_with_commas_between():
    assert named_devices(None) == ()
    assert named_devices("cpu") == ("cpu",)
    assert named_devices("cuda:0, cuda:2") == ("cuda:0", "cuda:2")


@pytest.mark.parametrize("device", ["", "cuda:", "cuda:0,", "cuda:0,cuda:0", "cuda,cuda:1", "a b"])
def test_what_names_no_devices_is_refused(device):
    with pytest.raises(UserError):
        named_devices(device)


@pytest.mark.parametrize(
    ("device", "ranks", "wanted"),
    [
        (None, None, 1),
        ("cuda:1", None, 1),
        ("cuda:0,cuda:1", None, 2),
        ("cuda:0,cuda:1", 2, 2),
        ("cpu", 3, 3),
        (None, 4, 4),
    ],
)
def test_there_are_as_many_ranks_as_devices(device, ranks, wanted):
    assert ranks_wanted(device, ranks) == wanted


@pytest.mark.parametrize(
    ("device", "ranks"), [("cuda:0,cuda:1", 3), ("cuda:1", 2), ("mps", 2), ("xla", 8)]
)
def test_ranks_that_devices_do_not_allow_are_refused(device, ranks):
    with pytest.raises(UserError):
        ranks_wanted(device, ranks)


def test_one_device_shares_the_model_with_nobody():
    assert ranks_wanted("cuda:0,cuda:1", None, is_sharded=True) == 2
    for device, ranks in ((None, None), ("cuda:1", None), ("cpu", 1)):
        with pytest.raises(UserError, match=r"learner\.sharded"):
            ranks_wanted(device, ranks, is_sharded=True)


def test_every_rank_has_a_device_of_its_own():
    assert [device_of(at, 2, "cuda:0,cuda:2", "cuda") for at in range(2)] == ["cuda:0", "cuda:2"]
    assert [device_of(at, 2, None, "cuda") for at in range(2)] == ["cuda:0", "cuda:1"]
    assert [device_of(at, 2, None, "cpu") for at in range(2)] == ["cpu", "cpu"]
    assert device_of(0, 1, None, "cuda") is None
    assert device_of(0, 1, "cuda:3", "cuda") == "cuda:3"
    with pytest.raises(UserError, match="only one process"):
        device_of(1, 2, None, "mps")


def test_the_devices_of_all_ranks_are_told_as_one():
    assert in_words(("cuda:0", "cuda:1")) == "cuda:0,cuda:1"
    assert in_words(("cpu", "cpu")) == "cpu"


def test_of_several_devices_the_strictest_mode_counts():
    settings = Settings(when=WhenSettings(devices={"cuda:1": "idle", "cuda:2": "never"}))
    assert mode_of(settings, "cuda:0") == ("always", "this machine")
    assert mode_of(settings, "cuda:0,cuda:1") == ("idle", "cuda:1")
    assert mode_of(settings, "cuda:2,cuda:1") == ("never", "cuda:2")
