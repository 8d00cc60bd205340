"""`--push`: a folder becomes a repository of a hub on loopback, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from protocol.errors import UserError
from shoal.model import hub_push
from tests.support.hub_stand_in import hub

ROOT = Path(__file__).parents[3]
NAME = "friends/ours"
PUSH = """
import sys
from pathlib import Path
from protocol.errors import ShoalError
from shoal.model import hub_push
try:
    hub_push.check(sys.argv[1])
    print(*hub_push.push(Path("model"), sys.argv[1], is_private=True, summary="tiny"), sep="\\n")
except ShoalError as error:
    print(type(error).__name__, error)
"""


@pytest.fixture
def place(tmp_path):
    made = tmp_path / "model"
    made.mkdir()
    (made / "config.json").write_text("{}")
    (made / "README.md").write_text("---\ntags:\n- shoal\n---\n# ours\n")
    (made / "model.safetensors").write_bytes(b"weights" * 1000)
    (tmp_path / "there").mkdir()
    return tmp_path


def push(place, endpoint, *, name=NAME, token="hf_secret"):
    known = {"HF_ENDPOINT": endpoint, "HF_HOME": str(place / "hf"), "HF_HUB_DISABLE_XET": "1"}
    env = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_DISABLE_TELEMETRY": "1", **known}
    env.pop("HF_TOKEN", None)
    if token is not None:
        env["HF_TOKEN"] = token
    done = subprocess.run(
        [sys.executable, "-c", PUSH, name],
        capture_output=True, text=True, check=False, cwd=place, env=env, timeout=250,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_folder_is_published_and_nothing_there_is_deleted(place):
    there = place / "there"
    (there / "config.json").write_text('{"of": "before"}')
    (there / "NOTES.md").write_text("mine")
    (there / "model-00001-of-00002.safetensors").write_bytes(b"of before")
    with hub(NAME, there) as served:
        said = push(place, served.endpoint)
        (commit,) = served.commits
        assert served.tokens == {"Bearer hf_secret"}
        assert said.endswith(f"published at {served.endpoint}/{NAME}\n")
    assert commit["summary"] == "tiny"
    assert not [one for one in commit["did"] if "delete" in one.lower()]
    for one in (place / "model").iterdir():
        assert (there / one.name).read_bytes() == one.read_bytes()
    assert (there / "NOTES.md").read_text() == "mine"
    assert "also has model-00001-of-00002.safetensors from before" in said


@pytest.mark.slow
def test_a_hub_that_refuses_leaves_the_folder_and_says_how_to_go_on(place):
    with hub(NAME, place / "there") as served:
        served.is_forbidden = True
        said = push(place, served.endpoint)
    assert said.startswith(f"UserError The hub refused {NAME} (")
    assert f"hf upload {NAME} model" in said
    assert "hf_secret" not in said


@pytest.mark.slow
def test_a_hub_that_is_away_is_no_fault_of_the_user(place):
    said = push(place, "http://127.0.0.1:9")
    assert said.startswith(f"TransientError {NAME} could not be published (")
    assert f"hf upload {NAME} model" in said


def test_without_a_token_nothing_is_sent(place):
    with hub(NAME, place / "there") as served:
        said = push(place, served.endpoint, token=None)
        assert served.asked == []
    assert said.startswith("UserError Nobody is logged in")
    assert "hf auth login" in said


@pytest.mark.parametrize("name", ["ours", "a/b/c", "a/b:c", "../b", "a/b@main"])
def test_what_is_no_repository_is_said(name):
    with pytest.raises(UserError, match="OWNER/NAME"):
        hub_push.check(name)
