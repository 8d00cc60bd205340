"""A model wrecked by real processes: the guard pauses, says so, and one command goes back.

Everybody counts in full here, as in projects of before trust was earned, so that one liar of three
is enough.
"""

from __future__ import annotations

import json

import pytest

from protocol.log.heldout import is_far
from shoal.demo.liar import spawning
from tests.net.swarms import TinySwarm

pytestmark = [pytest.mark.net, pytest.mark.timeout(1200)]

HONEST = ("ada", "bob")
LIAR = "mallory"
EVERY = 9
"""Global steps between two measurements."""


class Seen:
    """What the swarm looked like at each turn."""


def go_through_it(seen, swarm):
    swarm.prepare(
        rounds__quorum=1, rounds__local_steps=12, outer__trust="all", limits__evaluate_every=EVERY
    )
    swarm.begin()
    for name in HONEST:
        swarm.start_learner(name, "--duty", "0.5")
    seen.sound = swarm.until(lambda: measured(swarm, 4), "four agreed measurements")

    swarm.start_learner(LIAR, "--duty", "0.5", "--no-evaluate")
    seen.paused = swarm.until(lambda: paused(swarm.syncer()), "a pause")
    seen.printed = swarm.run("status")
    seen.told = json.loads(swarm.run("status", "--json"))
    seen.resting = [swarm.until(lambda name=name: rests(swarm, name), name) for name in HONEST]
    seen.still = swarm.syncer()

    swarm.kill(LIAR)
    seen.said = swarm.run("project", "undo", str(swarm.signed), "--yes")
    step = seen.paused.swarm.pause.best_global_step
    seen.back = swarm.until(lambda: measured_past(swarm, step + 2 * EVERY), "merges and losses")


def measured(swarm, count):
    now = swarm.syncer()
    best = now and now.swarm.best_is_agreed and len(now.swarm.curve) >= count
    return now if best and now.swarm.best_loss < now.swarm.curve[0][2] else None


def paused(now):
    return now if now is not None and now.swarm.pause is not None else None


def rests(swarm, name):
    now = swarm.learner(name)
    return now if now is not None and now.state == "paused" else None


def measured_past(swarm, step):
    now = swarm.syncer()
    is_there = now is not None and now.swarm.epoch == 1 and now.swarm.curve
    return now if is_there and now.swarm.curve[-1][0] >= step else None


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    seen = Seen()
    with TinySwarm(tmp_path_factory.mktemp("guard"), spawn=spawning(LIAR)) as swarm:
        go_through_it(seen, swarm)
        seen.outputs = swarm.outputs()
        yield seen


def test_two_found_it_far_above_the_best_before_long(seen):
    pause = seen.paused.swarm.pause
    assert is_far(pause.loss, pause.best_loss)
    assert pause.best_loss <= seen.sound.swarm.best_loss + 0.05
    points = [point for point in seen.paused.swarm.curve if point[0] > pause.best_global_step]
    far = [point for point in points if is_far(point[2], pause.best_loss)]
    assert len(far) <= 2, "the first that was far, and at most one that could not be confirmed"
    assert all(name in pause.words for name in HONEST)


def test_everybody_reads_since_when_and_what_to_do(seen):
    words = seen.paused.swarm.pause.words
    for said in (words, "`shoal project undo PROJECT` goes back to it", "goes on."):
        assert " ".join(said.split()) in " ".join(seen.printed.split())
    for one in seen.told:
        assert one["swarm"]["pause"]["record"] == seen.paused.swarm.pause.record
    for learner in seen.resting:
        assert learner.sentence.startswith("Paused by the guard: merging is paused since ")


def test_nothing_was_merged_while_it_was_paused(seen):
    assert seen.still.swarm.global_step <= seen.paused.swarm.global_step + 2, (
        "what was proposed already may still be committed"
    )
    assert not seen.still.rounds


def test_one_command_brought_the_loss_back_and_merging_goes_on(seen):
    pause = seen.paused.swarm.pause
    assert f"global step {pause.best_global_step:,}" in seen.said
    assert "epoch 1 begins at the best checkpoint" in seen.said
    swarm = seen.back.swarm
    assert swarm.pause is None
    assert swarm.global_step > pause.best_global_step
    assert not is_far(swarm.curve[-1][2], pause.best_loss)


def test_nobody_failed(seen):
    for name, output in seen.outputs.items():
        assert "Traceback" not in output, name
