"""`shoal project create --from`, and what signing makes of it."""

from __future__ import annotations

import pytest

from host.files import keystore
from host.files.home import Home
from host.files.pinned_files import PinnedFiles
from host.files.signed_project import read_signed, seal_project, write_signed
from protocol.project import encode, project_id
from shoal.__main__ import main
from shoal.project.file_commands import keep_copy
from shoal.project.project_file import make_charter, make_genesis, read_file
from tests.support.base_folder import base_folder, edit_config
from tests.support.tiny_project import write_text


@pytest.fixture
def home(tmp_path, monkeypatch) -> Home:
    monkeypatch.setenv("SHOAL_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    write_text(tmp_path / "text.txt")
    base_folder(tmp_path / "model")
    return Home()


def edited(path, **changes):
    text = path.read_text()
    for key, value in changes.items():
        lines = [line for line in text.splitlines() if line.startswith(f"{key} = ")]
        text = text.replace(lines[0], f"{key} = {value}", 1)
    path.write_text(text)


def created(tmp_path):
    assert main(["project", "create", "--from", "model"]) == 0
    path = tmp_path / "project.toml"
    edited(path, source='"file"', location='"text.txt"', heldout_frac="0.2", tokens="100_000")
    return path


def test_a_project_file_is_filled_in_and_says_what_it_asks_of_a_volunteer(home, tmp_path, capsys):
    path = created(tmp_path)
    said = capsys.readouterr().out
    for words in ("LlamaForCausalLM, ", "parameters in 20 tensors", "to join; then", "memory  "):
        assert words in said, said
    file = read_file(path)
    assert file.base == str(tmp_path / "model")
    assert (file.architecture, file.config) == ("", {})
    assert file.data.sequence_tokens == 64  # As many as the model has positions.
    assert main(["project", "show", "project.toml"]) == 0
    assert str(tmp_path / "model") in capsys.readouterr().out


def test_signing_pins_the_weights_and_remembers_where_they_lie(home, tmp_path, capsys):
    created(tmp_path)
    assert main(["project", "sign", "project.toml"]) == 0
    project = read_signed(tmp_path / "project.shoal")
    base = project.genesis.base
    assert base is not None
    assert base.source == "folder:model"
    assert str(tmp_path) not in str(base)
    assert len(base.tensors) == len(project.genesis.model.tensors)
    assert home.base_note(project.id).read_text() == str(tmp_path / "model")
    capsys.readouterr()
    assert main(["project", "show", "project.shoal"]) == 0
    assert "folder:model" in capsys.readouterr().out
    assert main(["project", "sign", "project.toml"]) == 0
    assert "unchanged, still signed as" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('from = "hub:owner/name"', "must be hub:OWNER/NAME@REVISION"),
        ('from = "hub:owner/../x@main"', "must be hub:OWNER/NAME@REVISION"),
        ('from = "hub:name@main"', "must be hub:OWNER/NAME@REVISION"),
        ('from = ""', "or the path of a folder"),
        ("from = 3", "or the path of a folder"),
        ('from = "model"\narchitecture = "LlamaForCausalLM"', "architecture must be left out"),
        ('from = "nowhere"', "no folder"),
    ],
)
def test_what_cannot_be_started_from_is_said(home, tmp_path, capsys, line, words):
    path = created(tmp_path)
    text = path.read_text()
    (former,) = [one for one in text.splitlines() if one.startswith("from = ")]
    path.write_text(text.replace(former, line))
    capsys.readouterr()
    assert main(["project", "sign", "project.toml"]) == 2
    assert words in capsys.readouterr().err


def test_a_folder_that_no_project_can_start_from_leaves_no_file(home, tmp_path, capsys):
    edit_config(tmp_path / "model", model_type="xlnet")
    assert main(["project", "create", "--from", "model"]) == 2
    assert "both directions" in capsys.readouterr().err
    assert not (tmp_path / "project.toml").exists()


