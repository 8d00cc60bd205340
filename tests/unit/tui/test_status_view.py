"""What `shoal status` shows, read as text without colour."""

from __future__ import annotations

import io

import msgspec
import pytest
from rich.console import Console

from protocol import limits
from protocol.status import (
    DaemonStatus,
    DownloadStatus,
    MergeRow,
    NetworkStatus,
    NodeStatus,
    PaceStatus,
    PeerRow,
    ProjectStatus,
    RestoreRow,
    RoundRow,
    SampleStatus,
    SeatStatus,
    SnapshotRow,
    SnapshotStatus,
    SwarmStatus,
    SyncerStatus,
    VoterRow,
    WitnessStatus,
)
from tui.frames.frame import Attached, Frame
from tui.frames.history import History
from tui.frames.rates import Rates
from tui.frames.scene import Scene
from tui.frames.verdict import judge, judge_all
from tui.text import fmt, status_rows
from tui.text.status_view import NOBODY, invitations, render

SENTENCE = "Training. 2 of 3 learners train; osprey is gone since 3 min."
LINK = "shoal:" + "x" * 300

PROJECT = ProjectStatus(
    id="4f2a" + "0" * 57 + "91c",
    name="harbour",
    fragments=8,
    parameters=824_576,
    token_budget=20_000_000,
    local_steps=16,
    quorum=2,
)
SWARM = SwarmStatus(
    global_step=412,
    tokens=8_200_000,
    curve=[(0, 0, 5.545), (200, 4_000_000, 2.5), (400, 8_000_000, 1.872)],
    best_checkpoint=400,
    best_loss=1.86,
)
HERON = PeerRow(
    key="aa",
    name="heron",
    device="cpu",
    state="training",
    heard_s=0.3,
    local_step=1284,
    tokens_per_s=4100,
    loss=2.41,
    merges=400,
    goodput=0.991,
    refused={"stale": 2, "late": 1},
)
OSPREY = PeerRow(key="bb", name="osprey", device="NVIDIA H200", state="gone", heard_s=182.0)
SYNCER = SyncerStatus(
    key="k",
    name="wren",
    pid=4242,
    version="0.1.0",
    uptime_s=733.0,
    phase="training",
    sentence=SENTENCE,
    join_link=LINK,
    project=PROJECT,
    swarm=SWARM,
    network=NetworkStatus(state="up", peers=3, bytes_up=21_300_000, bytes_down=512),
    peers=[OSPREY, HERON],
    rounds=[
        RoundRow(
            number=413,
            fragment=5,
            state="grace",
            arrived=1,
            asked=2,
            quorum=2,
            age_s=0.4,
            waiting_for=["kestrel"],
        )
    ],
    merges=[MergeRow(global_step=412, fragment=4, participants=2, mean_steps=16.2, seconds=0.04)],
    merges_here=390,
    participants_mean=2.1,
    effective_h=16.4,
    outcomes={"merged": 800, "late": 3},
    faults={"bad-signature": 1},
    fragments=[52, 52, 52, 52, 52, 51, 51, 50],
    push_bytes=51_600,
    push_params=100_000,
)
NODE = NodeStatus(
    key="n",
    name="osprey",
    pid=5,
    version="0.1.0",
    uptime_s=65.0,
    state="training",
    sentence="Training at 4,100 tokens/s.",
    link="connected",
    link_detail="",
    heard_s=0.4,
    trainer="running",
    trainer_detail="",
    trainer_pid=6,
    device="cpu",
    micro_batch=8,
    project=PROJECT,
    swarm=SWARM,
    network=NetworkStatus(state="up", peers=3),
    local_step=120,
    tokens=245_760,
    tokens_per_s=4100.0,
    step_s=0.48,
    loss=2.4,
    goodput=0.98,
    pushed=40,
    merged=39,
    outcomes={"merged": 39, "late": 1},
    discarded_steps=3,
    weights_from_peers=5,
    weights_from_syncer=3,
    weights_held=8,
    lag=1,
    notices=["The text here differs from the project's."],
)


