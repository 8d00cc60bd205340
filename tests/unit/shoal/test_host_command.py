"""`shoal host`: what it makes of the text that it is given, up to the syncer's start."""

from __future__ import annotations

import json
import os

import pytest
from pyarrow import Table, parquet

from host.files.signed_project import read_signed
from protocol.errors import UserError
from shoal.__main__ import main
from shoal.machine import host_command
from shoal.machine.host_command import source_of
from shoal.project.project_file import read_file
from tests.support.base_folder import base_folder
from tests.support.chats import CHATML, write_chats
from tests.support.tiny_project import write_text


@pytest.fixture
def started(tmp_path, monkeypatch):
    """What syncers were started with; they are not."""
    monkeypatch.setenv("SHOAL_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    found = []

    def start(path, **given):
        found.append((path, given))
        return 0

    monkeypatch.setattr(host_command, "run_syncer", start)
    return found


@pytest.fixture
def texts(tmp_path):
    folder = tmp_path / "letters"
    folder.mkdir()
    for number in range(20):
        write_text(folder / f"{number}.txt", chars=10_000, seed=number)
    return folder


def test_a_folder_becomes_a_signed_project_with_its_text_published(
    started, texts, tmp_path, capsys
):
    assert main(["host", "letters", "--name", "My Letters"]) == 0
    ((path, given),) = started
    assert path.name == "my-letters.toml"
    assert (given["port"], given["home"].root) == (4100, tmp_path / "home")
    file = read_file(tmp_path / "my-letters.toml")
    assert (file.name, file.data.source, file.data.location) == ("My Letters", "folder", str(texts))
    genesis = read_signed(tmp_path / "my-letters.shoal").genesis
    assert genesis.published is not None
    said = capsys.readouterr().out
    assert "wrote my-letters.toml, with every setting explained" in said
    assert "parameters  8" in said


def test_rows_of_text_become_a_signed_project_by_the_field_that_they_have(
    started, tmp_path, capsys
):
    rows = [json.dumps({"content": f"letter {number} " * 200}) for number in range(40)]
    (tmp_path / "rows.jsonl").write_text("\n".join([*rows, '{"content": ""}']))
    assert main(["host", "rows.jsonl", "--name", "rows"]) == 0
    data = read_signed(tmp_path / "rows.shoal").genesis.data
    assert (data.source, data.text_field) == ("jsonl", "content")
    assert "1 of 41 texts left out: rows.jsonl line 41" in capsys.readouterr().out


def test_what_it_is_for_and_where_the_page_is(started, texts, tmp_path, capsys):
    wishes = ["--about", "Letters, so that they last.", "--page", "127.0.0.1:8080"]
    assert main(["host", "letters", "--name", "mine", *wishes]) == 0
    assert read_signed(tmp_path / "mine.shoal").charter.about == "Letters, so that they last."
    assert started[0][1]["page"] == "127.0.0.1:8080"
    assert main(["host", "letters", "--name", "mine", *wishes]) == 0
    assert "change page.about in mine.toml" in capsys.readouterr().out


def test_run_again_it_goes_on_with_what_is_there(started, texts, tmp_path, capsys):
    assert main(["host", "letters", "--name", "mine"]) == 0
    before = (tmp_path / "mine.toml").read_text()
    signed = read_signed(tmp_path / "mine.shoal").id
    assert main(["host", "letters", "--name", "mine", "--port", "4200"]) == 0
    assert "goes on with mine.toml" in capsys.readouterr().out
    assert (tmp_path / "mine.toml").read_text() == before
    assert read_signed(tmp_path / "mine.shoal").id == signed
    assert started[1][1]["port"] == 4200
    (tmp_path / "other").mkdir()
    assert main(["host", "other", "--name", "mine"]) == 2
    assert "is a project on other data" in capsys.readouterr().err
    assert len(started) == 2


def test_of_few_texts_more_are_held_out(started, tmp_path, capsys):
    folder = tmp_path / "few"
    folder.mkdir()
    for number in range(3):
        write_text(folder / f"{number}.txt", chars=8_000, seed=number)
    assert main(["host", "few", "--name", "few"]) == 0
    assert "of the texts are held out" in capsys.readouterr().out
    assert read_file(tmp_path / "few.toml").data.heldout_frac > 0.02


def test_a_folder_with_one_text_is_that_text(started, tmp_path, capsys):
    folder = tmp_path / "novel"
    folder.mkdir()
    write_text(folder / "chapters.txt", chars=60_000)
    for _ in range(2):
        assert main(["host", "novel", "--name", "novel"]) == 0
    data = read_file(tmp_path / "novel.toml").data
    assert (data.source, data.location) == ("file", str(folder / "chapters.txt"))
    assert f"reads {folder / 'chapters.txt'}" in capsys.readouterr().out


def test_what_may_not_leave_this_machine_does_not(started, texts, tmp_path):
    assert main(["host", "letters", "--name", "mine", "--private"]) == 0
    assert read_signed(tmp_path / "mine.shoal").genesis.published is None


def test_chats_become_an_adapter_beside_the_model_that_is_named(started, tmp_path, capsys):
    write_chats(tmp_path / "chats")
    assert main(["host", "chats", "--name", "sailor"]) == 2
    assert "Name one: --from FOLDER" in capsys.readouterr().err
    assert not (tmp_path / "sailor.toml").exists()
    base_folder(tmp_path / "model", template=CHATML)
    assert main(["host", "chats", "--name", "sailor", "--from", "model"]) == 0
    genesis = read_signed(tmp_path / "sailor.shoal").genesis
    assert genesis.adapter is not None
    assert (genesis.data.source, genesis.data.tokenizer) == ("chats", "base")
    assert genesis.published is not None
    assert main(["host", "chats", "--name", "whole", "--from", "model", "--whole"]) == 0
    genesis = read_signed(tmp_path / "whole.shoal").genesis
    assert genesis.adapter is None
    assert genesis.base is not None


def test_a_text_that_is_too_short_leaves_a_file_to_correct(started, tmp_path, capsys):
    (tmp_path / "short.txt").write_text("Hello.\n")
    assert main(["host", "short.txt", "--name", "short"]) == 2
    assert "tokens" in capsys.readouterr().err
    assert started == []


def test_what_a_path_holds_is_seen(tmp_path):
    (tmp_path / "a.txt").write_text("x")
    assert source_of(tmp_path / "a.txt") == "file"
    for key, kinds in (("text", {"parquet", "jsonl"}), ("messages", {"chats"})):
        rows = [{key: "x" if key == "text" else []}]
        (tmp_path / f"{key}.jsonl").write_text(json.dumps(rows[0]) + "\n")
        parquet.write_table(Table.from_pylist(rows), tmp_path / f"{key}.parquet")
        assert {source_of(one) for one in tmp_path.glob(f"{key}.*")} == kinds
    (tmp_path / "odd.parquet").write_text("x")
    with pytest.raises(UserError, match="cannot be read"):
        source_of(tmp_path / "odd.parquet")
    notes = tmp_path / "notes"
    notes.mkdir()
    (notes / "a.md").write_text("x")
    (notes / "meta.json").write_text(json.dumps({}))
    assert source_of(notes) == "folder"
    (notes / "a.md").rename(notes / "a.py")
    assert source_of(notes) == "folder"
    (notes / "a.py").unlink()
    assert source_of(notes) == "jsonl"


@pytest.mark.parametrize(("name", "says"), [("...", "no letter or digit"), ("x" * 99, "name")])
def test_a_name_that_cannot_be_used_is_said_at_once(started, texts, tmp_path, name, says, capsys):
    assert main(["host", "letters", "--name", name]) == 2
    assert says in capsys.readouterr().err
    assert not list(tmp_path.glob("*.toml"))


def test_a_path_that_no_project_file_can_name_is_refused_in_words(started, tmp_path, capsys):
    place = tmp_path / os.fsdecode(b"caf\xe9")
    place.mkdir()
    (place / "a.txt").write_text("some text " * 100)
    assert main(["host", str(place), "--name", "Coffee"]) == 2
    assert "no text in UTF-8" in capsys.readouterr().err


def test_nothing_there_is_said(started, capsys):
    assert main(["host", "nowhere", "--name", "mine"]) == 2
    assert "neither a file nor a folder" in capsys.readouterr().err
