"""A project on chats: what signing says of them, and doctor and join of a volunteer's."""

from __future__ import annotations

import json
import re

import msgspec
import pytest

from host.files.home import Home
from host.files.local_settings import Settings
from host.files.signed_project import read_signed
from host.join_link import JoinLink
from shoal.__main__ import main
from shoal.doctor import joining, suitability
from shoal.doctor.joining import Wishes
from shoal.project.template import create_text
from tests.support.base_folder import base_folder
from tests.support.chats import CHATML, write_chats

WANTED = {
    "source": '"chats"',
    "location": '"chats"',
    "heldout_frac": "0.2",
    "sequence_tokens": "64",
    "tokens": "100_000",
}


@pytest.fixture
def home(tmp_path, monkeypatch) -> Home:
    monkeypatch.setenv("SHOAL_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    write_chats(tmp_path / "chats")
    base_folder(tmp_path / "model", template=CHATML)
    return Home()


def sign(tmp_path, **changes):
    assert main(["project", "create", "--from", "model", "--adapter"]) == 0
    path, wanted = tmp_path / "project.toml", {**WANTED, **changes}
    lines = []
    for line in path.read_text().splitlines():
        key = line.partition(" = ")[0]
        lines.append(f"{key} = {wanted[key]}" if key in wanted else line)
    path.write_text("\n".join(lines))
    return main(["project", "sign", "project.toml"])


def test_signing_says_what_was_left_out(home, tmp_path, capsys):
    with (tmp_path / "chats" / "ada.jsonl").open("a") as handle:
        handle.write("hello\n")
    assert sign(tmp_path) == 0
    said = capsys.readouterr().out
    assert "chats       1 of 121 chats left out: ada.jsonl line 61: " in said
    data = read_signed(tmp_path / "project.shoal").genesis.data
    assert (data.source, data.location) == ("chats", str(tmp_path / "chats"))
    assert data.blocks > 50


def test_a_tokenizer_without_a_chat_template_cannot_be_signed(home, tmp_path, capsys):
    assert sign(tmp_path, tokenizer='"bytes"') == 2
    assert "'bytes' has no chat template" in capsys.readouterr().err


def test_a_file_will_do_and_a_missing_one_is_said(home, tmp_path, capsys):
    assert sign(tmp_path, location='"chats/none.jsonl"') == 2
    assert "There is no folder" in capsys.readouterr().err
    (tmp_path / "project.toml").unlink()
    assert sign(tmp_path, location='"chats/ada.jsonl"') == 0


@pytest.fixture
def signed(home, tmp_path):
    assert sign(tmp_path) == 0
    return read_signed(tmp_path / "project.shoal")


def spoilt(tmp_path, lines):
    path = tmp_path / "mine.jsonl"
    path.write_text("\n".join(lines))
    return str(path)


GOOD = json.dumps(
    {"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]}
)


def looked_at(home, signed, data, genesis=None):
    """What the doctor says of a volunteer's text."""
    link = JoinLink(signed.id, 100, "tiny", ("/ip4/203.0.113.7/tcp/4100",))
    found = joining.refusals(
        home, link, genesis or signed.genesis, signed.charter, Wishes(data=data)
    )
    return {one.topic: one for one in found}


@pytest.mark.parametrize(
    ("lines", "verdict", "words"),
    [
        ([GOOD, GOOD], "good", "2 chats in .* can be used"),
        ([GOOD, "{}"], "care", "1 of 2 chats left out: mine.jsonl line 2: has no list"),
        (["{}"], "trouble", "No chat in .* can be used"),
    ],
)
def test_the_doctor_looks_at_the_chats_of_a_volunteer(
    home, signed, tmp_path, lines, verdict, words
):
    chats = looked_at(home, signed, spoilt(tmp_path, lines))["chats"]
    assert chats.verdict == verdict
    assert re.search(words, chats.says)


def test_a_volunteer_who_names_no_chats_hears_what_to_say(home, signed):
    found = looked_at(Home(home.root / "elsewhere"), signed, None)
    assert "chats" not in found
    assert found["text"].verdict == "trouble"
    assert "--data PATH" in found["text"].remedy


def test_joining_looks_at_them_alike(home, signed, tmp_path, monkeypatch):
    def judged(data):
        judge = suitability.judge_of(home, signed.id, Settings(), data)
        return None if judge is None else judge(signed.genesis, signed.charter)

    said = judged(spoilt(tmp_path, ["{}"]))
    assert said.startswith("This machine does not suit ")
    assert "mine.jsonl line 1: has no list of messages" in said
    assert judged(spoilt(tmp_path, [GOOD])) == ""
    assert judged(str(tmp_path / "mine.jsonl")) is None, "it is not asked again"
    assert judged(str(tmp_path / "nowhere")) is not None


def test_other_projects_ask_nothing_about_chats(home, signed, tmp_path):
    data = msgspec.structs.replace(signed.genesis.data, source="folder")
    other = msgspec.structs.replace(signed.genesis, data=data)
    assert "chats" not in looked_at(home, signed, str(tmp_path), other)


def test_documents_of_a_sequence_may_be_read_apart(home, tmp_path, capsys):
    assert sign(tmp_path, documents='"separate"') == 0
    assert read_signed(tmp_path / "project.shoal").genesis.documents == "separate"
    assert main(["project", "show", "project.shoal"]) == 0
    assert "each document read by itself" in capsys.readouterr().out
    (tmp_path / "project.toml").unlink()
    assert sign(tmp_path, documents='"apart"') == 2
    assert "data.documents" in capsys.readouterr().err


def test_a_model_that_cannot_read_documents_apart_is_refused(home, tmp_path, capsys):
    project = create_text(
        "flat",
        changes={
            "model.architecture": "BloomForCausalLM",
            "data.documents": "separate",
            "model.config.n_layer": 1,
            "model.config.n_head": 2,
            "model.config.hidden_size": 32,
        },
    )
    names = ("vocab_size", "hidden_size", "n_layer", "n_head")
    kept, in_config = [], False
    for line in project.splitlines():
        if line.startswith("["):
            in_config = line == "[model.config]"
        if not in_config or line.startswith(("[", *names)):
            kept.append(line)
    (tmp_path / "flat.toml").write_text("\n".join(kept))
    assert main(["project", "sign", "flat.toml"]) == 2
    assert (
        "BloomForCausalLM cannot read the documents of a sequence apart" in capsys.readouterr().err
    )
