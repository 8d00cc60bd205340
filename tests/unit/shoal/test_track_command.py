"""The curves that a tracker gets, and the files that TensorBoard reads."""

from __future__ import annotations

import sys

import msgspec
import pytest

from protocol.errors import UserError
from protocol.status import MergeRow, PeerRow, SyncerStatus
from shoal.machine import track_command, trackers
from shoal.machine.curves import LEARNERS_MAX, Curves, Point
from tests.support import recordings


def at(step: int, **changes) -> SyncerStatus:
    """The syncer once so many merges are committed."""
    base = recordings.syncer(step, [])
    swarm = msgspec.structs.replace(
        base.swarm, global_step=step, tokens=1000 * step, curve=changes.pop("curve", [])
    )
    merges = [
        MergeRow(global_step=one, fragment=0, participants=2, mean_steps=8.0, seconds=0.5)
        for one in range(max(1, step - 3), step + 1)
    ]
    return msgspec.structs.replace(
        base, swarm=swarm, merges=merges, peers=changes.pop("peers", []), **changes
    )


def steps_of(points: list[Point], name: str) -> list[int]:
    return [point.step for point in points if name in point.values]


def test_each_merge_is_told_once_however_often_somebody_looks():
    curves = Curves()
    told = [*curves.news(at(2), 0.0), *curves.news(at(2), 1.0), *curves.news(at(4), 2.0)]
    assert steps_of(told, "merge/pushes") == [1, 2, 3, 4]
    assert steps_of(told, "swarm/tokens") == [2, 4]


def test_a_measurement_is_told_at_the_step_that_it_is_of_and_again_when_it_changes():
    curves = Curves()
    first = curves.news(at(5, curve=[(2, 2000, 3.5)]), 0.0)
    assert steps_of(first, "heldout/loss") == [2]
    same = curves.news(at(6, curve=[(2, 2000, 3.5)]), 1.0)
    assert steps_of(same, "heldout/loss") == []
    # The second learner's word is higher, and counts.
    (changed, *_) = curves.news(at(6, curve=[(2, 2000, 3.6)]), 2.0)
    assert changed.values["heldout/loss"] == 3.6


def test_speed_is_told_once_it_can_be():
    curves = Curves()
    (*_, early) = curves.news(at(1), 0.0)
    (*_, later) = curves.news(at(21), 10.0)
    assert "swarm/tokens_per_s" not in early.values
    assert later.values["swarm/tokens_per_s"] == 2000.0


def test_a_run_that_went_back_is_told_from_there():
    curves = Curves()
    curves.news(at(9), 0.0)
    assert steps_of(curves.news(at(3), 1.0), "merge/pushes") == [1, 2, 3]


def test_learners_are_called_by_name_and_key_and_only_so_many():
    def peer(number: int) -> PeerRow:
        return PeerRow(
            key=f"{number:08x}" + 56 * "0",
            name="my/box\x1b[2J",
            device="cpu",
            state="training",
            heard_s=0.1,
            tokens_per_s=5.0,
            loss=2.5,
            merges=number,
        )

    (*_, now) = Curves().news(at(1, peers=[peer(one) for one in range(LEARNERS_MAX + 9)]), 0.0)
    losses = [name for name in now.values if name.endswith("/loss")]
    assert len(losses) == LEARNERS_MAX
    assert losses[0] == f"learner/my-box--2J-{LEARNERS_MAX + 8:08x}/loss"
    assert now.values["swarm/learners"] == LEARNERS_MAX + 9


class Enough(Exception):
    """The test has seen what it wanted."""


def test_tensorboard_reads_what_was_followed(tmp_path, capsys):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    looks = iter([None, at(2, curve=[(0, 0, 5.5)]), at(4, curve=[(0, 0, 5.5), (3, 3000, 4.5)])])

    def wait() -> None:
        nonlocal left
        left -= 1
        if not left:
            raise Enough

    left = 3
    with pytest.raises(Enough):
        track_command.follow(lambda: next(looks), "tensorboard", tmp_path, wait)
    (run,) = tmp_path.iterdir()
    events = accumulator.EventAccumulator(str(run))
    events.Reload()
    assert [(one.step, one.value) for one in events.Scalars("heldout/loss")] == [(0, 5.5), (3, 4.5)]
    assert [one.step for one in events.Scalars("merge/pushes")] == [1, 2, 3, 4]
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "no syncer or learner answers here yet; still looking"
    assert said[1].startswith(f"tracking {at(1).project.name} with tensorboard: run {run.name}")


def test_a_tracker_that_is_not_installed_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UserError, match="wandb is not installed"):
        trackers.begin("wandb", "p", "r", tmp_path)