def shown(*statuses: DaemonStatus, width: int = 80, rates: dict[str, float] | None = None) -> str:
    console = Console(width=width, no_color=True, force_terminal=False)
    with console.capture() as capture:
        console.print(render(statuses, width=width, rates=rates))
    return capture.get()


@pytest.mark.parametrize(
    ("evaluations", "probes", "words"),
    [
        (0, 0, ""),
        (1, 0, "held-out loss of 1 checkpoint, for the swarm"),
        (0, 1, "effect of 1 push of other learners on the loss, for the swarm"),
        (2, 3, "held-out loss of 2 checkpoints, effect of 3 pushes of other learners on the loss"),
    ],
)
def test_a_learner_tells_what_it_measured_for_others(evaluations, probes, words):
    status = msgspec.structs.replace(NODE, evaluations=evaluations, probes=probes)
    text = " ".join(shown(status, width=140).split())
    assert words in text
    assert ("measured" in text) == bool(words)


def test_a_learner_shows_what_the_model_wrote_and_nothing_steers_the_terminal():
    sample = SampleStatus("the\n", "sea\x1b[2J and\nsky", 412, 1.7e9)
    text = shown(msgspec.structs.replace(NODE, sample=sample), width=140)
    assert "sample" in text
    assert "“the ” → “sea?[2J and sky” (global step 412)" in " ".join(text.split())
    assert "\x1b" not in text
    assert "sample" not in shown(NODE, width=140)


@pytest.mark.parametrize("width", [80, 120])
def test_the_sentence_comes_second_and_no_line_is_too_wide(width):
    lines = shown(SYNCER, width=width).splitlines()
    assert "harbour" in lines[0]
    assert "syncer wren" in lines[0]
    assert lines[1] == SENTENCE
    assert max(map(len, lines)) <= width
    assert max(map(len, shown(NODE, width=width).splitlines())) <= width


@pytest.mark.parametrize(
    "words_shown",
    [
        "8.20 M of 20.0 M tokens",
        "41 %",
        "5.545 → 1.872, best 1.860",
        "412 global steps, 390 since this start",
        "2.1 learners, 16.4 local steps per push (H is 16)",
        "a round needs 2 pushes; 1 alive",
        "413 on fragment 5: grace, 1 of 2 arrived, needs 2",
        "waiting for kestrel",
        "0 ■■■■■▶□! 7  versions 50 to 52",
        "■ newest  □ due  ▶ in flight  ! behind",
        "800 merged, 3 late",
        "1 bad-signature",
        "sent 21.3 MB, received 512 B",
        "0.52 byte per parameter up",
        "not counted from heron: 2 stale, 1 late",
    ],
)
def test_a_syncer_tells_this(words_shown):
    assert words_shown in shown(SYNCER)


def test_the_last_snapshot_has_a_line():
    kept = SnapshotRow(
        name="20260131-120000",
        epoch=0,
        log_index=9,
        global_step=412,
        parts=["kestrel", "osprey"],
        skipped={"heron": "connection lost"},
    )
    back = RestoreRow(name="kestrel", is_restored=True, local_step=80)
    anew = RestoreRow(name="heron", is_restored=False, local_step=0, trouble="no part")
    snapshots = SnapshotStatus(
        kept=[kept], restored="20260131-120000", restores=[back, anew], next_s=90.0
    )
    text = shown(msgspec.structs.replace(SYNCER, snapshots=snapshots), width=140)
    assert "20260131-120000 at global step 412 with 2 learners, 1 left out, of 1 kept" in text
    assert "the next in 1 min 30 s" in text
    assert "to 20260131-120000; with their own state: kestrel; from scratch: heron" in text
    taking = SnapshotStatus(taking="20260131-130000", waiting_for=["osprey"], trouble="disk full")
    text = shown(msgspec.structs.replace(SYNCER, snapshots=taking), width=140)
    assert "taking 20260131-130000, waiting for osprey" in text
    assert "the last one was not kept: disk full" in text
    assert "went back" not in text


