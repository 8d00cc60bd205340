"""What a project may have a volunteer's trainer open, which is nothing of the volunteer's own, and
how its owner wants it started."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from host.files.home import Home
from host.files.keystore import load_or_create
from host.files.local_settings import LearnerSettings, OwnerSettings, Settings
from host.join_link import JoinLink
from host.options import NodeOptions
from node.daemon.trainer_options import (
    data_location,
    measures_for_others,
    require_foreign_tokenizer,
    trainer_configuration,
)
from protocol.errors import UserError
from protocol.project import (
    AdapterSpec,
    Genesis,
    MixedSource,
    PinnedFile,
    TokenizerSpec,
    encode,
)
from tests.support.tiny_project import tiny_genesis


@pytest.fixture(scope="module")
def genesis(tmp_path_factory) -> Genesis:
    return tiny_genesis(tmp_path_factory.mktemp("text"))


def options(tmp_path, **given: Any) -> NodeOptions:
    link = JoinLink(bytes(32), 100, "tiny", ())
    return NodeOptions(home=Home(tmp_path / "home"), link=link, name="me", **given)


def naming(genesis: Genesis, **changes: str) -> Genesis:
    return msgspec.structs.replace(genesis, data=msgspec.structs.replace(genesis.data, **changes))


@pytest.mark.parametrize("location", ["/home/ann/letters", "text", "../letters", "~/letters"])
@pytest.mark.parametrize(("source", "before"), [("hub", ""), ("chats", "hub:")])
def test_a_project_cannot_have_a_folder_read_as_a_data_set_of_the_hub(
    tmp_path, genesis, location, source, before
):
    project = naming(genesis, source=source, location=before + location)
    with pytest.raises(UserError, match="Nothing here is read"):
        data_location(options(tmp_path), project)


@pytest.mark.parametrize(
    ("source", "location"), [("hub", "owner/stories:small"), ("chats", "hub:owner/chats@v1")]
)
def test_a_data_set_of_the_hub_is_read(tmp_path, genesis, source, location):
    project = naming(genesis, source=source, location=location)
    assert data_location(options(tmp_path), project) == location


@pytest.mark.parametrize("source", ["file", "folder", "parquet", "images", "chats", "jsonl"])
def test_a_path_of_the_projects_choice_is_not_read(tmp_path, genesis, source):
    project = naming(genesis, source=source, location="/home/ann/letters")
    with pytest.raises(UserError, match="shoal join --data PATH"):
        data_location(options(tmp_path), project)
    assert data_location(options(tmp_path, data="/my/text"), project) == "/my/text"


@pytest.mark.parametrize("name", ["/etc/passwd", "tokenizer.json", "~/secret.json"])
def test_no_file_of_a_volunteer_is_opened_as_a_tokenizer(tmp_path, genesis, name):
    with pytest.raises(UserError, match="No file of yours is opened"):
        require_foreign_tokenizer(options(tmp_path), naming(genesis, tokenizer=name))


def test_the_host_of_a_project_may_use_its_own_tokenizer_file(tmp_path, genesis):
    mine = options(tmp_path)
    file = mine.home.project_file(mine.link.project)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch()
    require_foreign_tokenizer(mine, naming(genesis, tokenizer="/srv/tokenizer.json"))


@pytest.mark.parametrize("name", ["bytes", "owner/model"])
def test_tokenizers_that_name_no_file_are_welcome(tmp_path, genesis, name):
    require_foreign_tokenizer(options(tmp_path), naming(genesis, tokenizer=name))


def test_a_tokenizer_that_peers_give_needs_no_name(tmp_path, genesis):
    spec = TokenizerSpec((PinnedFile("tokenizer.json", 2, bytes(32)),), "</s>")
    pinned = msgspec.structs.replace(naming(genesis, tokenizer="/etc/passwd"), tokenizer=spec)
    require_foreign_tokenizer(options(tmp_path), pinned)


def test_beside_a_base_in_4_bits_a_learner_measures_nothing_for_others(tmp_path, genesis):
    adapter = AdapterSpec(4, 8.0, 0.0, ("q_proj",), "both", "bf16")
    tuned = msgspec.structs.replace(genesis, adapter=adapter)
    in_4_bits = Settings(learner=LearnerSettings(base_in_4_bits=True))
    packed = options(tmp_path, settings=OwnerSettings(lambda: in_4_bits))
    assert not measures_for_others(packed, tuned)
    assert measures_for_others(packed, genesis), "nothing of that project is frozen"
    plain = options(tmp_path, settings=OwnerSettings(Settings))
    assert measures_for_others(plain, tuned)
    assert not measures_for_others(
        options(tmp_path, settings=OwnerSettings(Settings), evaluates=False), tuned
    )


def mixed(genesis: Genesis, *sources: tuple[str, str]) -> Genesis:
    mixture = tuple(MixedSource(*one, "text", 1.0, 9, bytes(32)) for one in sources)
    named = naming(genesis, source="mixture", location="")
    return msgspec.structs.replace(named, mixture=mixture)


def test_files_of_a_mixture_are_read_where_the_owner_of_the_machine_says(tmp_path, genesis):
    project = mixed(genesis, ("jsonl", "/home/ann/letters.jsonl"), ("hub", "owner/stories@v1"))
    with pytest.raises(UserError, match=r"copies of 'letters.jsonl' .*shoal join --data FOLDER"):
        data_location(options(tmp_path), project)
    assert data_location(options(tmp_path, data="/my/texts"), project) == "/my/texts"
    mine = options(tmp_path)
    file = mine.home.project_file(mine.link.project)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch()
    assert data_location(mine, project) == ""


def test_a_mixture_without_files_needs_no_word_and_names_no_folder_as_a_data_set(tmp_path, genesis):
    project = mixed(genesis, ("hub", "owner/stories"), ("chats", "hub:owner/chats"))
    assert data_location(options(tmp_path), project) == ""
    project = mixed(genesis, ("hub", "/home/ann/letters"), ("python-stdlib", ""))
    with pytest.raises(UserError, match="Nothing here is read"):
        data_location(options(tmp_path), project)


@pytest.mark.parametrize(
    ("trainer", "ranks", "sharded"), [(None, 2, True), ("examples.own:Loop", 1, False)]
)
def test_devices_hold_a_model_of_shoals_own_together(tmp_path, genesis, trainer, ranks, sharded):
    owner = Settings(learner=LearnerSettings(sharded=True))
    wanted = options(tmp_path, ranks=2, data="/my/text", trainer=trainer)
    identity = load_or_create(tmp_path / "key")
    made = trainer_configuration(wanted, owner, identity, encode(genesis))
    assert (made.ranks, made.sharded) == (ranks, sharded)