def test_values_that_are_left_out_are_named(home, tmp_path, capsys):
    edit_config(tmp_path / "model", auto_map={"AutoModel": "x.Y"})
    assert main(["project", "create", "--from", "model"]) == 0
    assert "left out    of its configuration: auto_map" in capsys.readouterr().out


def with_tokenizer_file(home, tmp_path):
    """A project without a base model, whose tokenizer is a file beside it."""
    assert main(["project", "create"]) == 0
    path = tmp_path / "project.toml"
    edited(path, source='"file"', location='"text.txt"', heldout_frac="0.2", tokens="100_000")
    edited(path, tokenizer='"model/tokenizer.json"', vocab_size="300")
    return path


def test_a_tokenizer_file_is_pinned_so_that_volunteers_need_no_copy(home, tmp_path):
    with_tokenizer_file(home, tmp_path)
    assert main(["project", "sign", "project.toml"]) == 0
    genesis = read_signed(tmp_path / "project.shoal").genesis
    assert genesis.base is None
    assert genesis.tokenizer is not None
    assert genesis.tokenizer.end_of_text == "<|im_end|>"


def test_a_project_signed_before_tokenizers_were_pinned_keeps_its_id(home, tmp_path, capsys):
    path = with_tokenizer_file(home, tmp_path)
    file, owner = read_file(path), keystore.load_or_create(home.identity("owner"))
    before = make_genesis(file, owner=owner.key, data_cache=home.data_cache(), pins="nothing")
    here = keystore.load_or_create(home.identity("syncer")).key
    project = project_id(encode(before))
    charter = make_charter(file, project=project, this_host=here, former=None)
    write_signed(tmp_path / "project.shoal", seal_project(before, charter, owner))
    edited(path, learners="100")
    assert main(["project", "sign", "project.toml"]) == 0
    signed = read_signed(tmp_path / "project.shoal")
    assert (signed.id, signed.charter.revision) == (project, 2)
    edited(path, name='"another"')
    assert main(["project", "sign", "project.toml"]) == 0
    assert read_signed(tmp_path / "project.shoal").genesis.tokenizer is not None


def test_a_project_signed_before_generation_settings_were_pinned_keeps_its_id(home, tmp_path):
    assert main(["project", "create", "--from", "model"]) == 0
    path = tmp_path / "project.toml"
    edited(path, source='"file"', location='"text.txt"', heldout_frac="0.2", tokens="100_000")
    file, owner = read_file(path), keystore.load_or_create(home.identity("owner"))
    cache = home.data_cache()
    before = make_genesis(file, owner=owner.key, data_cache=cache, pins="tokenizer")
    assert "generation_config.json" not in {one.name for one in before.tokenizer.files}
    here = keystore.load_or_create(home.identity("syncer")).key
    charter = make_charter(file, project=project_id(encode(before)), this_host=here, former=None)
    write_signed(tmp_path / "project.shoal", seal_project(before, charter, owner))
    assert main(["project", "sign", "project.toml"]) == 0
    assert read_signed(tmp_path / "project.shoal").genesis == before
    (tmp_path / "project.shoal").unlink()
    assert main(["project", "sign", "project.toml"]) == 0
    pinned = read_signed(tmp_path / "project.shoal").genesis.tokenizer.files
    assert "generation_config.json" in {one.name for one in pinned}


def test_a_syncer_elsewhere_has_the_tokenizer_from_the_signed_project(home, tmp_path):
    with_tokenizer_file(home, tmp_path)
    assert main(["project", "sign", "project.toml"]) == 0
    path, other = tmp_path / "project.shoal", Home(tmp_path / "elsewhere")
    spec = read_signed(path).genesis.tokenizer
    assert main(["project", "set", str(path), "rounds.quorum=2"]) == 0
    assert read_signed(path).charter.rounds.quorum == 2
    kept = keep_copy(path, other)
    assert kept.files == ()
    assert PinnedFiles(other.data_cache(), spec).missing() == []
    assert other.project_file(kept.id).stat().st_size < path.stat().st_size
