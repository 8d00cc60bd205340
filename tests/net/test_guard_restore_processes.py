"""A model wrecked by real processes goes back to its best checkpoint, and nobody does anything.

The leader's copy of that checkpoint is taken away, so that it comes from the other syncer. Everyone
counts in full here, as in projects of before trust was earned, so that one liar of three is enough.
"""

from __future__ import annotations

import contextlib
import json

import pytest

from protocol.log.heldout import is_far
from shoal.demo.liar import spawning
from tests.net.swarms import TinySwarm

pytestmark = [pytest.mark.net, pytest.mark.timeout(1500)]

HONEST = ("ada", "bob")
LIAR = "mallory"
LEADER, SPARE, WITNESS = "first", "spare", "watch"
EVERY = 9
"""Global steps between two measurements."""


class Seen:
    """What the swarm looked like at each turn."""


def go_through_it(seen, swarm):
    swarm.prepare(
        voters={LEADER: "syncer", SPARE: "syncer", WITNESS: "witness"},
        guard__rule="restore",
        rounds__quorum=1,
        rounds__local_steps=12,
        outer__trust="all",
        limits__evaluate_every=EVERY,
    )
    swarm.start_first()
    swarm.start_syncer(SPARE)
    swarm.start_witness(WITNESS)
    swarm.until(swarm.leader, "a leader")
    for name in HONEST:
        swarm.start_learner(name, "--duty", "0.5")
    seen.sound = swarm.until(lambda: measured(swarm, 4), "four agreed measurements")

    swarm.start_learner(LIAR, "--duty", "0.5", "--no-evaluate")
    swarm.until(lambda: wrecked(swarm), "a wrecked model")
    swarm.kill(LIAR)
    seen.restored = swarm.until(lambda: went_back(swarm), "the way back")
    seen.printed = swarm.run("status")
    # A second line says that the liar does not answer.
    seen.told = json.loads(swarm.run("status", "--json").splitlines()[0])

    swarm.kill(LEADER)
    swarm.start_syncer(LEADER)
    step = seen.restored.swarm.restored.global_step
    seen.back = swarm.until(lambda: measured_past(swarm, step + 2 * EVERY), "merges and losses")


def leader(swarm):
    found = swarm.leader()
    return found[1] if found is not None else None


def measured(swarm, count):
    now = leader(swarm)
    best = now and now.swarm.best_is_agreed and len(now.swarm.curve) >= count
    return now if best and now.swarm.best_loss < now.swarm.curve[0][2] else None


def wrecked(swarm):
    """Whether the guard found it; until then the leader has no copy of the best checkpoint."""
    found = swarm.leader()
    if found is None:
        return False
    name, now = found
    if now.swarm.pause is not None or now.swarm.restored is not None:
        return True
    place = swarm.store(name) / "checkpoints" / str(now.swarm.best_checkpoint)
    with contextlib.suppress(OSError):
        place.rename(place.with_name(f"{place.name}.away"))
    return False


def went_back(swarm):
    now = leader(swarm)
    return now if now is not None and now.swarm.restored is not None else None


def measured_past(swarm, step):
    now = leader(swarm)
    is_there = now is not None and now.swarm.pause is None and now.swarm.curve
    return now if is_there and now.swarm.curve[-1][0] >= step else None


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    seen = Seen()
    with TinySwarm(tmp_path_factory.mktemp("restore"), spawn=spawning(LIAR)) as swarm:
        go_through_it(seen, swarm)
        seen.outputs = swarm.outputs()
        yield seen


def test_it_went_back_to_the_best_checkpoint_on_which_two_agreed(seen):
    restored = seen.restored.swarm.restored
    assert is_far(restored.loss, restored.best_loss)
    assert restored.best_loss <= seen.sound.swarm.best_loss + 0.05
    assert restored.best_global_step < restored.global_step
    assert seen.restored.swarm.epoch == 0, "nothing is void but weights"
    assert all(name in restored.words for name in HONEST)


def test_everybody_reads_when_from_where_and_to_what(seen):
    words = seen.restored.swarm.restored.words
    assert " ".join(words.split())[1:] in " ".join(seen.printed.split())
    folding = [one for one in seen.told if one["type"] != "witness"]
    assert len(folding) == 4
    for one in folding:
        assert one["swarm"]["restored"]["at_s"] == seen.restored.swarm.restored.at_s


def test_the_loss_is_back_and_merging_goes_on_also_after_a_restart(seen):
    swarm, restored = seen.back.swarm, seen.restored.swarm.restored
    assert swarm.restored == restored, "once"
    assert swarm.pause is None
    assert swarm.global_step > restored.global_step
    assert not is_far(swarm.curve[-1][2], restored.best_loss)


def test_learners_began_with_fresh_optimizer_state(seen):
    for name in HONEST:
        assert "The guard went back on " in seen.outputs[name]
        assert "the run went back to an earlier state of the model" in seen.outputs[name]


def test_nobody_failed(seen):
    for name, output in seen.outputs.items():
        assert "Traceback" not in output, name
