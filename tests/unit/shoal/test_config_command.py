"""`shoal config` and `shoal init`: who decided what, and a file that stays its owner's."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from shoal.__main__ import main
from shoal.common import settings_file
from shoal.machine import config_command

OWNERS = """\
# mine, since 2026

[limits]  # all of them
nice = 5   # as agreed with the others
cpu_percent = 50

[when]
mode = "idle"
"""


@pytest.fixture
def file(tmp_path, monkeypatch) -> Path:
    path = tmp_path / "config" / "settings.toml"
    monkeypatch.setenv("SHOAL_CONFIG", str(path))
    monkeypatch.setenv("SHOAL_HOME", str(tmp_path / "home"))
    for name in settings_file.keys().values():
        monkeypatch.delenv(name.variable, raising=False)
    return path


@pytest.fixture
def owners(file) -> Path:
    file.parent.mkdir()
    file.write_text(OWNERS)
    return file


def out(capsys) -> str:
    return capsys.readouterr().out


def test_setting_keeps_every_other_byte(owners):
    assert main(["config", "set", "limits.nice", "7"]) == 0
    assert owners.read_text() == OWNERS.replace("nice = 5 ", "nice = 7 ")
    assert main(["config", "set", "limits.nice", "5"]) == 0
    assert owners.read_text() == OWNERS


def test_a_new_key_joins_its_section_and_a_new_section_the_end(owners):
    main(["config", "set", "limits.ram_bytes_max", "6 GiB"])
    main(["config", "set", "present.cpu_percent", "20"])
    told = tomllib.loads(owners.read_text())
    assert told["limits"] == {"nice": 5, "cpu_percent": 50, "ram_bytes_max": "6 GiB"}
    assert told["present"] == {"cpu_percent": 20}
    assert "# as agreed with the others" in owners.read_text()


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("when.hours", "mon-fri 22:00-07:00; sun 00:00-24:00", ("mon-fri 22:00-07:00",)),
        ("when.devices", "cpu=never; cuda:0=idle", {"cpu": "never", "cuda:0": "idle"}),
        ("limits.up_bytes_per_s", "2 MiB", 2 << 20),
        ("limits.ram_bytes_max", "1000000000", 1_000_000_000),
        ("learner.evaluate", "false", False),
        ("limits.gpu_percent", "12.5", 12.5),
        ("learner.name", "-dash-", "-dash-"),
    ],
)
def test_what_is_set_is_what_is_read(file, key, text, value, capsys):
    assert main(["config", "set", key, text]) == 0
    found = settings_file.load().value(key)
    assert found == value or (isinstance(found, tuple) and found[:1] == value)
    assert settings_file.load().source(key).origin == "file"
    capsys.readouterr()
    main(["config", "get", key])
    shown = out(capsys).strip()
    before = file.read_text()
    assert main(["config", "set", key, shown]) == 0, "what `get` prints, `set` takes"
    assert settings_file.load().value(key) == found
    assert before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["config", "set", "limits.nice", "99"], "must be an integer from 0 to 19"),
        (["config", "set", "limits.nce", "1"], "Did you mean limits.nice"),
        (["config", "get", "limits"], "There is no setting 'limits'"),
        (["config", "explain", "x"], "There is no setting 'x'"),
        (["config", "unset", "limits.x"], "There is no setting"),
        (["config", "set", "when.hours", "sometimes"], "when.hours cannot be read"),
        (
            ["config", "set", "limits.nice"],
            "No value for limits.nice: shoal config set limits.nice VALUE",
        ),
        (["config", "gett"], "get"),
    ],
)
def test_what_is_not_allowed_changes_nothing(owners, arguments, words, capsys):
    assert main(arguments) == 2
    assert words in capsys.readouterr().err
    assert owners.read_text() == OWNERS


def test_a_file_that_is_wrong_is_not_rewritten(owners, capsys):
    owners.write_text(OWNERS + "color = 'red'\n")
    assert main(["config", "set", "limits.nice", "7"]) == 2
    assert "color" in capsys.readouterr().err
    assert owners.read_text().endswith("color = 'red'\n")


def test_unsetting_gives_the_word_back_to_the_default(owners, capsys):
    assert main(["config", "unset", "limits.nice"]) == 0
    assert "limits.nice = 10, as default" in out(capsys)
    assert "nice" not in tomllib.loads(owners.read_text())["limits"]
    main(["config", "unset", "limits.nice"])
    assert "does not set" in out(capsys)


def test_the_environment_overrules_and_that_is_said(owners, monkeypatch, capsys):
    monkeypatch.setenv("SHOAL_LIMITS_NICE", "3")
    main(["config", "set", "limits.nice", "7"])
    assert "SHOAL_LIMITS_NICE in this environment overrides it" in out(capsys)
    main(["config", "get", "limits.nice"])
    assert out(capsys) == "3\n"
    main(["config", "explain", "limits.nice"])
    assert "the environment, SHOAL_LIMITS_NICE; it overrides the file" in out(capsys)


def test_explaining_says_value_source_meaning_and_range(owners, capsys):
    main(["config", "explain", "limits.nice"])
    text = out(capsys)
    for words in ("5", "the file", str(owners), "Priority", "from 0 to 19", "SHOAL_LIMITS_NICE"):
        assert words in text
    assert max(map(len, text.splitlines())) <= 80 or str(owners) in text
    main(["config", "explain", "limits.nice", "--json"])
    told = json.loads(out(capsys))
    assert (told["value"], told["source"], told["from"]) == ("5", "file", str(owners))


def test_every_key_can_be_explained(file, capsys):
    for name in settings_file.keys():  # noqa: SIM118 - a function of that name
        assert main(["config", "explain", name]) == 0
        assert out(capsys).startswith(name)


def test_the_list_names_who_decided(owners, monkeypatch, capsys):
    monkeypatch.setenv("SHOAL_WHEN_ON_BATTERY", "train")
    main(["config", "list", "--set-only"])
    rows = {line.split()[0]: line.split()[-1] for line in out(capsys).splitlines() if "." in line}
    assert rows["limits.nice"] == "file"
    assert rows["when.on_battery"] == "SHOAL_WHEN_ON_BATTERY"
    assert "limits.gpu_percent" not in rows
    main(["config", "list", "--json"])
    table = json.loads(out(capsys))
    assert table["limits.nice"] == {"value": 5, "source": "file", "from": str(owners)}
    assert table["limits.gpu_percent"]["source"] == "default"


def test_beginning_twice_changes_nothing(file, capsys):
    assert main(["init"]) == 0
    assert "made" in out(capsys)
    text = file.read_text()
    assert main(["init"]) == 0
    assert out(capsys).count("there already") == 2
    assert file.read_text() == text


def test_the_template_decides_nothing_and_is_right_once_uncommented(file):
    main(["init"])
    assert all(not settings_file.load().sources for _ in "x")
    lines = file.read_text().splitlines()
    words = {name.partition(".")[2] for name in settings_file.keys()}  # noqa: SIM118
    live = [
        line.removeprefix("# ")
        for line in lines
        if line.startswith("[") or line.removeprefix("# ").partition(" = ")[0] in words
    ]
    file.write_text("\n".join(live))
    settings = settings_file.load()
    assert settings.sources.keys() == settings_file.keys().keys()


def test_a_link_to_the_file_stays_a_link(owners, tmp_path, monkeypatch):
    link = tmp_path / "link.toml"
    link.symlink_to(owners)
    monkeypatch.setenv("SHOAL_CONFIG", str(link))
    owners.chmod(0o640)
    assert main(["config", "set", "limits.nice", "7"]) == 0
    assert link.is_symlink()
    assert "nice = 7" in owners.read_text()
    assert owners.stat().st_mode & 0o777 == 0o640


def test_a_file_that_cannot_be_written_is_told(file, monkeypatch, capsys):
    monkeypatch.setenv("SHOAL_CONFIG", "/proc/none/settings.toml")
    assert main(["config", "set", "limits.nice", "7"]) == 2
    assert "SHOAL_CONFIG" in capsys.readouterr().err


def test_an_item_keeps_its_kind():
    key = settings_file.known("limits.gpu_percent")
    assert config_command._item(key, "50", 50.0).as_string() == "50"


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (2 * 10**9, "2 GB"),
        (2 << 30, "2 GiB"),
        (50_000, "50 kB"),
        (1536 << 10, "1536 KiB"),
        (1_000_001, "1000001"),
        (0, "0"),
    ],
)
def test_an_amount_is_echoed_as_it_was_meant(count, text):
    assert settings_file.amount_text(count) == text
