"""Shards on a disk: they count once their bytes were compared with their hashes."""

from __future__ import annotations

import shutil

import pytest

from host.files.shard_files import HOST, ShardFiles
from protocol.errors import InternalError, MalformedPayload
from tests.support.published import published_project


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("home")
    return folder / "cache", published_project(folder)


def elsewhere(home, tmp_path, owner="learner-ada"):
    """An empty folder of a learner of another home, which got the list of shards."""
    files = ShardFiles(tmp_path / "cache", home[1], owner)
    files.keep_manifest(ShardFiles(*home).find(home[1].published.manifest))
    return files


def test_what_was_published_is_here_and_is_given(home):
    files = ShardFiles(*home)
    one = files.table.shards[3]
    assert files.find(one.digest) is None  # Nothing counts before it was read.
    assert files.look() == list(range(len(files.table.shards)))
    assert len(files.find(one.digest)) == one.bytes
    assert files.find(bytes(32)) is None


def test_a_shard_is_kept_found_and_thrown_away(home, tmp_path):
    given, files = ShardFiles(*home), elsewhere(home, tmp_path)
    given.look()
    one = files.table.shards[3]
    assert files.look() == []
    files.keep(3, given.find(one.digest))
    assert files.find(one.digest) == given.find(one.digest)
    assert files.held_bytes == one.bytes
    assert elsewhere(home, tmp_path).look() == [3]
    files.evict(3)
    assert files.find(one.digest) is None
    assert elsewhere(home, tmp_path).look() == []


def test_what_somebody_removed_is_missed_and_the_list_of_shards_written_again(home, tmp_path):
    given, files = ShardFiles(*home), elsewhere(home, tmp_path)
    given.look()
    for number in (3, 5):
        files.keep(number, given.find(files.table.shards[number].digest))
    assert files.mend() == set()
    files.path(files.table.shards[3]).unlink()
    assert files.mend() == {3}
    assert files.find(files.table.shards[3].digest) is None
    assert files.look() == [5]
    shutil.rmtree(tmp_path / "cache")
    assert files.mend() == {5}
    assert files.held_bytes == 0
    again = ShardFiles(tmp_path / "cache", home[1], "learner-ada")
    assert again.table.shards == files.table.shards


def test_one_changed_byte_is_refused(home, tmp_path):
    given, files = ShardFiles(*home), elsewhere(home, tmp_path)
    given.look()
    one = files.table.shards[3]
    content = bytearray(given.find(one.digest))
    content[7] ^= 1
    with pytest.raises(InternalError):
        files.keep(3, bytes(content))
    files.path(one).write_bytes(content)
    assert files.look() == []
    with pytest.raises(MalformedPayload):
        files.keep_manifest(bytes(len(given.find(home[1].published.manifest))))


def test_what_another_daemon_of_this_home_has_is_not_fetched(home):
    files = ShardFiles(*home, "learner-bob")
    assert files.table is not None
    assert files.link(2)
    one = files.table.shards[2]
    files.evict(2)
    assert ShardFiles(*home, HOST).path(one).is_file()  # Each folder is its daemon's own.


def test_a_damaged_neighbour_is_of_no_use(home, tmp_path):
    bob, ada = elsewhere(home, tmp_path, "learner-bob"), elsewhere(home, tmp_path)
    one = ada.table.shards[2]
    bob.path(one).write_bytes(bytes(one.bytes))
    assert not ada.link(2)
    assert not ada.path(one).exists()
