"""Strangers that want to stop a run or to move it, against real daemons.

Others of that kind: `test_trust_processes` (backwards), `test_admission_processes` (uninvited),
`test_crowded_host` (silent streams), `test_lost_store` (a second history). How much of the quiet
rate is left under each is measured by `benchmarks/hostile.py`.
"""

from __future__ import annotations

import pytest

from syncer_node.machine.trust.conduct import EMPTY_HANDED, UNDELIVERED
from tests.net.hostile_swarm import HostileSwarm
from tests.net.lying_shoal import spawning

pytestmark = [pytest.mark.net, pytest.mark.timeout(1200)]

HONEST = ("ada", "bob", "eve")
MERGES_MORE = 30
LOSS_MIN = 0.1
"""No model of this size gets there."""


@pytest.fixture(scope="module")
def swarm(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile")
    lies = {"wrecker": "huge", "mallory": "evaluator"}
    with HostileSwarm(folder, spawn=spawning(lies)) as made:
        made.prepare(rounds__quorum=1, rounds__local_steps=12, limits__evaluate_every=20)
        made.begin()
        for name in HONEST:
            made.start_learner(name, "--duty", "0.3")
        made.all_merge(*HONEST)
        yield made


def _abandoned(peer):
    """Pushes that a merge was to have and did not take."""
    return peer.refused.get("abandoned", 0)


def merges_go_on(swarm, seconds_max):
    """So many merges more come within the limit, whoever else is here."""
    begin = swarm.syncer().swarm.global_step

    def look():
        now = swarm.syncer()
        return now if now and now.swarm.global_step >= begin + MERGES_MORE else None

    return swarm.until(look, f"{MERGES_MORE} merges", limit_s=seconds_max)


@pytest.mark.parametrize(
    ("kind", "count", "words"),
    [("racers", 2, EMPTY_HANDED), ("announcers", 8, UNDELIVERED), ("returners", 4, UNDELIVERED)],
)
def test_keys_that_only_promise_do_not_stop_the_merging_and_are_named(swarm, kind, count, words):
    with swarm.attacked_by(kind, count):

        def named():
            now = swarm.syncer()
            return now if now and f"{words}: {kind}-" in now.sentence else None

        seen = swarm.until(named, "their names")
        assert "All is well" not in seen.sentence
        merges_go_on(swarm, seconds_max=120.0)


def test_keys_that_flood_the_syncer_with_messages_do_not_stop_the_merging(swarm):
    with swarm.attacked_by("flooders", 2):
        merges_go_on(swarm, seconds_max=120.0)
        told = swarm.output("syncer").count("bad-signature")
    assert 1 <= told < 100, "each offence is no line of its own"


def test_a_payload_that_nothing_can_hold_takes_no_honest_push_with_it(swarm):
    swarm.start_learner("wrecker", "--duty", "0.5", "--no-evaluate")

    def refused():
        now = swarm.syncer()
        row = {peer.name: peer for peer in now.peers}.get("wrecker") if now else None
        return row if row is not None and row.refused else None

    row = swarm.until(refused, "a refusal")
    assert row.merges == 0
    said = swarm.until(
        lambda: (now := swarm.syncer()) and "wrecker" in now.sentence and now.sentence, "its name"
    )
    assert "no merge could hold what they hand in: wrecker" in said
    before = swarm.rows()
    merges_go_on(swarm, seconds_max=120.0)
    after = swarm.rows()
    assert all(after[name].merges > before[name].merges for name in HONEST)
    assert after["wrecker"].merges == 0
    # One that was stale or late may be there from before: this machine has other work too.
    assert all("rejected" not in after[name].refused for name in HONEST)
    assert all(_abandoned(after[name]) == _abandoned(before[name]) for name in HONEST)
    swarm.kill("wrecker")


def test_a_false_loss_makes_no_best_checkpoint_and_its_author_is_named(swarm):
    swarm.start_learner("mallory", "--duty", "0.3")

    def disputed():
        now = swarm.syncer()
        # The first checkpoint of all may be one that she measures: then there is no best one yet.
        if now is None or now.swarm.best_loss is None:
            return None
        return now if "differ, so it does not count as best" in now.sentence else None

    seen = swarm.until(disputed, "a disputed loss, and a best checkpoint")
    assert "mallory" in seen.sentence
    assert "says 0.0000" in seen.sentence
    assert seen.swarm.best_loss > LOSS_MIN
