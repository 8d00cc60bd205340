"""Where things lie on one machine, and who may look there."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from host.files.home import Home
from protocol.errors import UserError

PROJECT = bytes(range(32))


def test_every_path_lies_in_the_home_and_is_told_apart_by_role_and_instance(tmp_path):
    home = Home(tmp_path / "home")
    paths = [
        home.identity("owner"),
        home.identity("syncer"),
        home.identity("learner"),
        home.identity("learner", "two"),
        home.socket("learner"),
        home.socket("learner", "two"),
        home.log("learner"),
        home.project_file(PROJECT),
        home.syncer_store(PROJECT),
        home.syncer_store(PROJECT, "two"),
        home.identity("witness"),
        home.socket("witness"),
        home.log("witness"),
        home.voter_store(PROJECT, "witness"),
        home.voter_store(PROJECT, "witness", "two"),
        home.data_cache(),
    ]
    assert len(set(paths)) == len(paths)
    assert all(path.is_relative_to(tmp_path / "home") for path in paths)
    assert PROJECT.hex() in str(home.project(PROJECT))


def test_directories_are_made_on_demand_and_closed_to_others(tmp_path):
    home = Home(tmp_path / "deep" / "home")
    assert not home.root.exists()
    for directory in (home.socket("syncer").parent, home.syncer_store(PROJECT), home.root):
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700


def test_looking_for_daemons_makes_nothing(tmp_path):
    home = Home(tmp_path / "home")
    assert home.daemons() == []
    assert home.hosted_projects() == []
    assert home.voter_stores(PROJECT) == []
    assert not home.root.exists()


def test_daemons_are_listed_by_role_and_instance(tmp_path):
    home = Home(tmp_path)
    sockets = [home.socket(role) for role in ("syncer", "learner", "witness")]
    for path in (*sockets, home.socket("learner", "a-b")):
        path.touch()
    (tmp_path / "run" / "stranger-x.sock").touch()
    (tmp_path / "run" / "learner-BIG.sock").touch()
    assert [(one.role, one.instance) for one in home.daemons()] == [
        ("learner", "a-b"),
        ("learner", "default"),
        ("syncer", "default"),
        ("witness", "default"),
    ]
    assert home.daemons()[0].socket == home.socket("learner", "a-b")


@pytest.mark.parametrize("name", ["", "A", "a/b", "..", "a b", "x" * 33, "naïve", "a\n"])
def test_an_instance_name_that_is_no_file_name_is_refused(tmp_path, name):
    with pytest.raises(UserError, match="instance name"):
        Home(tmp_path).identity("learner", name)


def test_the_environment_names_the_home_unless_the_caller_does(tmp_path, monkeypatch):
    monkeypatch.setenv("SHOAL_HOME", str(tmp_path / "named"))
    assert Home().root == tmp_path / "named"
    assert Home(tmp_path / "given").root == tmp_path / "given"
    monkeypatch.delenv("SHOAL_HOME")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert Home().root == tmp_path / "data" / "shoal"


def test_a_relative_home_stays_where_it_was_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    home = Home(Path("here"))
    monkeypatch.chdir("/")
    assert home.root == tmp_path / "here"


def test_a_home_that_cannot_be_made_is_a_user_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="--home"):
        Home(tmp_path / "file").data_cache()


def test_only_projects_that_a_syncer_worked_for_are_hosted(tmp_path):
    home = Home(tmp_path)
    home.project_file(PROJECT).touch()
    assert home.hosted_projects() == []
    home.syncer_store(PROJECT)
    assert home.hosted_projects() == [home.project_file(PROJECT)]
    assert home.hosted_projects("other") == []


def test_the_stores_of_all_voters_are_known(tmp_path):
    home = Home(tmp_path)
    stores = [
        home.syncer_store(PROJECT),
        home.syncer_store(PROJECT, "b"),
        home.voter_store(PROJECT, "witness"),
    ]
    assert home.voter_stores(PROJECT) == sorted(stores)
    assert home.hosted_projects() == [], "a signed copy belongs to it"
