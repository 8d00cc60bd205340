"""`hub:OWNER/NAME@REVISION`, against a hub on loopback, each verb as a process of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from host.files.signed_project import read_signed
from tests.support.base_folder import base_folder
from tests.support.hub_stand_in import COMMIT, hub, python_at, shoal_at
from tests.support.tiny_project import write_text

ROOT = Path(__file__).parents[3]
NAME = "friends/tiny-llama"


@pytest.fixture
def place(tmp_path):
    folder = base_folder(tmp_path / "published")
    (folder / "modeling_evil.py").write_text("raise SystemExit('it ran')")
    (folder / "pytorch_model.bin").write_bytes(b"a pickle")
    write_text(tmp_path / "text.txt")
    return tmp_path


@pytest.mark.slow
def test_a_branch_becomes_its_commit_and_only_data_is_fetched(place):
    with hub(NAME, place / "published") as served:
        made = shoal_at(served.endpoint, place, "project", "create", "--from", f"hub:{NAME}@main")
        assert made.returncode == 0, made.stderr
        path = place / "project.toml"
        text = path.read_text()
        assert f'from = "hub:{NAME}@{COMMIT}"' in text
        text = text.replace('source = "python-stdlib"', 'source = "file"')
        text = text.replace('location = ""', 'location = "text.txt"')
        path.write_text(text.replace("heldout_frac = 0.02", "heldout_frac = 0.2"))
        signed = shoal_at(served.endpoint, place, "project", "sign", "project.toml")
        assert signed.returncode == 0, signed.stderr
        fetched = {one.rpartition("/")[2] for one in served.asked if "/resolve/" in one}
    assert {"config.json", "tokenizer.json", "model.safetensors.index.json"} <= fetched
    assert not {"modeling_evil.py", "pytorch_model.bin"} & fetched
    genesis = read_signed(place / "project.shoal").genesis
    assert genesis.base is not None
    assert genesis.base.source == f"hub:{NAME}@{COMMIT}"
    assert genesis.data.tokenizer == "base"

    # The revision is on this machine now; the hub may be away.
    again = shoal_at("http://127.0.0.1:9", place, "project", "sign", "project.toml")
    assert again.returncode == 0, again.stderr
    assert "unchanged, still signed as" in again.stdout


@pytest.mark.slow
def test_a_repository_that_is_not_there_is_one_line_with_what_to_do(place):
    with hub(NAME, place / "published") as served:
        wrong = "hub:friends/nobody@main"
        made = shoal_at(served.endpoint, place, "project", "create", "--from", wrong)
    assert made.returncode == 2
    assert made.stderr.startswith(f"error: {wrong} cannot be fetched")
    assert len(made.stderr.splitlines()) == 1, made.stderr
    assert "hf auth login" in made.stderr


PIN = """
from pathlib import Path
from node.trainer.text.tokenizer_files import pin_tokenizer
spec = pin_tokenizer("friends/tiny-llama", None, Path("cache"))
print(spec.end_of_text, *sorted(one.name for one in spec.files))
"""


def test_a_tokenizer_of_the_hub_is_pinned_with_its_settings(place):
    with hub(NAME, place / "published") as served:
        done = python_at(served.endpoint, place, "-c", PIN)
        fetched = {one.rpartition("/")[2] for one in served.asked if "/resolve/" in one}
    assert done.returncode == 0, done.stderr
    names = ["chat_template.jinja", "tokenizer.json", "tokenizer_config.json"]
    assert done.stdout.split() == ["<|im_end|>", *names]
    assert fetched == set(names)
