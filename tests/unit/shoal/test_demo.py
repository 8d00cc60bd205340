"""What the demo decides and shows, without a process; `shoal demo` itself is the other test."""

from __future__ import annotations

import signal
import time
from dataclasses import replace
from pathlib import Path

import msgspec
import psutil
import pytest
from rich.console import Console

from host.files.home import HOME_VARIABLE, TAPES
from protocol.errors import InternalError, UserError
from protocol.status import (
    NetworkStatus,
    NodeStatus,
    PeerRow,
    ProjectStatus,
    SwarmStatus,
    SyncerStatus,
)
from shoal.cli import app
from shoal.demo import command
from shoal.demo.project import CAST, HELDOUT_SEQUENCES, SETTINGS, VICTIM, VOTERS
from shoal.demo.report import (
    NEXT_STEPS,
    Alone,
    Comeback,
    Evidence,
    Report,
    Scored,
    Succession,
    busiest,
    failures,
    held_out_note,
    local_steps,
    make_report,
    rows,
)
from shoal.demo.screen import Screen
from shoal.local_swarm.processes import Deadline, Processes, SwarmFailed, is_alive, shown
from shoal.project import project_file
from shoal.project.template import create_text
from tui.views.demo import DemoNow, LearnerLine, line, render, results

PROMISED = (
    *("eval_loss_start", "eval_loss_end", "eval_loss_alone", "merges", "participants_mean"),
    *("effective_h", "bytes_up_per_param", "bytes_down_per_param", "goodput", "wall_s"),
    "killed_and_rejoined",
)
PROJECT = ProjectStatus(
    id="ab" * 32,
    name="shoal-demo",
    fragments=8,
    parameters=824_576,
    token_budget=2_200_000,
    local_steps=8,
    quorum=2,
)
SWARM = SwarmStatus(
    global_step=505,
    tokens=2_601_000,
    curve=[(0, 0, 5.428), (240, 1_200_000, 2.58), (505, 2_601_000, 2.277)],
    best_loss=2.277,
)
NETWORK = NetworkStatus(state="up", peers=3)
SYNCER = SyncerStatus(
    key="k",
    name="default",
    pid=1,
    version="0.1.0",
    uptime_s=160.0,
    phase="training",
    sentence="All is well. 3 learners training.",
    join_link="shoal:" + "x" * 200,
    project=PROJECT,
    swarm=SWARM,
    network=NETWORK,
    peers=[PeerRow(key="a", name="kestrel", device="cpu", state="training", heard_s=0.1)],
    merges_here=505,
    participants_mean=2.8,
    effective_h=6.8,
    push_bytes=516,
    push_params=1000,
    payload_bytes=516,
    payload_params=1000,
)


def learner(name: str, pid: int, **fields) -> NodeStatus:
    return NodeStatus(
        **{
            **{"key": name, "name": name, "pid": pid, "version": "0.1.0", "uptime_s": 100.0},
            **{"state": "training", "sentence": "Training.", "link": "following"},
            **{"link_detail": "", "heard_s": 0.1, "trainer": "stepping", "trainer_detail": ""},
            **{"trainer_pid": pid + 1, "device": "cpu", "micro_batch": 8, "goodput": 0.98},
            **{"project": PROJECT, "swarm": SWARM, "network": NETWORK},
            **fields,
        }
    )


FIRST_LIFE = learner(VICTIM, 20, local_step=300, merged=230, weights_held=8, weights_from_syncer=8)
SECOND_LIFE = learner(VICTIM, 40, local_step=250, merged=190, weights_held=8, weights_from_peers=8)
LEARNERS = {
    "kestrel": learner("kestrel", 10, local_step=640, merged=490, weights_held=8, loss=2.1),
    VICTIM: SECOND_LIFE,
    "tortoise": learner("tortoise", 30, local_step=150, merged=500, weights_held=8, goodput=1.0),
}
COMEBACK = Comeback(
    name=VICTIM,
    daemon_pid=20,
    trainer_pid=21,
    at_progress=0.456,
    merged_before=230,
    trainer_gone_s=0.02,
    merged_again_s=19.0,
    first_life=FIRST_LIFE,
)

FOLLOWER = msgspec.structs.replace(
    SYNCER, key="e", name="egret", effective_h=7.0, push_params=3000, push_bytes=1548
)
SUCCESSION = Succession(
    leader="heron",
    at_progress=0.66,
    merges_told=320,
    follower="egret",
    elected_s=3.9,
    merges_kept=321,
    merged_again_s=5.0,
)


