"""What follows from settings and one look at the machine: whether, how much, how large."""

from __future__ import annotations

import pytest

from host.files.local_settings import LimitSettings, PresentSettings, Settings, WhenSettings
from node.governor.governor import Reading
from node.governor.policy import SETTLE_S, Policy, TrainerFacts
from node.governor.process_usage import Own
from node.governor.sensors import Look

GIB = 2**30
TRAINING = TrainerFacts(device="cpu", pid=5, micro_batch=4, is_stepping=True)


def look(at_s=0.0, *, memory=0, idle_s=None, battery=None):
    return Look(
        reading=Reading(weekday=0, minute=720, owner_idle_s=idle_s, on_battery=battery),
        devices=(),
        own=Own(cpu_s=0.0, trainer_cpu_s=0.0, memory_bytes=memory),
        at_s=at_s,
        absent=(),
        owner="terminals",
    )


def of(**limits):
    return Policy(Settings(limits=LimitSettings(**limits)), cores=4)


def test_without_settings_it_trains_with_all_there_is():
    decision = of().decide(look(), TRAINING, 0)
    assert (decision.ruling.share, decision.duty_frac, decision.wants_smaller) == ("full", 1.0, "")
    assert not of().wants_owner


def test_at_its_memory_ceiling_it_is_made_smaller_once_and_given_time_and_paused_at_last():
    one = of(ram_bytes_max=2 * GIB)
    assert one.decide(look(0.0, memory=GIB), TRAINING, 0).wants_smaller == ""
    asked = one.decide(look(1.0, memory=2 * GIB - 1), TRAINING, 0)
    assert "it takes 2.00 GiB of memory and limits.ram_bytes_max is 2.00 GiB" in asked.wants_smaller
    assert not asked.ruling.is_paused
    assert one.decide(look(2.0, memory=2 * GIB), TRAINING, 0).wants_smaller == ""
    again = one.decide(look(1.0 + SETTLE_S, memory=2 * GIB), TRAINING, 0)
    assert again.wants_smaller
    least = TrainerFacts(device="cpu", pid=5, micro_batch=1, is_stepping=True)
    last = one.decide(look(2.0 + 2 * SETTLE_S, memory=2 * GIB), least, 0)
    assert last.ruling.is_paused
    assert "limits.ram_bytes_max is 2.00 GiB, where 2.11 GiB would be enough" in last.ruling.because
    resting = TrainerFacts(device="cpu")
    assert one.decide(look(60.0, memory=GIB), resting, 0).ruling.is_paused  # Or it would flap.
    one.change(Settings(limits=LimitSettings(ram_bytes_max=4 * GIB)))
    assert not one.decide(look(61.0, memory=GIB), resting, 0).ruling.is_paused


def test_files_above_their_ceiling_pause_it_until_there_is_room():
    one = of(disk_bytes_max=GIB)
    full = one.decide(look(0.0), TRAINING, 2 * GIB)
    assert full.ruling.because == "its files take 2.00 GiB and limits.disk_bytes_max is 1.00 GiB"
    assert not one.decide(look(1.0), TRAINING, GIB).ruling.is_paused


def test_every_reason_is_told():
    one = of(disk_bytes_max=GIB)
    both = one.decide(look(battery=True), TRAINING, 2 * GIB).ruling.because
    assert both.startswith("it runs on battery and its files take")


def test_a_device_counts_from_the_moment_it_is_known():
    settings = Settings(
        limits=LimitSettings(gpu_percent=50.0),
        when=WhenSettings(devices={"gpu": "idle"}),
        present=PresentSettings(cpu_percent=10.0),
    )
    one = Policy(settings, cores=4)
    assert one.decide(look(idle_s=1.0), TRAINING, 0).ruling.share == "beside"
    assert one.wants_owner
    on_gpu = TrainerFacts(device="cuda", pid=5, micro_batch=4, is_stepping=True)
    assert one.decide(look(1.0, idle_s=1.0), on_gpu, 0).ruling.is_paused
    assert one.decide(look(2.0, idle_s=1e9), on_gpu, 0).duty_frac == pytest.approx(0.5)
