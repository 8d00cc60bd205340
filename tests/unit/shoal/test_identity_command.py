"""`shoal identity`: keys leave and come back as they were, and nobody's key is lost on the way."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from host.files import keystore
from host.files.home import Home
from protocol.errors import UserError
from protocol.signing import verify_ed25519
from shoal.machine import identity_command


@pytest.fixture(autouse=True)
def no_passphrase(monkeypatch):
    monkeypatch.delenv(identity_command.PASSPHRASE_VARIABLE, raising=False)


@pytest.fixture
def home(tmp_path) -> Home:
    return Home(tmp_path / "home")


@pytest.fixture
def other(tmp_path) -> Home:
    return Home(tmp_path / "other")


def export(home, to, **wishes):
    return identity_command.export(to, home=home, **wishes)


def bring_back(home, source, **wishes):
    return identity_command.bring_back(source, home=home, **wishes)


def test_a_key_comes_back_on_another_machine(home, other, tmp_path):
    key = keystore.load_or_create(home.identity("owner")).key
    export(home, tmp_path / "backup")
    bring_back(other, tmp_path / "backup")
    there = keystore.load_or_create(other.identity("owner"))
    assert there.key == key
    assert verify_ed25519(key, b"word", there.sign(b"word"))
    assert (tmp_path / "backup").stat().st_mode & 0o777 == 0o600


def test_a_back_up_is_pem_that_others_read(home, tmp_path):
    key = keystore.load_or_create(home.identity("owner")).key
    export(home, tmp_path / "backup")
    private = load_pem_private_key((tmp_path / "backup").read_bytes(), None)
    assert private.public_key().public_bytes_raw() == key


def test_a_passphrase_is_needed_to_come_back(home, other, tmp_path, monkeypatch):
    keystore.load_or_create(home.identity("owner"))
    secret = tmp_path / "passphrase"
    secret.write_text("correct horse\nsecond line\n")
    export(home, tmp_path / "backup", passphrase_file=secret)
    with pytest.raises(UserError, match="is encrypted"):
        bring_back(other, tmp_path / "backup")
    monkeypatch.setenv(identity_command.PASSPHRASE_VARIABLE, "wrong horse")
    with pytest.raises(UserError, match="passphrase is not the right one"):
        bring_back(other, tmp_path / "backup")
    assert identity_command.key_files(other) == []
    bring_back(other, tmp_path / "backup", passphrase_file=secret)
    assert len(identity_command.key_files(other)) == 1


def test_a_short_passphrase_protects_nothing(home, tmp_path, monkeypatch):
    keystore.load_or_create(home.identity("owner"))
    monkeypatch.setenv(identity_command.PASSPHRASE_VARIABLE, "1234567")
    with pytest.raises(UserError, match="at least 8"):
        export(home, tmp_path / "backup")
    assert not (tmp_path / "backup").exists()


def test_nothing_is_overwritten(home, tmp_path):
    keystore.load_or_create(home.identity("owner"))
    (tmp_path / "backup").write_text("precious")
    with pytest.raises(UserError, match="exists and is not overwritten"):
        export(home, tmp_path / "backup")
    assert (tmp_path / "backup").read_text() == "precious"


def test_another_key_is_replaced_only_when_asked_and_then_kept(home, other, tmp_path):
    key = keystore.load_or_create(home.identity("learner")).key
    former = keystore.load_or_create(other.identity("learner")).key
    export(home, tmp_path / "backup")
    with pytest.raises(UserError, match="has another key"):
        bring_back(other, tmp_path / "backup")
    said = bring_back(other, tmp_path / "backup", replace=True)
    assert keystore.load_or_create(other.identity("learner")).key == key
    aside = Path(said[0].removeprefix("moved the former key to "))
    aside.rename(other.identity("learner", "old"))
    assert keystore.load_or_create(other.identity("learner", "old")).key == former


def test_a_key_in_use_is_not_replaced(home, other, tmp_path):
    keystore.load_or_create(home.identity("learner"))
    keystore.load_or_create(other.identity("learner"))
    export(home, tmp_path / "backup")
    with (
        keystore.lock(other.identity("learner"), remedy=""),
        pytest.raises(UserError, match="is already running"),
    ):
        bring_back(other, tmp_path / "backup", replace=True)


def test_the_same_key_again_changes_nothing(home, tmp_path):
    keystore.load_or_create(home.identity("learner"))
    export(home, tmp_path / "backup")
    (said,) = bring_back(home, tmp_path / "backup")
    assert "has this key already" in said


def test_one_key_of_several_must_be_named(home, tmp_path):
    keystore.load_or_create(home.identity("owner"))
    keystore.load_or_create(home.identity("learner", "two"))
    with pytest.raises(UserError, match="Several keys fit: learner two, owner default"):
        export(home, tmp_path / "backup")
    with pytest.raises(UserError, match="no key of witness"):
        export(home, tmp_path / "backup", role="witness")
    export(home, tmp_path / "backup", role="learner")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda text: "hello", "was not written by"),
        (lambda text: text.replace("role: owner", "role: king"), "was not written by"),
        (lambda text: text.replace("key: ", "key: 00"), "is damaged"),
        (lambda text: text.replace("MC4C", "MC5C"), "the file is damaged"),
        (lambda text: text + "x" * identity_command.FILE_BYTES_MAX, "was not written by"),
    ],
)
def test_what_is_no_back_up_is_refused(home, other, tmp_path, change, words):
    keystore.load_or_create(home.identity("owner"))
    export(home, tmp_path / "backup")
    text = (tmp_path / "backup").read_text()
    (tmp_path / "backup").write_text(change(text))
    with pytest.raises(UserError, match=words):
        bring_back(other, tmp_path / "backup")
    assert identity_command.key_files(other) == []


def test_showing_names_what_is_wrong_with_a_key_and_shows_the_others(home):
    key = keystore.load_or_create(home.identity("owner")).key
    keystore.load_or_create(home.identity("syncer")).path.chmod(0o644)
    text = "\n".join(identity_command.show(home=home))
    assert key.hex() in text
    assert "can be read by other users" in text


def test_a_home_without_keys_says_how_to_get_one(home):
    with pytest.raises(UserError, match="no key"):
        identity_command.show(home=home)
    assert not home.root.exists()