def evidence(**fields) -> Evidence:
    return Evidence(
        **{
            **{"leaders": [SYNCER, FOLLOWER], "learners": LEARNERS, "wall_s": 215.04},
            **{"comeback": COMEBACK, "succession": SUCCESSION},
            **{"scored": Scored(2.277, "def read(self):\n    return"), "memory_bytes": 3 << 30},
            **{"alone": Alone(2.44, 640, 1_310_720), "version": "0.1.0"},
            **fields,
        }
    )


def with_second_life(**fields) -> Report:
    changed = msgspec.structs.replace(SECOND_LIFE, **fields)
    return make_report(evidence(learners={**LEARNERS, VICTIM: changed}))


def drawn(view, width: int) -> str:
    console = Console(width=width, record=True, force_terminal=False, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(view)
    return console.export_text()


# ------------------------------------------------------------------------------- the project file


def test_the_run_goes_on_while_one_learner_is_away():
    read = project_file.parse(create_text("shoal-demo", changes=SETTINGS), Path("demo.toml"))
    assert read.limits.heldout_sequences == HELDOUT_SEQUENCES
    assert read.rounds.quorum < len(CAST)


def test_a_majority_of_voters_is_left_once_the_leader_is_killed():
    assert len(VOTERS) - 1 > len(VOTERS) / 2
    assert list(VOTERS.values()).count("syncer") > 1


def test_a_setting_that_the_file_lacks_is_a_bug():
    with pytest.raises(InternalError, match=r"rounds\.speed"):
        create_text("x", changes={"rounds.speed": 3})


# ------------------------------------------------------------------------------------- the report


def test_a_good_run_has_every_promised_key_and_no_failure():
    report = make_report(evidence())
    written = msgspec.json.decode(msgspec.json.encode(report))
    assert tuple(written)[: len(PROMISED)] == PROMISED
    assert written["killed_and_rejoined"] is True
    assert written["goodput"] == {"kestrel": 0.98, VICTIM: 0.98, "tortoise": 1.0}
    assert written["bytes_up_per_param"] == pytest.approx(0.516)
    assert written["effective_h"] == pytest.approx((6.8 * 1000 + 7.0 * 3000) / 4000)
    assert written["wall_s"] == 215.0
    assert failures(report) == []


def test_both_lives_of_the_killed_learner_count():
    steps = local_steps(LEARNERS, COMEBACK)
    assert steps == {"kestrel": 640, VICTIM: 550, "tortoise": 150}
    assert busiest(steps) == ("kestrel", 640)
    assert make_report(evidence()).merged_pushes[VICTIM] == 230 + 190


@pytest.mark.parametrize(
    ("report", "sentence"),
    [
        (make_report(evidence(scored=Scored(5.5))), "not below the 5.428 at the start"),
        (make_report(evidence(scored=Scored(2.45))), "not below the 2.440 of one learner alone"),
        (make_report(evidence(comeback=None)), "No learner was killed"),
        (
            make_report(evidence(comeback=replace(COMEBACK, trainer_gone_s=None))),
            "outlived its daemon",
        ),
        (make_report(evidence(learners={**LEARNERS, VICTIM: FIRST_LIFE})), "was not back"),
        (with_second_life(weights_held=0), "was not back"),
        (with_second_life(weights_from_peers=0, weights_from_syncer=8), "without weights from"),
        (with_second_life(weights_held=7), "7 of 8 fragments"),
        (with_second_life(merged=0), "Nothing that osprey trained"),
        (make_report(evidence(succession=None)), "No leader was killed"),
        (
            make_report(evidence(succession=Succession("heron", 0.66, 320))),
            "Nobody was elected after heron was killed",
        ),
        (
            make_report(evidence(succession=replace(SUCCESSION, merges_kept=319))),
            "with 319 merges, and heron had told of 320",
        ),
        (
            make_report(evidence(succession=replace(SUCCESSION, merged_again_s=None))),
            "Nothing was merged after egret was elected",
        ),
    ],
)
def test_each_thing_that_was_not_shown_is_named(report, sentence):
    said = failures(report)
    assert any(sentence in one for one in said), said


def test_a_loss_that_is_no_number_is_a_failure():
    assert len(failures(make_report(evidence(scored=Scored(float("nan")))))) == 2


# -------------------------------------------------------------------------------------- the views


@pytest.mark.parametrize("width", [80, 100])
def test_the_live_view_fits_the_terminal(width):
    now = DemoNow(
        elapsed_s=64.0,
        sentence="All is well. 3 learners training. " * 4,
        why="It matters.",
        syncer=SYNCER,
        learners=[
            LearnerLine(
                one.name, one.note, "killed" if one.name == VICTIM else "", LEARNERS[one.name]
            )
            for one in CAST
        ],
        tokens_per_s=20_000.0,
    )
    text = drawn(render(now, width=width), width)
    assert max(len(one) for one in text.splitlines()) <= width
    assert "1 min 4 s" in text.splitlines()[0]
    assert "5.428 → 2.277" in text
    assert "505, of 2.8 learners" in text
    for one in CAST:
        assert one.name in text
    assert "killed" in text
    assert "3x slower" in text
    assert "It matters." in text


def test_the_view_says_something_before_there_is_a_syncer():
    now = DemoNow(elapsed_s=2.0, sentence="The syncer is starting.")
    assert "The syncer is starting." in drawn(render(now, width=80), 80)
    assert line(now).endswith("The syncer is starting.")


def test_the_plain_line_names_every_learner():
    learners = [
        LearnerLine("kestrel", status=LEARNERS["kestrel"]),
        LearnerLine(VICTIM, "", "killed"),
    ]
    text = line(DemoNow(elapsed_s=64.0, sentence="", syncer=SYNCER, learners=learners))
    assert "held-out 2.277" in text
    assert "kestrel training" in text
    assert f"{VICTIM} killed" in text


def test_the_results_fit_80_columns_and_carry_no_control_characters():
    report = make_report(evidence())
    sample = "def read(self):\n\treturn \x1b[31mred\x07"
    text = drawn(results(rows(report), sample=sample, note=held_out_note()), 80)
    assert max(len(one) for one in text.splitlines()) <= 80
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "yes: osprey, by SIGKILL at 45 %" in text
    assert "egret led 3.9 s later, no merge lost" in " ".join(text.split())
    assert "as many as kestrel" in " ".join(text.split())


@pytest.mark.parametrize("typed", [typed for typed, _ in NEXT_STEPS])
def test_what_to_type_next_is_understood(typed):
    shoal, *words = typed.split()
    assert shoal == "shoal"
    app.check(words)


# -------------------------------------------------------------------------------------- processes


@pytest.fixture
def children(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    made = Processes(tmp_path, Deadline.after(60.0))
    yield made
    made.stop()


PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
print(child.pid, flush=True)
child.wait()
"""


def test_a_child_that_fails_is_named_with_the_end_of_its_log(children):
    (children.folder / "bad.py").write_text("print('on my way'); raise SystemExit('no luck')")
    with pytest.raises(SwarmFailed, match="bad ended unexpectedly with exit code 1") as caught:
        children.finish("bad", "bad", tick=lambda said: None)
    assert caught.value.lines == ["on my way", "no luck"]
    with pytest.raises(SwarmFailed):
        children.check()


@pytest.mark.slow
def test_stopping_leaves_nobody_not_even_whose_parent_was_killed(children):
    (children.folder / "parent.py").write_text(PARENT)
    child = children.start("parent", "parent")
    ends_s = time.monotonic() + 120
    while not child.said().strip() and time.monotonic() < ends_s:
        children.wait("starting")
    children.kill(child)
    assert child.process.returncode == -signal.SIGKILL
    children.check()
    orphan = psutil.Process(int(child.said()))
    assert is_alive(orphan)
    assert len(children.left_behind(patience_s=0.0)) == 1
    assert len(children.stop()) == 1
    orphan.wait(5)
    assert not is_alive(orphan)


def test_the_demo_does_not_wait_for_ever():
    with pytest.raises(SwarmFailed, match=r"waiting for an end after 0\.5 minutes"):
        Deadline(time.monotonic() - 1, 30.0).check("an end")


def test_a_join_link_is_shortened_where_commands_are_shown():
    text = shown("shoal", "join", SYNCER.join_link, "--name", "two words")
    assert text == "shoal join 'shoal:xxxxxxxx…' --name 'two words'"


def test_a_report_that_cannot_be_written_is_noticed_before_anything_starts(tmp_path):
    with pytest.raises(UserError, match="There is no directory"):
        command.run(report=tmp_path / "missing" / "report.json", minutes=None)


def test_the_tapes_outlive_the_demo_and_the_command_is_told(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "own"))
    tape = tmp_path / "demo" / "home" / TAPES / "project" / "syncer-default" / "one.tape"
    tape.parent.mkdir(parents=True)
    tape.write_bytes(b"content")
    former = tmp_path / "own" / "demo" / "newest" / "former.tape"
    former.parent.mkdir(parents=True)
    former.touch()
    screen = Screen()
    with screen.showing():
        command._offer_replay(screen, tmp_path / "demo")
    kept = tmp_path / "own" / "demo" / "newest"
    assert (kept / "project" / "syncer-default" / "one.tape").read_bytes() == b"content"
    assert not former.exists()
    assert f"shoal replay {kept}" in capsys.readouterr().out
