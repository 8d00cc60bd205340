"""The key file, its lock, and the names made from a key."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys

import pytest

from host.files import keystore
from protocol.errors import MalformedMessage, UserError
from protocol.signing import verify_ed25519

PEER_ID = "12D3KooWA1fSTf6iTo2cKnh1epDYJH4Lot8SZcFnaHakq96muaQr"


def test_a_key_is_made_once_and_found_again(tmp_path):
    path = tmp_path / "deep" / "key"
    first = keystore.load_or_create(path)
    second = keystore.load_or_create(path)
    assert first.key == second.key
    assert len(first.key) == 32
    assert first.path == path
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_file_is_the_private_key_message_of_libp2p(tmp_path):
    identity = keystore.load_or_create(tmp_path / "key")
    content = (tmp_path / "key").read_bytes()
    assert len(content) == 68
    assert content[:4] == bytes([0x08, 1, 0x12, 64])
    assert content[36:] == identity.key


def test_two_hosts_get_two_keys(tmp_path):
    one, two = (keystore.load_or_create(tmp_path / name) for name in "ab")
    assert one.key != two.key


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
def test_a_key_that_others_can_read_is_refused_with_the_command_that_closes_it(tmp_path, mode):
    path = tmp_path / "my key"
    keystore.load_or_create(path)
    path.chmod(mode)
    with pytest.raises(UserError, match=r"chmod 600 '.*my key'"):
        keystore.load_or_create(path)


@pytest.mark.parametrize("damage", ["short", "long", "prefix", "public", "empty"])
def test_a_damaged_key_is_refused(tmp_path, damage):
    path = tmp_path / "key"
    keystore.load_or_create(path)
    content = path.read_bytes()
    changed = {
        "short": content[:-1],
        "long": content + b"\0",
        "prefix": b"\x08\x00" + content[2:],
        "public": content[:-1] + bytes([content[-1] ^ 1]),
        "empty": b"",
    }[damage]
    path.write_bytes(changed)
    with pytest.raises(UserError, match="damaged"):
        keystore.load_or_create(path)


def test_who_starts_while_a_key_is_being_made_has_the_same_one(tmp_path, monkeypatch):
    path, met, fsync = tmp_path / "key", [], os.fsync

    def slow(handle):
        monkeypatch.setattr(os, "fsync", fsync)
        assert not path.exists(), "it is whole before it has its name"
        met.append(keystore.load_or_create(path))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", slow)
    first = keystore.load_or_create(path)
    assert [one.key for one in met] == [first.key]
    assert os.listdir(tmp_path) == ["key"]


def test_a_key_that_could_not_be_written_is_not_there_at_the_next_start(tmp_path, monkeypatch):
    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match="No space left"):
        keystore.load_or_create(tmp_path / "key")
    assert os.listdir(tmp_path) == []
    monkeypatch.undo()
    keystore.load_or_create(tmp_path / "key")


def test_a_key_needs_no_second_name_for_a_file(tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    first = keystore.load_or_create(tmp_path / "key")
    assert keystore.load_or_create(tmp_path / "key").key == first.key
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["key"]


def test_a_path_that_cannot_be_written_is_a_user_error(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UserError, match=r"cannot be (read|created)"):
        keystore.load_or_create(tmp_path / "file" / "key")


def test_signatures_verify_only_with_key_and_message(tmp_path):
    one, two = (keystore.load_or_create(tmp_path / name) for name in "ab")
    signature = one.sign(b"message")
    assert verify_ed25519(one.key, b"message", signature)
    assert not verify_ed25519(two.key, b"message", signature)
    assert not verify_ed25519(one.key, b"massage", signature)
    assert not verify_ed25519(one.key, b"message", signature[:-1])
    assert not verify_ed25519(b"short", b"message", signature)


def test_peer_ids_go_both_ways(tmp_path):
    for name in "abcd":
        key = keystore.load_or_create(tmp_path / name).key
        assert keystore.peer_id(key).startswith("12D3KooW")
        assert keystore.key_of_peer_text(keystore.peer_id(key)) == key
        assert keystore.key_of_peer_id(keystore.peer_id_bytes(key)) == key


def test_the_lowest_key_keeps_its_leading_zero_byte():
    key = bytes(32)
    assert keystore.key_of_peer_text(keystore.peer_id(key)) == key
    assert keystore.peer_id(key).startswith("1")


@pytest.mark.parametrize(
    "text", ["", "12D3KooW", "O0Il", "Qm" + "1" * 44, "1" * 1000, PEER_ID[:-1]]
)
def test_other_peer_ids_are_refused(text):
    with pytest.raises(MalformedMessage):
        keystore.key_of_peer_text(text)


def test_a_second_holder_is_refused_and_told_who_was_first(tmp_path):
    path = tmp_path / "key"
    with (
        keystore.lock(path, remedy="Stop it first."),
        pytest.raises(UserError, match=rf"pid {os.getpid()}\).*Stop it first\."),
    ):
        keystore.lock(path, remedy="Stop it first.")


def test_a_released_lock_can_be_taken_again(tmp_path):
    path = tmp_path / "key"
    held = keystore.lock(path, remedy="")
    held.close()
    with keystore.lock(path, remedy=""):
        held.close()  # Once too often: it is no longer this one's to give away.
        with pytest.raises(UserError):
            keystore.lock(path, remedy="")


def test_a_dead_holder_holds_nothing(tmp_path):
    code = (
        "import os, pathlib, sys; from host.files import keystore; "
        "held = keystore.lock(pathlib.Path(sys.argv[1]), remedy=''); os._exit(9)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "key")], timeout=120)
    assert done.returncode == 9
    with keystore.lock(tmp_path / "key", remedy=""):
        pass
