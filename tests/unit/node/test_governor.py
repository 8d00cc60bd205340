"""When this machine trains: each rule, how it ends, and that nothing flaps."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from host.files.local_settings import (
    LearnerSettings,
    LimitSettings,
    PresentSettings,
    Settings,
    WhenSettings,
)
from node.governor.governor import (
    CALM_S,
    Governor,
    Reading,
    Ruling,
    device_wanted,
    mode_of,
    rules_of,
)

QUIET = Reading(weekday=0, minute=720)
GIB = 2**30
NO_LESS = PresentSettings()
LESS = PresentSettings(cpu_percent=10.0)


def rules(*, room=0, present=NO_LESS, **when):
    """Of a learner on a machine whose owner decided this."""
    limits = LimitSettings(ram_free_bytes_min=room)
    settings = Settings(when=WhenSettings(**when), limits=limits, present=present)
    return rules_of(settings, "")


def test_a_machine_that_nobody_disturbs_trains_as_its_owner_allows():
    assert Governor(rules()).look(QUIET, 0.0) == Ruling("full")
    assert Governor(rules(present=LESS)).look(QUIET, 0.0) == Ruling("full")


@pytest.mark.parametrize(
    ("ruled", "reading", "says"),
    [
        (rules(mode="never"), QUIET, "this machine is set to never train"),
        (rules(hours=("mon 22:00-06:00",)), QUIET, "outside its hours, until 22:00"),
        (rules(), replace(QUIET, on_battery=True), "it runs on battery"),
        (rules(busy_programs=("zoom",)), replace(QUIET, apps=frozenset({"zoom"})), "zoom runs"),
        (
            rules(temperature_c_max=85.0),
            replace(QUIET, temperature_c=91.2, hottest="cuda:0"),
            "cuda:0 is at 91 °C, above 85",
        ),
        (
            rules(room=2 * GIB),
            replace(QUIET, memory_free_bytes=GIB),
            "1.0 GiB of memory are free, below 2.0",
        ),
        (rules(mode="idle"), replace(QUIET, owner_idle_s=12.0), "somebody used it 12 s ago"),
        (rules(mode="idle", input_unknown="present"), QUIET, "the system cannot tell"),
    ],
)
def test_each_rule_pauses_at_once_and_says_why(ruled, reading, says):
    ruling = Governor(ruled).look(reading, 0.0)
    assert ruling.is_paused
    assert says in ruling.because


@pytest.mark.parametrize(
    "ruled",
    [
        rules(on_battery="train"),
        rules(busy_programs=("zoom",)),
        rules(mode="idle"),
        rules(temperature_c_max=85.0, room=GIB),
    ],
)
def test_what_cannot_be_read_is_not_in_the_way(ruled):
    assert not Governor(ruled).look(replace(QUIET, on_battery=None), 0.0).is_paused


def test_it_goes_on_only_after_calm():
    governor, plugged = Governor(rules()), replace(QUIET, on_battery=False)
    assert governor.look(replace(QUIET, on_battery=True), 100.0).is_paused
    waiting = governor.look(plugged, 110.0)
    assert waiting.is_paused
    assert "resumes in 20 s" in waiting.because
    assert not governor.look(plugged, 100.0 + CALM_S).is_paused


def test_a_hot_device_must_cool_well_below_its_ceiling():
    governor = Governor(rules(temperature_c_max=85.0))
    warm = replace(QUIET, temperature_c=80.0)
    assert not governor.look(warm, 0.0).is_paused
    assert governor.look(replace(QUIET, temperature_c=86.0), 1.0).is_paused
    assert governor.look(warm, 1.0 + 2 * CALM_S).is_paused  # within the margin: it still counts
    assert not governor.look(replace(QUIET, temperature_c=76.0), 1.0 + 3.1 * CALM_S).is_paused


def test_a_schedule_and_an_idle_owner_end_without_waiting():
    nights = Governor(rules(hours=("22:00-06:00",)))
    assert nights.look(replace(QUIET, minute=22 * 60 - 1), 0.0).is_paused
    assert not nights.look(replace(QUIET, minute=22 * 60), 60.0).is_paused
    idle = Governor(rules(mode="idle", owner_idle_s=60.0))
    assert idle.look(replace(QUIET, owner_idle_s=59.0), 0.0).is_paused
    assert not idle.look(replace(QUIET, owner_idle_s=60.0), 1.0).is_paused


def test_beside_its_owner_it_may_train_a_little():
    governor = Governor(rules(present=LESS))
    ruling = governor.look(replace(QUIET, owner_idle_s=3.0), 0.0)
    assert (ruling.share, ruling.is_paused) == ("beside", False)
    assert ruling.because == "somebody used it 3 s ago"
    assert governor.look(replace(QUIET, owner_idle_s=float("inf")), 1.0) == Ruling("full")
    assert Governor(rules()).look(replace(QUIET, owner_idle_s=3.0), 0.0) == Ruling("full")


def test_several_causes_are_all_named_and_new_rules_count_at_once():
    governor = Governor(rules(busy_programs=("steam",)))
    bad = replace(QUIET, on_battery=True, apps=frozenset({"steam"}))
    assert governor.look(bad, 0.0).because == "it runs on battery and steam runs"
    governor.change(rules(on_battery="train"))
    assert not governor.look(replace(bad, apps=frozenset()), 1.0).is_paused


def test_rules_come_from_settings():
    when = WhenSettings(mode="idle", devices={"cpu": "never"})
    ruled = rules_of(Settings(when=when, limits=LimitSettings(ram_free_bytes_min=GIB)), "cpu")
    assert (ruled.when, ruled.mode, ruled.device) == (when, "never", "cpu")
    assert ruled.memory_free_bytes_min == GIB
    assert not ruled.has_less_beside
    assert rules(present=LESS).has_less_beside
    assert rules_of(Settings(), "") == rules_of(Settings(), "")


@pytest.mark.parametrize(
    ("device", "mode", "named"),
    [
        ("cuda:1", "never", "cuda:1"),
        ("cuda", "idle", "gpu"),
        ("xpu:0", "idle", "gpu"),
        ("cpu", "always", "cpu"),
        ("", "never", "this machine"),
    ],
)
def test_a_device_may_have_a_mode_of_its_own(device, mode, named):
    devices = {"cpu": "always", "gpu": "idle", "cuda:1": "never"}
    settings = Settings(when=WhenSettings(mode="never", devices=devices))
    assert mode_of(settings, device) == (mode, named)


def test_the_processor_trains_where_accelerators_never_may():
    barred = WhenSettings(devices={"gpu": "never"})
    assert device_wanted(Settings()) is None
    assert device_wanted(Settings(when=barred)) == "cpu"
    assert device_wanted(Settings(when=barred, learner=LearnerSettings(device="cuda"))) == "cuda"
    ruling = Governor(rules_of(Settings(when=barred), "cuda")).look(QUIET, 0.0)
    assert ruling.because == "gpu is set to never train"


readings = st.builds(
    Reading,
    weekday=st.integers(0, 6),
    minute=st.integers(0, 1439),
    on_battery=st.sampled_from([None, False, True]),
    owner_idle_s=st.none() | st.floats(0, 1e5),
    temperature_c=st.none() | st.floats(-20, 120),
    apps=st.sets(st.sampled_from(["a", "b"])).map(frozenset),
    memory_free_bytes=st.none() | st.integers(0, 8 * GIB),
)
RULES = rules(
    mode="idle",
    hours=("mon-wed 20:00-08:00",),
    temperature_c_max=80.0,
    busy_programs=("a", "b"),
    room=GIB,
)


@given(seen=st.lists(st.tuples(readings, st.floats(0, 20)), max_size=40))
def test_it_never_exceeds_what_is_allowed_always_says_why_and_never_flaps(seen):
    governor, now_s, cause_s = Governor(RULES), 0.0, -1e9
    for reading, after_s in seen:
        now_s += after_s
        ruling = governor.look(reading, now_s)
        assert ruling.share in ("full", "none")
        assert bool(ruling.reasons) == ruling.is_paused
        hot = reading.temperature_c is not None and reading.temperature_c > 80.0
        short = reading.memory_free_bytes is not None and reading.memory_free_bytes < GIB
        if reading.on_battery or hot or short or reading.apps:
            cause_s = now_s
        if now_s - cause_s < CALM_S:
            assert ruling.is_paused
