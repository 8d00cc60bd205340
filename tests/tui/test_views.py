"""What the screens say about recorded swarms, at every size, without colour and in ASCII."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys

import msgspec
import pytest

from protocol.status import ContributorRow, GuestStatus, SampleStatus
from tests.support import recordings
from tests.support.choices import spread
from tests.support.screens import screen_lines, screen_text
from tests.support.staged import LARGE, SMALL, Staged, drive, settle
from tui import once
from tui.app import ShoalApp
from tui.frames.frame import Attached, Frame
from tui.frames.history import History, sample
from tui.frames.scene import Scene
from tui.frames.verdict import Verdict, judge
from tui.views import banner, contribution, facts, fragments, overview, peers, syncer, this_node

RENDERERS = {
    "overview": overview.render,
    "fragments": fragments.render,
    "node": this_node.render,
    "syncer": syncer.render,
    "contribution": contribution.summary,
}
SMALL_RECORDINGS = [name for name in recordings.RECORDINGS if name != "thousand"]


def scene_of(name: str, place: int = -1, focus: str = "") -> Scene:
    """How things look at this place of a recording, for somebody who saw all before."""
    frames = recordings.RECORDINGS[name]()
    seen = frames[: place + 1] if place >= 0 else frames
    history = History.of(sample(one) for one in seen)
    return Scene(frame=seen[-1], history=history, focus=focus)


def squeezed(text: str) -> str:
    """Without the blanks and line ends that layout adds."""
    return re.sub(r"\s+", "", text)


@pytest.mark.parametrize("width", [60, 80, 100, 120, 200])
@pytest.mark.parametrize("name", recordings.RECORDINGS)
def test_no_line_is_wider_than_the_terminal(name, width):
    for focus in ("", recordings.LEARNER):
        now = scene_of(name, focus=focus)
        for view, render in RENDERERS.items():
            for line in [*render(now, width, 20), *banner.render(now, width)]:
                assert line.cell_len <= width, (view, line.plain)


@pytest.mark.parametrize("size", [SMALL, pytest.param(LARGE, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", SMALL_RECORDINGS)
def test_the_sentence_stands_on_screen_whole(name, size):
    frames = recordings.RECORDINGS[name]()
    app = ShoalApp(Staged(frames))

    async def look(pilot):
        wanted = judge(app.scene())
        top = screen_text(app).split("1 Overview")[0]
        assert squeezed(f"[{wanted.level}] {wanted.sentence}") in squeezed(top)

    drive(app, look, size)


@pytest.mark.parametrize(
    ("name", "place", "level", "says"),
    [
        ("healthy", -1, "WELL", "All is well. 8 learners training."),
        ("learner-killed", 19, "WELL", "All is well. 8 learners training."),
        ("learner-killed", 37, "CARE", "1 of 8 learners lost: osprey (last heard 17 s ago). 7"),
        ("learner-killed", 59, "CARE", "1 of 8 learners lost: osprey (last heard 39 s ago). 7"),
        ("leader-silent", 9, "WELL", "All is well."),
        ("leader-silent", 22, "TROUBLE", "The syncer default has not answered for 13 s"),
        ("quorum-short", 5, "CARE", "3 of 6 learners lost: heron, kestrel, osprey (last"),
        (
            "quorum-short",
            59,
            "CARE",
            "No merge for 59 s: round 901 has 2 of the 5 pushes it needs, waiting",
        ),
        ("ended", -1, "DONE", "The run is complete: 6,061 global steps"),
        ("daemon-gone", -1, "TROUBLE", "No daemon runs on this machine yet; still looking."),
        ("thousand", -1, "WELL", "All is well. 1000 learners training."),
        ("voters-away", -1, "CARE", "1 of 3 voters not here: witness 7363616c (last heard 41 s"),
        ("standby", -1, "WELL", "Standing by for 73796e63, heard 0 s ago."),
        ("election", 7, "CARE", "The leader 73796e63 was lost, last heard 2 s ago; this one"),
        ("election", 10, "CARE", "No leader for 5 s: asking whether it would be elected (ter"),
        ("election", 19, "TROUBLE", "No leader for 14 s: asking"),
        ("election", 22, "TROUBLE", "No leader for 17 s: asking whether it would be elected (t"),
        ("two-here", -1, "WELL", "All is well. 8 learners training."),
        ("witness-alone", -1, "WELL", "All is well. Voting with 73796e63, heard 0 s ago."),
        ("left", -1, "WELL", "All is well. 6 learners training."),
    ],
)
def test_the_verdict_says_what_is_wrong_first(name, place, level, says):
    verdict = judge(scene_of(name, place))
    assert verdict.level == level
    assert verdict.sentence.startswith(says)


def test_voters_elsewhere_go_by_the_names_that_they_give():
    now = scene_of("voters-away")
    leader = now.leader
    assert leader is not None
    assert leader.seat is not None
    leader.seat.voters[-1].name = "attic"
    assert "witness attic (last heard" in judge(now).sentence
    assert any("witness attic" in line.plain for line in syncer.render(now, 118, 40))


def test_a_learner_says_that_it_trains_without_a_syncer():
    verdict = judge(scene_of("leader-silent", 30, focus=recordings.LEARNER))
    assert verdict.level == "CARE"
    assert verdict.sentence.startswith("Training without a syncer")
    assert "The syncer default has not answered for 21 s." in verdict.sentence


def changed_standby(phase: str, said: str, **changes: object) -> Verdict:
    seat = recordings.seat("", recordings.SECOND, **changes)
    status = recordings.standing_by(seat, said, phase=phase)
    frame = Frame(at_s=recordings.START_S, statuses=(status,))
    return judge(Scene(frame=frame, history=History.of([sample(frame)])))


def test_a_daemon_that_never_answered_is_not_looked_at_while_another_one_speaks():
    frame = scene_of("healthy").frame
    spoken = frame.attached()[0]
    mute = Attached(label="learner mute", key="", since_s=frame.at_s - 9)
    frame.daemons = (mute, *frame.attached())
    now = Scene(frame=frame, history=History())
    assert now.attached == spoken
    assert Scene(frame=frame, history=History(), focus="learner mute").attached == mute
    frame.statuses = ()
    assert now.attached == mute


def test_the_first_election_is_no_trouble():
    said = "No leader: the first election needs every voter once; not here: 73796e63."
    assert changed_standby("electing", said, term=0) == (
        "START",
        "No leader yet (term 0). The first election needs every voter once; not here: 73796e63.",
    )


def test_who_was_deposed_does_not_know_since_when_but_the_screen_does():
    seat = recordings.seat("", recordings.SECOND)
    frames = [
        Frame(
            at_s=recordings.START_S + second,
            statuses=(recordings.standing_by(seat, "No leader: term 7.", phase="electing"),),
        )
        for second in range(13)
    ]
    history = History.of(sample(one) for one in frames)
    verdict = judge(Scene(frame=frames[-1], history=history))
    assert verdict == ("TROUBLE", "No leader for 12 s: electing (term 7).")


def test_a_majority_that_is_away_is_trouble_at_once():
    seat = recordings.seat("", recordings.SECOND, leaderless_s=1.0)
    seat.voters[0].is_here = seat.voters[2].is_here = False
    status = recordings.standing_by(seat, "No leader: not here.", phase="electing")
    level, sentence = judge(
        Scene(frame=Frame(at_s=recordings.START_S, statuses=(status,)), history=History())
    )
    assert level == "TROUBLE"
    assert sentence.endswith("an election needs 2, 1 is here.")


def test_disk_trouble_drained_and_fetching():
    assert changed_standby("standby", "Not keeping the log: No space left.")[0] == "TROUBLE"
    assert changed_standby("syncing", "Fetching 4 fragments.")[0] == "START"
    assert changed_standby("syncing", "Fetching 4 fragments.", trouble="refused")[0] == "CARE"
    led = recordings.seat("syncer", recordings.SECOND, is_drained=True)
    status = recordings.standing_by(led, "Standing by for 73796e63, heard 0 s ago. Drained.")
    frame = Frame(at_s=recordings.START_S, statuses=(status,))
    assert judge(Scene(frame=frame, history=History())).level == "PAUSED"
    assert "drained" in "".join(line.plain for line in syncer.render(
        Scene(frame=frame, history=History()), 80, 20))  # fmt: skip


def test_a_learner_says_since_when_its_syncer_is_silent():
    node = recordings.learner(900, heard_s=7.2)
    frame = Frame(at_s=recordings.START_S, statuses=(node,))
    verdict = judge(Scene(frame=frame, history=History()))
    assert verdict.level == "CARE"
    assert verdict.sentence.endswith(
        "The syncer has been silent for 7 s; looking for it, or for its successor."
    )
    node.sentence = (
        "Training without a syncer: waiting to try again (dialling host 7cce181e: Connect failed. "
        "msg=x (y) z). Local steps continue; nothing is lost."
    )
    assert (
        "again (host 7cce181e cannot be reached). Local"
        in judge(Scene(frame=frame, history=History())).sentence
    )


def view_text(name: str, width: int = 80, focus: str = "", place: int = -1) -> str:
    now = scene_of(name, place, focus=focus)
    return "\n".join(line.plain for line in syncer.render(now, width, 20))


def test_the_syncer_view_shows_the_election():
    text = view_text("voters-away")
    for said in (
        "leading, epoch 0, term 7",
        "next heartbeat in 0.6 s",
        "none is up to date",
        "another syncer also holds it",
        "revision 3 in force; 4 is signed and waits",
        "2 of 3 elect",
        "turned away",
        "its disk was not admitted",
        "not here",
        "1,204",
    ):
        assert said in text, said
    assert "tries again in" in view_text("election", place=12)
    assert "none for 7 s" in view_text("election", place=12)
    assert "stands for election after 3.1 s more silence" in view_text("standby")
    assert "rounds" not in view_text("standby")


def test_the_syncer_view_says_what_each_learner_s_pushes_are_worth():
    text = view_text("liar")
    assert "1 of 5 doubted" in text
    lines = {name: line for line in text.splitlines() for name in recordings.NAMES if name in line}
    counted = [squeezed(lines[name]) for name in recordings.NAMES[:5]]
    assert counted[0].endswith("34%0+0.3131+2.2countsinfull│")
    assert counted[3].endswith("0%44-0.276+1.1doesnotcount│")
    assert counted[4].endswith("9%0+0.242+1.6new,countslittle│")
    # Who counts least stands first.
    assert min(lines, key=text[text.index("doubted") :].index) == recordings.NAMES[3]
    assert "direction" not in view_text("healthy")


def test_who_is_suspended_is_named_with_what_was_measured():
    text = view_text("copier")
    name = recordings.NAMES[3]
    assert "1 of 5 suspended" in text
    (line,) = [one for one in text.splitlines() if name in one and "+0.30" in one]
    assert squeezed(line).endswith("24+0.1suspended│")
    assert f"{name}: 3 of 4 learners that probed its pushes" in " ".join(text.split())
    scene = Scene(frame=recordings.copier()[-1], history=History())
    level, sentence = judge(scene)
    assert level == "CARE"
    assert f"Suspended: {name}" in sentence
    assert "3 of 4 learners that probed" in sentence


def test_a_suspended_learner_reads_so():
    told = recordings.learner(900, suspended="others say so", sentence="Suspended: others say so.")
    frame = Frame(at_s=recordings.START_S, statuses=(told,))
    assert judge(Scene(frame=frame, history=History())) == ("CARE", "Suspended: others say so.")


def test_a_learner_that_does_not_count_is_no_good_news():
    told = recordings.learner(900, trust=0.0)
    frame = Frame(at_s=recordings.START_S, statuses=(told,))
    assert judge(Scene(frame=frame, history=History())).level == "CARE"


def test_daemons_of_this_machine_go_by_their_names():
    text = view_text("two-here", 120, focus=recordings.WITNESS_LABEL)
    assert "election, as witness scales sees it" in text
    assert "syncer default" in text
    assert "certified to record 2,700" in text
    assert "does not stand" in text
    overview_text = "".join(
        line.plain for line in overview.render(scene_of("witness-alone"), 80, 20)
    )
    assert "election, as witness scales sees it" in overview_text


def test_a_standby_leaves_learners_to_the_leader():
    alone = scene_of("standby")
    assert "Only the leader knows the learners: 73796e63" in peers.empty_note(alone)
    assert len(peers.peer_lines(scene_of("two-here", focus=recordings.STANDBY_LABEL))) == 8
    told = "\n".join(line.plain for line in overview.render(alone, 80, 20))
    assert "the leader knows them" in told
    assert "no learner has joined" not in told


def test_who_left_on_purpose_is_no_alarm_and_links_are_told():
    now = scene_of("left")
    found = peers.peer_lines(now)
    assert peers.left_note(found) == (
        "left on purpose: kestrel (stopped by its owner), wren (finished)"
    )
    assert peers.pick(found, "", is_faults=True) == [line for line in found if line.refused]
    app = ShoalApp(Staged(recordings.left()))

    async def look(pilot):
        await pilot.press("2")
        await settle(pilot)
        rows = screen_lines(app)
        assert any("osprey" in row and "relayed 182 ms" in row for row in rows)
        assert any("kestrel" in row and "left" in row and "direct" not in row for row in rows)
        assert "left on purpose: kestrel" in screen_text(app)
        await pilot.resize_terminal(80, 24)
        await settle(pilot)
        assert "left on purpose: kestrel" in screen_text(app)
        await pilot.press("j", "enter")
        await settle(pilot)
        assert "direct, answers in 24 ms" in screen_text(app)

    drive(app, look, (190, 34))


def test_what_is_not_of_now_says_so():
    now = scene_of("leader-silent", 30)
    assert overview.render(now, 80, 20)[0].plain.startswith("From 21 s ago")
    assert "phase was training" in banner.title(now, 120).plain
    live = scene_of("leader-silent", 30, focus=recordings.LEARNER)
    assert not overview.render(live, 80, 20)[0].plain.startswith("From")


def test_time_left_is_told_only_where_it_is_known():
    assert "ETA not known" in banner.title(scene_of("healthy", 0), 120).plain
    assert re.search(r"ETA \d h", banner.title(scene_of("healthy"), 120).plain)
    short = scene_of("quorum-short")
    assert "ETA stalled" in banner.title(short, 120).plain
    short.status.swarm.tokens = 0
    assert "ETA not known" in banner.title(short, 120).plain
    assert "ETA done" in banner.title(scene_of("ended"), 120).plain


@pytest.mark.parametrize("name", spread(2, SMALL_RECORDINGS))
def test_every_view_can_be_drawn_and_ascii_is_ascii(name):
    app = ShoalApp(Staged(recordings.RECORDINGS[name]()), is_ascii=True)

    async def look(pilot):
        for digit in "1234567":
            await pilot.press(digit)
            await settle(pilot)
            assert screen_text(app).isascii(), digit
        for keys in (["question_mark"], ["escape", "2", "down", "enter"], ["escape", "colon", "p"]):
            await pilot.press(*keys)
            await settle(pilot)
            assert screen_text(app).isascii(), keys

    drive(app, look)


@pytest.mark.parametrize(
    ("told", "shown"),
    [
        ("428164e3 joined", "learner-428164e3 joined"),
        ("learner-428164e3 (428164e3) joined", "learner-428164e3 joined"),
        ("host 428164e3 closed the stream", "host learner-428164e3 closed the stream"),
        ("ada (428164e3) joined", "ada (learner-428164e3) joined"),
    ],
)
def test_a_name_that_was_made_of_its_key_is_told_once(told, shown):
    assert facts.named(told, {"428164e3": "learner-428164e3"}) == shown


def test_names_of_other_machines_do_not_break_ascii_or_columns():
    frame = recordings.frame(5)
    frame.statuses[0].peers[0].name = "鯨の群れ\x1b[31m"
    app = ShoalApp(Staged([frame]), is_ascii=True)

    async def look(pilot):
        await pilot.press("2")
        await settle(pilot)
        rows = screen_lines(app)
        assert "".join(rows).isascii()
        states = {row.index("training") for row in rows[5:12] if "training" in row}
        assert len(states) == 1

    drive(app, look)


def test_charts_have_axes_and_a_curve():
    now = dataclasses.replace(scene_of("healthy"), is_wide=True)
    drawn = "\n".join(line.plain for line in overview.render(now, 120, 40))
    assert "held-out loss over tokens" in drawn
    assert "-30 s" in drawn
    assert "400 k" in drawn
    assert re.search("[\u2801-\u28ff]", drawn)


@pytest.mark.parametrize("name", recordings.RECORDINGS)
def test_once_says_the_same_as_text(name):
    frame = recordings.RECORDINGS[name]()[-1]
    text = once.text(frame, 100)
    assert f"[{judge(Scene(frame=frame, history=History())).level}]" in text
    assert all(len(line) <= 100 for line in text.splitlines())
    assert once.text(frame, 100, is_ascii=True).isascii()


def test_the_screen_imports_nothing_heavy():
    program = (
        "import tui.app, tui.once, sys;"
        "print([name for name in ('torch', 'hivemind', 'node', 'numpy') if name in sys.modules])"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def node_scene(guest: GuestStatus, **changes: object) -> Scene:
    node = recordings.learner(900, guest=guest, **changes)
    return Scene(frame=Frame(at_s=recordings.START_S, statuses=(node,)), history=History())


@pytest.mark.parametrize("width", [78, 120])
def test_this_node_shows_devices_ceilings_with_what_is_taken_and_the_trainers_log(width):
    made = this_node.render(node_scene(recordings.guest()), width, 40)
    assert max(line.cell_len for line in made) <= width
    text = "\n".join(line.plain for line in made)
    for said in (
        "  cpu     16 cores, 61 °C, 7 % busy, 9.00 GB of",
        "● cuda:0  NVIDIA H200, 71 °C, 98 % busy",
        "when idle",
        "memory          █████████░ 7.50 GB of 8.00 GB",
        "heat            ██████████ 71 °C of 70 °C",
        "sending         ██░░░░░░░░ 250 kB/s of 1.00 MB/s",
        "not limited: processor 9 %",
        "hours: mon-fri 22:00-07:00, sat sun",
        "not readable here: battery: there is none",
        "ready on cuda:0 after 4.1 s",
    ):
        assert said in text, said


def test_a_pause_says_why_in_the_header_and_in_the_view():
    because = "it runs on battery"
    now = node_scene(
        recordings.guest(is_held=True, is_suspended=True, because=because),
        state="paused",
        sentence=f"Paused because {because}. The weights stay current.",
    )
    header = "\n".join(line.plain for line in banner.render(now, 100))
    assert "[PAUSED] Paused because it runs on battery." in header
    assert facts.you(now).plain == "paused because it runs on battery"
    assert judge(now).level == "PAUSED"
    view = "\n".join(line.plain for line in this_node.render(now, 100, 30))
    assert "why idle  Paused because it runs on battery. The weights stay current." in view


@pytest.mark.parametrize(
    ("states", "level"),
    [
        (("paused",), "PAUSED"),
        (("paused", "finishing"), "PAUSED"),
        (("starting", "syncing"), "START"),
        (("paused", "starved"), "CARE"),
    ],
)
def test_where_nobody_trains_the_learner_here_says_why_it_does_not(states, level):
    peers = [recordings.peer(at, 900, state=state) for at, state in enumerate(states)]
    there = recordings.syncer(900, peers, sentence="Nobody trains: avocet paused.")
    there.project = msgspec.structs.replace(there.project, quorum=1)
    here = recordings.learner(
        900, state="paused", sentence="Paused by its owner for 2 h more. The weights stay current."
    )
    frame = Frame(at_s=recordings.START_S, statuses=(there, here))
    verdict = judge(Scene(frame=frame, history=History()))
    assert verdict.level == level
    assert verdict.sentence == (
        "Nobody trains: avocet paused. learner heron: Paused by its owner for 2 h more. The "
        "weights stay current."
    )


def test_training_beside_somebody_says_so():
    beside = recordings.guest(is_beside=True, because="somebody used it 12 s ago", duty_frac=0.25)
    text = "\n".join(line.plain for line in this_node.render(node_scene(beside), 100, 30))
    assert "The trainer works 25 % of the time." in text
    assert "less, because somebody used it 12 s ago" in text


def test_the_contribution_view_counts_by_the_ledger_also_who_left():
    now = scene_of("healthy")
    leader = now.leader
    here = leader.peers[0]
    leader.contributors = [
        ContributorRow(key="ff" * 32, name="gone\x1b[2J", tokens=9_000_000, merges=30_000),
        ContributorRow(key=here.key, name=here.name, tokens=4_000_000, merges=10_000),
    ]
    leader.contributor_merges = 40_000
    first, second, *others = contribution.places(now)
    assert (first.line.peer.state, first.line.peer.merges, first.line.share) == (
        "left",
        30_000,
        0.75,
    )
    assert (second.line.peer.key, second.line.peer.merges) == (here.key, 10_000)
    assert len(others) == len(leader.peers) - 1
    assert "\x1b" not in contribution.COLUMNS[1].say(first)
    leader.contributors[0].refused = {"late: the round is closed": 3}
    told = "\n".join(line.plain for line in contribution.details(now, "ff" * 32, 76))
    assert "3 late: the round is closed" in told
    assert "9,000,000 read and merged" in told
    assert "\x1b" not in told
    other = contribution.details(now, leader.peers[1].key, 76)
    assert "has nothing" in other[0].plain


def test_a_younger_history_is_trouble_at_the_syncer_and_at_learners():
    said = "This store is younger than the swarm. shoal project reset-seat"
    node = recordings.learner(900, younger=said, sentence=said, state="adrift")
    for status in (recordings.syncer(0, [], phase="stopped", sentence=said), node):
        frame = Frame(at_s=recordings.START_S, statuses=(status,))
        level, sentence = judge(Scene(frame=frame, history=History()))
        assert level == "TROUBLE"
        assert sentence.startswith(said)


@pytest.mark.parametrize("width", [78, 120])
def test_this_node_shows_what_the_model_wrote(width):
    sample = SampleStatus("the", "sea\x1b[2J " * 50, 412, 1.7e9)
    made = this_node.render(node_scene(recordings.guest(), sample=sample), width, 40)
    assert max(line.cell_len for line in made) <= width
    text = "\n".join(line.plain for line in made)
    assert "sample" in text
    assert "“the” → “sea?[2J sea?[2J" in text
    without = this_node.render(node_scene(recordings.guest()), width, 40)
    assert "sample" not in "\n".join(line.plain for line in without)
