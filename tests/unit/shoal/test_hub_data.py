"""A data set of the hub at a revision, against a hub on loopback, signed by the command."""

from __future__ import annotations

import json

import msgspec
import pytest

from host.files.signed_project import read_signed
from shoal.project.template import create_text
from tests.support.base_folder import base_folder
from tests.support.chats import turns
from tests.support.hub_stand_in import hub, shoal_at

NAME = "friends/letters"
SOURCE = {"data.sequence_tokens": 64, "data.heldout_frac": 0.2}


@pytest.fixture
def place(tmp_path):
    (tmp_path / "data").mkdir()
    return tmp_path


def fill(place, *rows):
    """The data set has these rows."""
    (place / "data" / "train.jsonl").write_text("\n".join(json.dumps(row) for row in rows))


def sign(place, endpoint, source, location, *, base=None, **more):
    changes = {"data.source": source, "data.location": location, **SOURCE, **more}
    (place / "letters.toml").write_text(create_text("letters", changes=changes, base=base))
    return shoal_at(endpoint, place, "project", "sign", "letters.toml")


@pytest.mark.slow
def test_a_revision_is_what_is_asked_for_and_one_that_is_not_there_is_said(place):
    fill(place, *({"body": f"letter {number} " * 60} for number in range(80)), {"body": None})
    body = {"data.text_field": "body"}
    with hub(NAME, place / "data") as served:
        served.tags.append("v1.0")
        signed = sign(place, served.endpoint, "hub", f"{NAME}@v1.0", **body)
        assert signed.returncode == 0, signed.stderr
        assert f"api/datasets/{NAME}/revision/v1.0" in served.asked
        assert not any("/main" in one for one in served.asked)
        assert f"1 of 81 texts left out: row 81 of {NAME}@v1.0" in signed.stdout
        genesis = read_signed(place / "letters.shoal").genesis
        assert genesis.data.location == f"{NAME}@v1.0"
        missing = sign(place, served.endpoint, "hub", f"{NAME}@v2.0", **body)
        assert missing.returncode == 2
        assert f"The text source hub '{NAME}@v2.0' cannot be read" in missing.stderr


@pytest.mark.slow
def test_chats_come_from_the_hub(place):
    chats = [turns(f"{number}: where is the harbour?", "Past it, softly.") for number in range(60)]
    fill(place, *({"messages": one} for one in chats), {"messages": turns("Nobody answers.")})
    base = base_folder(place / "base")
    with hub(NAME, place / "data") as served:
        served.tags.append("v1.0")
        location = f"hub:{NAME}@v1.0"
        base = {"base": str(base), "data.tokenizer": "base"}
        signed = sign(place, served.endpoint, "chats", location, **base)
        assert signed.returncode == 0, signed.stderr
        assert f"1 of 61 chats left out: row 61 of {NAME}@v1.0" in signed.stdout
        data = read_signed(place / "letters.shoal").genesis.data
        assert (data.source, data.location) == ("chats", location)
        # The same chats in a file are the same text.
        copied = str(place / "data" / "train.jsonl")
        copy = sign(place, served.endpoint, "chats", copied, **base)
        assert copy.returncode == 0, copy.stderr
        again = read_signed(place / "letters.shoal").genesis.data
        assert msgspec.structs.replace(again, location=location) == data
