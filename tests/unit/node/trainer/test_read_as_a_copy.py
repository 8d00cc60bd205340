"""What a learner is told of its copy of a text, and an owner of the text itself."""

from __future__ import annotations

import pytest

from node.trainer.failures import TrainerFailure
from node.trainer.setup import TrainerSetup
from node.trainer.text.sources import read_as_a_copy
from protocol.errors import UserError
from tests.support.tiny_project import configure, data_spec, tiny_genesis


def test_a_learner_is_not_told_what_only_the_owner_could_do(tmp_path):
    genesis = tiny_genesis(tmp_path)
    with pytest.raises(TrainerFailure) as told:
        TrainerSetup(configure(genesis, tmp_path, data_location=str(tmp_path / "nowhere")))
    assert str(told.value) == (
        f"There is no file {tmp_path / 'nowhere'}. So {tmp_path / 'nowhere'} is no copy of the"
        " project's text."
    )


@pytest.mark.parametrize("location", [None, "", "text"])
def test_the_owner_is(location):
    data = data_spec("text")
    with pytest.raises(UserError, match="Correct it"), read_as_a_copy(data, location):
        raise UserError("It is wrong. Correct it.")


def test_whoever_brings_data_of_their_own_is_told_all(tmp_path):
    data = data_spec("text", source="chats")
    with pytest.raises(UserError, match="Correct it"), read_as_a_copy(data, "elsewhere"):
        raise UserError("It is wrong. Correct it.")