def seated(**changes: object) -> SyncerStatus:
    voters = [
        VoterRow(key="k", role="syncer", priority=10, is_self=True, is_leader=True, is_here=True),
        VoterRow(key="0a1b2c3d4e", role="syncer", priority=5, is_here=True, heard_s=0.2, lag=0),
        VoterRow(key="ffeeddccbb", role="witness", priority=0, is_here=True, heard_s=0.2, lag=0),
    ]
    seat = SeatStatus(
        role="leading", epoch=0, term=3, leader="k", durability="standby", standbys=1,
        charter_revision=2, newest_charter_revision=2, voters=voters,
    )  # fmt: skip
    for field, value in changes.items():
        setattr(seat, field, value)
    return msgspec.structs.replace(SYNCER, seat=seat)


def test_the_seat_takes_one_line_while_all_is_well():
    text = shown(seated())
    assert "leading, term 3 · 3 voters, all here · standby durability" in text
    assert "ffeeddcc" not in text


def test_a_voter_has_a_line_when_something_is_wrong():
    status = seated(standbys=0, newest_charter_revision=3)
    status.seat.voters[2].is_here, status.seat.voters[2].heard_s = False, 42.0
    status.seat.voters[1].trouble = "its disk was not admitted"
    text = " ".join(shown(status, width=120).split())
    assert "3 voters, 1 not here · standby durability · no standby" in text
    assert "3 is signed and waits for the voters to adopt it" in text
    assert "witness ffeeddcc, priority 0: not here, last heard 42 s ago" in text
    assert "0a1b2c3d, priority 5: turned away, last heard 0 s ago; its disk was not adm" in text


def test_a_standby_and_a_witness_say_whom_they_follow():
    seat = seated().seat
    assert seat is not None
    seat.role, seat.voters[0].is_self = "following", False
    standby = msgspec.structs.replace(seated(), seat=seat, key="0a1b2c3d4e", peers=[])
    text = shown(standby)
    assert "following k in term 3 · 3 voters, all here" in text
    assert "The learners are at the leader." in text
    witness = WitnessStatus(
        key="ffeeddccbb", name="scales", pid=9, version="0.1.0", uptime_s=3.0, project=PROJECT,
        sentence="All is well.", seat=seat, log_index=1234, stored_from=7, network=NetworkStatus(),
    )  # fmt: skip
    text = shown(witness, seated())
    assert "following syncer wren in term 3" in text
    assert "certified to record 1,234, kept from 7" in text
    assert "voter      syncer wren, priority 10: leads" in text


def test_learners_stay_in_the_order_of_their_names():
    text = shown(SYNCER)
    assert text.index("\nheron") < text.index("\nosprey")
    wide = shown(SYNCER, width=120)
    assert "2 stale, 1 late" in wide
    assert "not counted from" not in wide


@pytest.mark.parametrize(
    "words_shown",
    [
        "training · up 1 min 5 s",
        "connected, heard 0.40 s ago",
        "8 of 8 fragments held; fetched 5 from learners, 3 from the syncer; 1",
        "running on cpu, micro-batch 8",
        "4,100 tokens/s",
        "40 pushes, 39 merged; 1 late",
        "3 local steps overwritten",
        "note: The text here differs from the project's.",
    ],
)
def test_a_learner_tells_this(words_shown):
    assert words_shown in shown(NODE)


@pytest.mark.parametrize(
    ("is_sharded", "says"),
    [(False, "2 ranks, "), (True, "2 ranks with a part of the model each, ")],
)
def test_a_learner_of_several_devices_says_what_they_hold(is_sharded, says):
    pair = msgspec.structs.replace(NODE, ranks=2, is_sharded=is_sharded)
    assert f"on cpu, {says}micro-batch 8" in shown(pair, width=120)


@pytest.mark.parametrize(("precision", "says"), [("bf16", "on cpu in bf16, "), ("f32", "on cpu, ")])
def test_a_learner_says_where_it_computes_in_bf16(precision, says):
    assert says in shown(msgspec.structs.replace(NODE, precision=precision))


