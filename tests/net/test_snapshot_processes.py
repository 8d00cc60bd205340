"""Real processes on loopback: a snapshot while a learner is killed, and going back to it."""

from __future__ import annotations

import io
import re
from contextlib import redirect_stdout
from dataclasses import dataclass
from typing import Any

import pytest

from shoal.project import snapshot_command, undo_command
from tests.net.swarms import TinySwarm

pytestmark = [pytest.mark.net, pytest.mark.timeout(1200)]

LEARNERS = ("ada", "bob", "cid")
VICTIM = "cid"


@dataclass
class Seen:
    """What was seen on the way."""

    told: str = ""
    """What `shoal syncer snapshot` printed."""
    cut: Any = None
    """The syncer's row of the snapshot."""
    before: Any = None
    """The syncer when the swarm had gone on."""
    restored: str = ""
    """What `shoal project undo` printed: it goes back as `restore-snapshot` does."""
    back: Any = None
    """The syncer just after."""
    after: Any = None
    """... and when it had merged on."""
    learners: Any = None
    joined: Any = None
    outputs: Any = None


def printed(call):
    out = io.StringIO()
    with redirect_stdout(out):
        code = call()
    assert code == 0, out.getvalue()
    return out.getvalue()


def training(swarm, names):
    def look():
        rows = [swarm.learner(name) for name in names]
        return rows if all(row and row.merged > 2 for row in rows) else None

    return swarm.until(look, f"{names} in merges")


def past(swarm, step, *, points=0):
    """The syncer, once it is past this global step with so many measured losses."""

    def look():
        now = swarm.syncer()
        is_far = now is not None and now.swarm.global_step > step
        return now if is_far and len(now.swarm.curve) >= points else None

    return swarm.until(look, f"global step {step}")


def go_through_it(seen, swarm):
    swarm.prepare(limits__evaluate_every=8)
    swarm.begin()
    for name in LEARNERS:
        swarm.start_learner(name, "--duty", "0.5")
    training(swarm, LEARNERS)
    past(swarm, 30, points=3)

    swarm.kill(VICTIM)  # What is lost with it shows while the snapshot is being taken.
    seen.told = printed(lambda: snapshot_command.take(swarm.home, instance="default"))
    seen.cut = swarm.syncer().snapshots.kept[-1]
    seen.before = past(swarm, seen.cut.global_step + 30, points=5)

    seen.restored = printed(
        lambda: undo_command.undo(swarm.project, since="1s", yes=True, home=swarm.home)
    )
    seen.back = swarm.syncer()
    swarm.start_learner(VICTIM, "--duty", "0.5")
    seen.joined = training(swarm, (VICTIM,))[0]
    length = len(seen.back.swarm.curve)
    seen.after = past(swarm, seen.back.swarm.global_step + 30, points=length + 2)
    seen.learners = {name: swarm.learner(name) for name in LEARNERS}
    seen.outputs = swarm.outputs()


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    seen = Seen()
    with TinySwarm(tmp_path_factory.mktemp("snapshot")) as swarm:
        go_through_it(seen, swarm)
        yield seen


def test_the_snapshot_has_the_living_and_names_the_dead(seen):
    assert sorted(seen.cut.parts) == ["ada", "bob"]
    assert list(seen.cut.skipped) == [VICTIM]
    assert f"not in: {VICTIM}: " in seen.told


def test_going_back_says_who_went_on_from_what(seen):
    lost = re.search(r"lost: (\d+) global steps and [\d,]+ tokens", seen.restored)
    assert lost is not None, seen.restored
    assert int(lost[1]) >= 30
    assert "epoch 1 begins at snapshot" in seen.restored
    for name in ("ada", "bob"):
        assert f"{name}: continues from its part, at local step" in seen.restored
    assert seen.back.snapshots.restored == seen.cut.name
    assert {row.name: row.is_restored for row in seen.back.snapshots.restores} == {
        "ada": True,
        "bob": True,
    }


def test_what_came_after_the_snapshot_is_void(seen):
    assert seen.before.swarm.epoch == 0
    assert seen.after.swarm.epoch == 1
    assert seen.back.swarm.global_step < seen.before.swarm.global_step
    steps = [point[0] for point in seen.after.swarm.curve]
    assert steps == sorted(set(steps))


def test_the_loss_goes_on_from_where_it_was(seen):
    """The points after going back lie below those from before the snapshot."""
    then = [loss for step, _, loss in seen.after.swarm.curve if step <= seen.cut.global_step]
    since = [loss for step, _, loss in seen.after.swarm.curve if step > seen.cut.global_step]
    assert len(since) >= 2
    assert max(since) < then[0]
    assert min(since) <= then[-1] + 0.05


def test_local_steps_and_moments_go_on(seen):
    for name in ("ada", "bob"):
        assert seen.learners[name].moments.startswith("own moments")
        assert f"{name}" in seen.restored
    assert seen.joined.merged > 0


def test_nobody_did_anything_wrong(seen):
    assert seen.after.faults == {}
    for name, output in seen.outputs.items():
        assert "Traceback" not in output, name
