"""When this machine trains: each rule, how it ends, and that nothing flaps."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.politeness.governor import CALM_S, Governor, Reading, Rules, Ruling, strictest
from node.politeness.schedule import Schedule

QUIET = Reading(weekday=0, minute=720)
GIB = 2**30


def test_a_machine_that_nobody_disturbs_trains_as_its_owner_allows():
    assert Governor(Rules()).look(QUIET, 0.0) == Ruling(1.0, ())
    assert Governor(Rules(duty_frac=0.4)).look(QUIET, 0.0) == Ruling(0.4, ())


@pytest.mark.parametrize(
    ("rules", "reading", "says"),
    [
        (Rules(mode="never"), QUIET, "this machine is set to never train"),
        (Rules(schedule=Schedule(["mon 22:00-06:00"])), QUIET, "outside its hours, until 22:00"),
        (Rules(), replace(QUIET, on_battery=True), "it runs on battery"),
        (Rules(apps=("zoom",)), replace(QUIET, apps=frozenset({"zoom"})), "zoom runs"),
        (
            Rules(temperature_c_max=85.0),
            replace(QUIET, temperature_c=91.2, hottest="cuda:0"),
            "cuda:0 is at 91 °C, above 85",
        ),
        (
            Rules(memory_free_bytes_min=2 * GIB),
            replace(QUIET, memory_free_bytes=GIB),
            "1.0 GiB of memory are free, below 2.0",
        ),
        (Rules(mode="idle"), replace(QUIET, owner_idle_s=12.0), "somebody used it 12 s ago"),
        (Rules(mode="idle", unknown_owner="present"), QUIET, "the system cannot tell"),
    ],
)
def test_each_rule_pauses_at_once_and_says_why(rules, reading, says):
    ruling = Governor(rules).look(reading, 0.0)
    assert ruling.is_paused
    assert says in ruling.because


@pytest.mark.parametrize(
    "rules",
    [
        Rules(trains_on_battery=True),
        Rules(apps=("zoom",)),
        Rules(mode="idle"),
        Rules(temperature_c_max=85.0, memory_free_bytes_min=GIB),
    ],
)
def test_what_cannot_be_read_is_not_in_the_way(rules):
    assert not Governor(rules).look(replace(QUIET, on_battery=None), 0.0).is_paused


def test_it_goes_on_only_after_calm():
    governor, plugged = Governor(Rules()), replace(QUIET, on_battery=False)
    assert governor.look(replace(QUIET, on_battery=True), 100.0).is_paused
    waiting = governor.look(plugged, 110.0)
    assert waiting.is_paused
    assert "goes on 20 s from now" in waiting.because
    assert not governor.look(plugged, 100.0 + CALM_S).is_paused


def test_a_hot_device_must_cool_well_below_its_ceiling():
    governor = Governor(Rules(temperature_c_max=85.0))
    warm = replace(QUIET, temperature_c=80.0)
    assert not governor.look(warm, 0.0).is_paused
    assert governor.look(replace(QUIET, temperature_c=86.0), 1.0).is_paused
    assert governor.look(warm, 1.0 + 2 * CALM_S).is_paused  # within the margin: it still counts
    assert not governor.look(replace(QUIET, temperature_c=76.0), 1.0 + 3.1 * CALM_S).is_paused


def test_a_schedule_and_an_idle_owner_end_without_waiting():
    nights = Governor(Rules(schedule=Schedule(["22:00-06:00"])))
    assert nights.look(replace(QUIET, minute=22 * 60 - 1), 0.0).is_paused
    assert not nights.look(replace(QUIET, minute=22 * 60), 60.0).is_paused
    idle = Governor(Rules(mode="idle", idle_after_s=60.0))
    assert idle.look(replace(QUIET, owner_idle_s=59.0), 0.0).is_paused
    assert not idle.look(replace(QUIET, owner_idle_s=60.0), 1.0).is_paused


def test_beside_its_owner_it_may_train_a_little():
    governor = Governor(Rules(mode="idle", busy_duty_frac=0.25, duty_frac=0.8))
    ruling = governor.look(replace(QUIET, owner_idle_s=3.0), 0.0)
    assert (ruling.duty_frac, ruling.is_paused) == (0.25, False)
    assert ruling.because == "somebody used it 3 s ago"
    assert governor.look(replace(QUIET, owner_idle_s=float("inf")), 1.0) == Ruling(0.8, ())


def test_several_causes_are_all_named_and_new_rules_count_at_once():
    governor = Governor(Rules(apps=("steam",)))
    bad = replace(QUIET, on_battery=True, apps=frozenset({"steam"}))
    assert governor.look(bad, 0.0).because == "it runs on battery and steam runs"
    governor.change(Rules(trains_on_battery=True))
    assert not governor.look(replace(bad, apps=frozenset()), 1.0).is_paused


def test_a_learner_on_several_devices_goes_by_the_strictest():
    ruling = strictest(
        {"cuda:0": Ruling(0.5, ("a",)), "cuda:1": Ruling(0.0, ("b", "a")), "cpu": Ruling(1.0, ())}
    )
    assert ruling == Ruling(0.0, ("a", "b"))


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
RULES = Rules(
    mode="idle",
    schedule=Schedule(["mon-wed 20:00-08:00"]),
    duty_frac=0.7,
    busy_duty_frac=0.2,
    temperature_c_max=80.0,
    apps=("a", "b"),
    memory_free_bytes_min=GIB,
)


@given(seen=st.lists(st.tuples(readings, st.floats(0, 20)), max_size=40))
def test_it_never_exceeds_what_is_allowed_always_says_why_and_never_flaps(seen):
    governor, now_s, cause_s = Governor(RULES), 0.0, -1e9
    for reading, after_s in seen:
        now_s += after_s
        ruling = governor.look(reading, now_s)
        assert 0.0 <= ruling.duty_frac <= RULES.duty_frac
        assert bool(ruling.reasons) == (ruling.duty_frac < RULES.duty_frac)
        hot = reading.temperature_c is not None and reading.temperature_c > 80.0
        short = reading.memory_free_bytes is not None and reading.memory_free_bytes < GIB
        if reading.on_battery or hot or short or reading.apps:
            cause_s = now_s
        if now_s - cause_s < CALM_S:
            assert ruling.is_paused