def test_the_time_left_follows_the_rate_that_was_watched():
    assert "10 min left" in shown(SYNCER, rates={"k": 11_800_000 / 600})
    assert "47 min 58 s" in shown(SYNCER), "what the learners report, without a watched rate"
    assert "standing still" in shown(SYNCER, rates={"k": 0.0})
    ended = msgspec.structs.replace(SYNCER, swarm=SwarmStatus(tokens=20_000_000, is_ended=True))
    assert "100 %" in shown(ended)
    assert "done" in shown(ended)


def test_a_download_is_told_with_its_rate_and_the_time_left():
    download = DownloadStatus(
        done_bytes=42_000_000,
        total_bytes=100_000_000,
        rate=8.1e6,
        learners=3,
        is_from_syncer=False,
        left_s=7.2,
    )
    joiner = msgspec.structs.replace(
        NODE, download=download, weights_sources={"ab": 30_000_000, "cd": 12_000_000}
    )
    text = " ".join(shown(joiner, width=120).split())
    assert "fetching 42 % of 100 MB at 8.10 MB/s, 7.2 s left" in text
    assert "(42.0 MB from 2 hosts)" in text


def test_a_daemon_that_knows_nothing_yet_is_shown_all_the_same():
    bare = SyncerStatus(
        key="k",
        name="",
        pid=1,
        version="",
        uptime_s=0.0,
        phase="starting",
        sentence="",
        join_link="",
        project=ProjectStatus(
            id="", name="", fragments=0, parameters=0, token_budget=0, local_steps=0, quorum=1
        ),
        swarm=SwarmStatus(),
        network=NetworkStatus(),
    )
    text = shown(bare)
    assert "0 learners here; phase starting." in text
    assert "No learner has joined yet." in text
    assert "not measured yet" in text


def test_names_from_other_machines_cannot_move_the_cursor_or_write_markup():
    evil = msgspec.structs.replace(HERON, name="\x1b[31mred", device="[bold]x\n\x07")
    text = shown(msgspec.structs.replace(SYNCER, peers=[evil]), width=120)
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "?[31mred" in text
    assert "[bold]x??" in text


def test_many_learners_are_cut_off_with_their_number():
    peers = [msgspec.structs.replace(HERON, name=f"learner-{at:04d}") for at in range(1000)]
    text = shown(msgspec.structs.replace(SYNCER, peers=peers))
    assert "… 976 more" in text
    assert len(text.splitlines()) < 80


def test_nobody_and_several():
    assert NOBODY in shown()
    text = shown(SYNCER, NODE)
    assert "syncer wren" in text
    assert "learner osprey" in text


def test_the_join_link_is_given_whole_so_that_it_can_be_copied():
    assert invitations([NODE, SYNCER]) == [f"shoal join {LINK}"]
    assert "xxxx" not in shown(SYNCER)


@pytest.mark.parametrize(
    ("rule", "verb"), [("invite", "shoal invite"), ("list", "shoal project allow")]
)
def test_a_project_that_is_not_open_says_what_a_newcomer_needs(rule, verb):
    closed = msgspec.structs.replace(SYNCER.project, admission=rule)
    (said,) = invitations([msgspec.structs.replace(SYNCER, project=closed)])
    link, needed = said.splitlines()
    assert link == f"shoal join {LINK}"
    assert verb in needed


