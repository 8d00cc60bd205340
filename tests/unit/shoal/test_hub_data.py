"""A data set of the hub at a revision, against a hub on loopback, signed by the command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from host.files.signed_project import read_signed
from shoal.project.template import create_text
from tests.support.hub_stand_in import hub

ROOT = Path(__file__).parents[3]
NAME = "friends/letters"


@pytest.fixture
def place(tmp_path):
    (tmp_path / "data").mkdir()
    rows = [json.dumps({"body": f"letter {number} " * 60}) for number in range(80)]
    (tmp_path / "data" / "train.jsonl").write_text("\n".join([*rows, '{"body": null}']))
    return tmp_path


def sign(place, endpoint, location):
    """The hub's address is read when its library is imported, so it needs a process."""
    changes = {
        "data.source": "hub",
        "data.location": location,
        "data.text_field": "body",
        "data.sequence_tokens": 64,
        "data.heldout_frac": 0.2,
    }
    (place / "letters.toml").write_text(create_text("letters", changes=changes))
    known = {"HF_ENDPOINT": endpoint, "HF_HOME": str(place / "hf")}
    verb = ["-m", "shoal", "--home", str(place / "home"), "project", "sign", "letters.toml"]
    return subprocess.run(
        [sys.executable, *verb],
        capture_output=True,
        text=True,
        check=False,
        cwd=place,
        env={**os.environ, "PYTHONPATH": str(ROOT), **known, "HF_HUB_DISABLE_TELEMETRY": "1"},
        timeout=250,
    )


@pytest.mark.slow
def test_a_revision_is_what_is_asked_for_and_one_that_is_not_there_is_said(place):
    with hub(NAME, place / "data") as served:
        served.tags.append("v1.0")
        signed = sign(place, served.endpoint, f"{NAME}@v1.0")
        assert signed.returncode == 0, signed.stderr
        assert f"api/datasets/{NAME}/revision/v1.0" in served.asked
        assert not any("/main" in one for one in served.asked)
        assert f"1 of 81 texts left out: row 81 of {NAME}@v1.0" in signed.stdout
        genesis = read_signed(place / "letters.shoal").genesis
        assert genesis.data.location == f"{NAME}@v1.0"
        missing = sign(place, served.endpoint, f"{NAME}@v2.0")
        assert missing.returncode == 2
        assert f"The text source hub '{NAME}@v2.0' cannot be read" in missing.stderr
