"""What people see of the guard: the verdict, a row in status and views, metrics."""

from __future__ import annotations

import io

import msgspec
import pytest
from rich.console import Console

from host.control.metrics import metrics_of
from protocol.status import (
    DaemonStatus,
    PaceStatus,
    PauseStatus,
    RestoredStatus,
    SeatStatus,
    SwarmStatus,
    VoterRow,
)
from tests.support import recordings
from tui.frames.frame import Frame
from tui.frames.history import History, sample
from tui.frames.scene import Scene, eta
from tui.frames.verdict import Verdict, judge
from tui.text.status_view import render
from tui.views import this_node
from tui.views.syncer import render as syncer_view

WORDS = (
    "Merging is paused since 2026-11-22 14:02 UTC: the held-out loss is 9.70, the best was 2.58 at "
    "global step 1,204 (measured by ada (6164613a) and bob (626f623a))"
)
OUT = "`shoal project undo PROJECT` goes back to it; `shoal project resume PROJECT` goes on."
PAUSE = PauseStatus(
    at_s=1_795_356_120.0,
    global_step=1260,
    loss=9.7,
    best_loss=2.58,
    best_global_step=1204,
    best_checkpoint=3612,
    words=WORDS,
    record="ab" * 32,
)


RESTORED = RestoredStatus(
    at_s=1_795_356_180.0,
    paused_s=PAUSE.at_s,
    global_step=1260,
    loss=9.7,
    best_loss=2.58,
    best_global_step=1204,
    best_checkpoint=3612,
    words="The guard went back on 2026-11-22 14:03 UTC from global step 1,260 to the weights of "
    "global step 1,204: the held-out loss was 9.70, there it was 2.58 (measured by ada (6164613a) "
    "and bob (626f623a))",
)


def swarm(pause: PauseStatus | None = PAUSE) -> SwarmStatus:
    return msgspec.structs.replace(
        recordings.swarm(1260), guard="pause", guard_above=3.096, pause=pause
    )


def leader() -> DaemonStatus:
    peers = [recordings.peer(at, 1260, state="paused") for at in range(3)]
    return recordings.syncer(1260, peers, swarm=swarm(), sentence=f"{WORDS}. {OUT}", rounds=[])


def learner() -> DaemonStatus:
    (node,) = [one for one in recordings.healthy()[-1].statuses if one.name == "heron"]
    said = f"Paused by the guard: m{WORDS[1:]}. This machine rests."
    return msgspec.structs.replace(node, state="paused", sentence=said, swarm=swarm())


def scene(status: DaemonStatus) -> Scene:
    frame = Frame(at_s=recordings.START_S, statuses=(status,))
    return Scene(frame=frame, history=History.of([sample(frame)]))


def verdict(status: DaemonStatus) -> Verdict:
    return judge(scene(status))


def test_a_leader_says_since_when_what_was_measured_and_both_ways_out():
    level, sentence = verdict(leader())
    assert level == "TROUBLE"
    assert sentence.startswith(f"{WORDS}. {OUT}")


def test_a_learner_rests_and_says_why():
    level, sentence = verdict(learner())
    assert level == "PAUSED"
    assert sentence.startswith("Paused by the guard: merging is paused since 2026-11-22 14:02 UTC")


def test_a_standby_does_not_say_that_all_is_well():
    seat = recordings.seat("syncer", recordings.SECOND)
    said = f"Standing by for {recordings.key('syncer')[:8]}, heard 0 s ago. {WORDS}."
    status = recordings.standing_by(seat, said, swarm=swarm())
    level, sentence = verdict(status)
    assert level != "WELL"
    assert WORDS in sentence


@pytest.mark.parametrize("status", [leader(), learner()], ids=["syncer", "learner"])
def test_status_has_a_row_on_the_guard(status):
    page = text_of(status)
    assert "guard" in page
    assert "merging is paused: held-out loss 9.700, best 2.580 at global step 1,204" in page
    watched = msgspec.structs.replace(status, swarm=swarm(None))
    assert "pauses merging if the held-out loss exceeds 3.096" in text_of(watched)
    going = msgspec.structs.replace(swarm(None), guard="restore")
    back = "goes back to the best checkpoint if the held-out loss exceeds 3.096"
    assert back in text_of(msgspec.structs.replace(status, swarm=going))
    unwatched = msgspec.structs.replace(watched, swarm=recordings.swarm(1260))
    assert "guard " not in text_of(unwatched)