def test_a_rate_needs_a_few_seconds_and_forgets_what_is_old():
    rates = Rates()

    def seen(tokens: int, now_s: float) -> float | None:
        rates.observe([msgspec.structs.replace(SYNCER, swarm=SwarmStatus(tokens=tokens))], now_s)
        return rates.tokens_per_s.get("k")

    assert seen(0, 0.0) is None
    assert seen(1000, 1.0) is None
    assert seen(5000, 5.0) == 1000.0
    assert seen(5000, 65.0) == 0.0
    assert seen(100, 66.0) is None, "fewer tokens than before: the daemon began anew"


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (fmt.count(9_999), "9,999"),
        (fmt.count(12_345), "12.3 k"),
        (fmt.count(999_999), "1000 k"),
        (fmt.count(20_000_000), "20.0 M"),
        (fmt.bytes_of(999), "999 B"),
        (fmt.bytes_of(1_500), "1.50 kB"),
        (fmt.duration(0.42), "0.42 s"),
        (fmt.duration(59.9), "1 min"),
        (fmt.duration(9660), "2 h 41 min"),
        (fmt.duration(float("inf")), "unknown"),
        (fmt.percent(0.9999), "99 %"),
        (fmt.percent(1.0), "100 %"),
        (fmt.bar(0.5, 4), "██░░"),
        (fmt.sparkline([1.0], 8), ""),
        (fmt.sparkline([0.0, 1.0, float("nan"), 2.0], 8), "▁▅█"),
        (fmt.sparkline([1.0, 1.0], 8), "▁▁"),
        (fmt.plural(1, "learner"), "1 learner"),
        (fmt.plural(2, "push", "pushes"), "2 pushes"),
        (fmt.enumerate_names(list("abcdefg")), "a, b, c, d and 3 others"),
        (fmt.tally({"late": 1, "stale": 3, "none": 0}), "3 stale, 1 late"),
    ],
)
def test_numbers_in_words(made, text):
    assert made == text


@pytest.mark.parametrize(
    ("network", "words_shown"),
    [
        (NetworkStatus(state="up"), "not known yet"),
        (NetworkStatus(state="up", reach="direct"), "others can dial this host"),
        (NetworkStatus(state="up", reach="relayed"), "relayed: nobody outside can dial this host"),
        (NetworkStatus(state="up", reach="outward"), "not at all: this host can only dial out"),
        (
            NetworkStatus(state="up", reach="direct", carrying=1, carried_bytes=2_000_000),
            "carries 1 stream for others, 2.00 MB so far",
        ),
        (
            NetworkStatus(state="up", split="The swarm is split: 2 hosts here."),
            "The swarm is split",
        ),
    ],
)
def test_how_others_reach_a_host_is_told(network, words_shown):
    for status in (NODE, SYNCER):
        assert words_shown in shown(msgspec.structs.replace(status, network=network), width=140)


def at_pace(still_s, gap_s, **more):
    """A syncer whose learners train, so long after a merge."""
    pace = PaceStatus(still_s=still_s, gap_s=gap_s, **more)
    swarm = msgspec.structs.replace(SWARM, pace=pace)
    return msgspec.structs.replace(
        SYNCER, swarm=swarm, sentence="All is well. 1 learner training.", peers=[HERON], rounds=[]
    )


def verdict_on(status):
    return judge_all(Frame(at_s=1e9, statuses=(status,)))[status.key].text


@pytest.mark.parametrize(
    ("still_s", "gap_s", "word"),
    [
        (20.0, 13.0, "WELL"),
        (20.0, None, "WELL"),
        (20.0, 0.5, "CARE"),
        (100.0, 13.0, "CARE"),
        (100.0, 0.5, "TROUBLE"),
        (200.0, 60.0, "WELL"),
    ],
)
def test_what_is_usual_for_this_swarm_is_no_alarm_to_whoever_just_came(still_s, gap_s, word):
    status = msgspec.structs.replace(
        at_pace(still_s, gap_s), project=msgspec.structs.replace(PROJECT, quorum=1)
    )
    assert verdict_on(status).startswith(f"[{word}]")


def test_status_says_what_the_screen_says():
    seat = SeatStatus(
        role="leading",
        epoch=0,
        term=3,
        leader="k",
        voters=[
            VoterRow(key="k", role="syncer", priority=50, is_here=True, is_leader=True),
            VoterRow(key="w", role="witness", priority=0, is_here=False, heard_s=40.0),
            VoterRow(key="s", role="syncer", priority=40, is_here=False, heard_s=40.0),
        ],
    )
    status = msgspec.structs.replace(at_pace(1.0, 1.0), seat=seat)
    said = verdict_on(status)
    assert "All is well" not in said
    assert "2 of 3 voters not here" in said
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(render([status], width=100, verdicts={status.key: said}))
    shown = " ".join(console.export_text().split())
    assert " ".join(said.split()) in shown
    assert "All is well" not in shown


