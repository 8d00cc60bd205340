"""`shoal project create --adapter`, what a file may say of it, and what it asks of a volunteer."""

from __future__ import annotations

import msgspec
import pytest

from host.files.held_base import HeldBase
from host.files.home import Home
from host.files.local_settings import Settings
from host.files.signed_project import read_signed
from node.trainer.tools.trial import try_out
from protocol.errors import UserError
from shoal.__main__ import main
from shoal.doctor import probes, requirements
from shoal.project.project_file import parse
from tests.support.base_folder import base_folder
from tests.support.tiny_project import write_text


@pytest.fixture
def home(tmp_path, monkeypatch) -> Home:
    monkeypatch.setenv("SHOAL_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    write_text(tmp_path / "text.txt")
    base_folder(tmp_path / "model")
    return Home()


def created(tmp_path, **changes):
    assert main(["project", "create", "--from", "model", "--adapter"]) == 0
    path = tmp_path / "project.toml"
    wanted = {
        "source": '"file"',
        "location": '"text.txt"',
        "heldout_frac": "0.2",
        "tokens": "100_000",
        **changes,
    }
    lines = []
    for line in path.read_text().splitlines():
        key = line.partition(" = ")[0]
        lines.append(f"{key} = {wanted.pop(key)}" if key in wanted else line)
    path.write_text("\n".join(lines))
    return path


def test_create_fills_in_the_adapter_and_says_what_it_asks_of_a_volunteer(home, tmp_path, capsys):
    path = created(tmp_path)
    said = capsys.readouterr().out
    for words in (
        "LlamaForCausalLM, 59,376 parameters, frozen as bf16",
        "rank 8 on down_proj, gate_proj, k_proj, o_proj, q_proj, up_proj, v_proj: 13,056 ",
        "disk        of a volunteer: 119 kB",
        "119 kB once, from other hosts, for the frozen model",
    ):
        assert words in said, said
    adapter = parse(path.read_text(), path).adapter
    assert (adapter.rank, adapter.alpha, adapter.trains) == (8, 16.0, "both")


def test_signing_pins_it_and_keeps_the_frozen_model_in_the_home(home, tmp_path, capsys):
    created(tmp_path)
    capsys.readouterr()
    assert main(["project", "sign", "project.toml"]) == 0
    said = capsys.readouterr().out
    assert "parameters  13,056 in 2 fragments" in said
    assert "frozen      59,376 parameters as bf16, 119 kB that a volunteer fetches once" in said
    genesis = read_signed(tmp_path / "project.shoal").genesis
    assert HeldBase(home.data_cache(), genesis).missing() == []
    (tmp_path / "project.toml").touch()
    assert main(["project", "sign", "project.toml"]) == 0
    assert read_signed(tmp_path / "project.shoal").genesis == genesis
    assert main(["project", "show", "project.shoal"]) == 0
    assert "adapter     rank 8, alpha 16" in capsys.readouterr().out


def test_an_adapter_wants_a_published_model(home, capsys):
    assert main(["project", "create", "--adapter"]) == 2
    assert "An adapter stands beside a published model" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('rank = "large"', "model.adapter.rank must be an integer from 1 to 1024"),
        ("rank = 0", "model.adapter.rank must be an integer from 1 to 1024"),
        ("rank = 8\ndora = true", "model.adapter.dora is not a known key"),
        ("rank = 8\npieces = []", "model.adapter.pieces is not a known key"),
    ],
)
def test_what_an_adapter_cannot_be_is_refused_in_words(home, tmp_path, line, words):
    path = created(tmp_path)
    text = "\n".join(
        line if one.startswith("rank = ") else one for one in path.read_text().split("\n")
    )
    with pytest.raises(UserError, match=words):
        parse(text, path)


def test_an_adapter_without_a_published_model_is_refused(home, tmp_path):
    path = created(tmp_path)
    text = path.read_text()
    start = next(one for one in text.splitlines() if one.startswith("from = "))
    with pytest.raises(UserError, match="needs a published model to stand beside"):
        parse(text.replace(start, 'architecture = "LlamaForCausalLM"'), path)


def test_targets_may_be_one_word(home, tmp_path):
    path = created(tmp_path, targets='"all-linear"')
    assert parse(path.read_text(), path).adapter.targets == ("all-linear",)


def test_the_doctor_counts_the_frozen_model_as_it_is_held(home, tmp_path):
    created(tmp_path)
    assert main(["project", "sign", "project.toml"]) == 0
    opened = read_signed(tmp_path / "project.shoal")
    needs = requirements.needs_of(opened.genesis, opened.charter)
    assert needs.parameters == 13_056
    assert needs.training_bytes == 16 * 13_056 + 2 * 59_376
    assert needs.flops_per_token == 6 * 13_056 + 4 * 59_376
    found = requirements.fit(None, needs, 10**9)
    assert "13,056 parameters beside 59,376 frozen ones take 473 KiB" in found.says
    wish = probes.wish_for(
        opened.genesis.model, opened.charter.inner, 32, Settings(), opened.genesis
    )
    assert wish.adapter.frozen == ()
    answer = try_out(msgspec.structs.replace(wish, device="cpu"))
    assert (answer.trouble, answer.parameters) == ("", 13_056)
    assert answer.tokens_per_s > 0