def text_of(status: DaemonStatus) -> str:
    console = Console(file=io.StringIO(), width=400, record=True)
    console.print(render([status], width=400))
    return console.export_text()


def test_the_full_screen_has_it_in_both_views():
    for status, draw in ((leader(), syncer_view), (learner(), this_node.render)):
        lines = draw(scene(status), 120, 50)
        assert "merging is paused: " in "\n".join(line.plain for line in lines)


def metrics(swarm_status: SwarmStatus) -> dict[str, float]:
    status = msgspec.structs.replace(leader(), swarm=swarm_status)
    told = {**msgspec.to_builtins(status), "type": "syncer"}
    return {one.name: one.samples[0].value for one in metrics_of(told) if one.samples}


def test_metrics_say_that_and_since_when():
    found = metrics(swarm())
    assert found["shoal_guard_paused"] == 1
    assert found["shoal_guard_paused_since_timestamp_seconds"] == PAUSE.at_s
    assert found["shoal_guard_loss_limit"] == 3.096
    found = metrics(swarm(None))
    assert found["shoal_guard_paused"] == 0
    assert "shoal_guard_paused_since_timestamp_seconds" not in found


# With the rule "restore"


def test_a_leader_that_goes_back_by_itself_asks_for_care_and_not_for_help():
    going = msgspec.structs.replace(PAUSE, goes_back=True)
    said = f"{WORDS}. The guard goes back to it by itself."
    status = msgspec.structs.replace(leader(), swarm=swarm(going), sentence=said)
    level, sentence = verdict(status)
    assert level == "CARE"
    assert said in sentence
    assert "at global step 1,204; the guard goes back to it by itself" in text_of(status)


def test_afterwards_the_row_says_when_from_where_and_to_what():
    for guard, begins in (("restore", "goes back to the best checkpoint if"), ("off", "the guard")):
        after = msgspec.structs.replace(swarm(None), guard=guard, restored=RESTORED)
        page = text_of(msgspec.structs.replace(learner(), state="training", swarm=after))
        assert begins in page
        assert f"the{RESTORED.words[3:]}" in page


def test_metrics_say_when_it_went_back():
    assert "shoal_guard_went_back_timestamp_seconds" not in metrics(swarm())
    found = metrics(msgspec.structs.replace(swarm(None), restored=RESTORED))
    assert found["shoal_guard_went_back_timestamp_seconds"] == RESTORED.at_s


# The owner's own pause

OWNERS = "Paused by the project's owner since 2026-11-22 14:02 UTC."


def owners(status: DaemonStatus, **changes: object) -> DaemonStatus:
    quiet = msgspec.structs.replace(swarm(None), owner_paused_at_s=PAUSE.at_s)
    return msgspec.structs.replace(status, swarm=quiet, **changes)


def test_a_run_that_its_owner_paused_is_no_alarm_however_long_nothing_is_merged():
    said = f"{OWNERS} 3 learners here. `shoal project resume PROJECT` goes on."
    still = PaceStatus(still_s=86_400.0, gap_s=1.0)
    resting = owners(leader(), sentence=said)
    resting.swarm.pace = still
    resting.peers[0].state = "training"
    assert verdict(resting) == Verdict("PAUSED", said)
    assert eta(scene(resting)) == "paused by the owner"
    node = owners(learner(), sentence=f"{OWNERS} This machine rests.")
    assert verdict(node).level == "PAUSED"
    for status in (resting, node):
        console = Console(width=110, record=True, file=io.StringIO())
        console.print(render([status], width=110))
        assert "paused by the owner" in console.export_text()


def test_a_lost_voter_is_an_alarm_also_in_a_paused_run():
    row = VoterRow(key="v", role="syncer", priority=40, is_here=False, heard_s=40.0)
    me = VoterRow(key="k", role="syncer", priority=50, is_self=True, is_here=True)
    seat = SeatStatus(role="leading", epoch=0, term=1, leader="k", voters=[me, row])
    said = verdict(owners(leader(), sentence=OWNERS, seat=seat))
    assert said.level == "TROUBLE"
    assert said.sentence.startswith("1 of 2 voters not here")


def test_the_guards_pause_is_trouble_whoever_pauses_beside_it():
    both = owners(leader(), sentence=f"{OWNERS} {WORDS}. {OUT}")
    both.swarm.pause = PAUSE
    assert verdict(both).level == "TROUBLE"