def test_the_time_left_is_a_range_or_not_known_yet():
    assert "20 to 28 min left" in status_rows.progress(
        PROJECT, at_pace(1.0, 1.0, left_s=(1200.0, 1700.0)).swarm
    )
    assert "time left not known yet" in status_rows.progress(PROJECT, at_pace(1.0, None).swarm)
    stopped = at_pace(14.0, 1.0, left_s=(1200.0, 1700.0)).swarm
    assert status_rows.progress(PROJECT, stopped).endswith("· standing still")
    assert fmt.between(3.0, 8.0) == "3 to 8 s"
    assert fmt.between(9000.0, 12_000.0) == "2.5 to 3.3 h"
    assert fmt.between(3600.0 * 20, 3600.0 * 26) == "20 to 26 h"
    assert fmt.between(86_400.0 * 3, 86_400.0 * 4) == "3.0 to 4.0 d"


# One verdict for status, screens and programs


def led_by(*voters, **changes):
    """A syncer that leads this many voters, each with the seconds since it was heard."""
    rows = [VoterRow(key="k", role="syncer", priority=50, is_self=True, is_here=True, heard_s=0.0)]
    rows += [
        VoterRow(key=f"v{at}", role="syncer", priority=40, is_here=True, heard_s=heard_s)
        for at, heard_s in enumerate(voters)
    ]
    seat = SeatStatus(role="leading", epoch=0, term=3, leader="k", standbys=1, voters=rows)
    status = at_pace(1.0, 1.0)
    status = msgspec.structs.replace(
        status, seat=seat, project=msgspec.structs.replace(PROJECT, quorum=1)
    )
    return msgspec.structs.replace(status, **changes)


def test_voters_on_a_dead_line_are_told_within_five_seconds_and_no_majority_is_trouble():
    assert verdict_on(led_by(4.9, 4.9)).startswith("[WELL] All is well.")
    one = verdict_on(led_by(5.1, 0.5))
    assert one.startswith("[CARE] 1 of 3 voters not here: syncer v0 (last heard 5 s ago)")
    assert "All is well" not in one
    both = verdict_on(led_by(5.1, 5.1))
    assert both.startswith("[TROUBLE] 2 of 3 voters not here")
    assert "an election needs 2, 1 is here" in both
    assert "All is well" not in both


def test_a_learner_that_says_nothing_is_told_within_five_seconds_and_is_not_lost_yet():
    healthy = msgspec.structs.replace(HERON, heard_s=limits.HEARTBEAT_S + 0.9)
    assert verdict_on(led_by(0.5, peers=[healthy])).startswith("[WELL]")
    quiet = msgspec.structs.replace(HERON, heard_s=limits.QUIET_AFTER_S + 0.1)
    said = verdict_on(led_by(0.5, peers=[quiet]))
    assert said == "[CARE] heron has said nothing for 5 s. 1 learner training."


def test_a_daemon_that_does_not_answer_is_part_of_every_verdict():
    frame = Frame(
        at_s=1e9,
        statuses=(led_by(0.5),),
        daemons=(
            Attached(label="syncer default", key=SYNCER.key, since_s=1e9, answered_s=1e9),
            Attached(label="learner osprey", since_s=1e9, trouble="No daemon answers."),
        ),
    )
    said = judge_all(frame)[SYNCER.key]
    assert said.text == "[CARE] The learner osprey does not answer. 1 learner training."


def test_a_daemon_on_its_way_into_the_swarm_is_said_to_be_that():
    away = "not in its swarm yet: nobody answers"
    learner = Attached(label="learner osprey", since_s=1e9, trouble=away)
    alone = Frame(at_s=1e9, statuses=(), daemons=(learner,))
    said = judge(Scene(frame=alone, history=History()))
    assert said.text == "[TROUBLE] The learner osprey is not in its swarm yet: nobody answers"
    syncer = Attached(label="syncer default", key=SYNCER.key, since_s=1e9, answered_s=1e9)
    both = Frame(at_s=1e9, statuses=(led_by(0.5),), daemons=(syncer, learner))
    said = judge_all(both)[SYNCER.key]
    assert said.text == "[CARE] The learner osprey is not in its swarm yet. 1 learner training."
