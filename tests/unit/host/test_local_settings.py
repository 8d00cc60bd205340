"""The owner's settings: who wins, what is refused, and in which words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from host.files.local_settings import LimitSettings, OwnerSettings, Settings
from host.options import bulk_at
from protocol.errors import UserError
from shoal.common import settings_file
from shoal.common.settings_file import as_text, keys, load, read_text
from shoal.common.toml_tables import Place

GIB = 2**30
HERE = Place("here")


@pytest.fixture
def file(tmp_path):
    return tmp_path / "settings.toml"


def test_a_port_for_bulk_data_is_a_number_or_one_of_two_words(file):
    key = settings_file.BULK_PORT
    assert load(file, environ={}).value(key) == "any"
    for said, meant in (("off", "off"), (4110, "4110"), ("4110", "4110")):
        assert load(file, environ={}, flags={key: said}).value(key) == meant
    assert load(file, environ={"SHOAL_LEARNER_BULK_PORT": "off"}).value(key) == "off"
    for wrong in ("4k", "0", 70_000, "-1", ""):
        with pytest.raises(UserError, match="1 to 65535, any, or off"):
            load(file, environ={}, flags={key: wrong})
    assert (bulk_at("any").port, bulk_at("any").is_on) == (0, True)
    assert (bulk_at("4110").port, bulk_at("4110").is_on) == (4110, True)
    assert not bulk_at("off").is_on


def test_without_a_file_everything_is_as_it_comes(file):
    found = load(file, environ={})
    assert found.values == Settings()
    assert found.value("limits.cpu_percent") == 100.0
    assert str(found.source("limits.cpu_percent")) == "default"


def test_the_nearer_word_wins_and_is_remembered(file):
    file.write_text("[limits]\ncpu_percent = 30\nram_bytes_max = '8 GiB'\nnice = 5\n")
    environ = {"SHOAL_LIMITS_CPU_PERCENT": "40%", "SHOAL_LIMITS_NICE": "7"}
    flags = {"limits.nice": 9, "learner.threads": None}
    found = load(file, environ=environ, flags=flags)
    assert found.values.limits.cpu_percent == 40.0
    assert found.values.limits.ram_bytes_max == 8 * GIB
    assert found.values.limits.nice == 9
    assert found.values.learner.threads is None
    assert str(found.source("limits.cpu_percent")) == "environment SHOAL_LIMITS_CPU_PERCENT"
    assert str(found.source("limits.ram_bytes_max")) == f"file {file}"
    assert [found.source(one).origin for one in ("limits.nice", "learner.threads")] == [
        "flag",
        "default",
    ]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[limits]\ncpu_percent = 0\n", "limits.cpu_percent must be a number above 0 and at most"),
        ("[limits]\ncpu_percents = 5\n", "Did you mean limits.cpu_percent"),
        ("[limit]\ncpu_percent = 5\n", "Did you mean limits.cpu_percent"),
        ("[limits]\nram_bytes_max = 'much'\n", "such as '8 GiB', not \"much\""),
        ("[limits]\nup_bytes_per_s = 10\n", "of at least 16384"),
        ("[when]\nmode = 'sometimes'\n", 'one of "always", "idle", "never", not "sometimes"'),
        ("[when]\nhours = ['at night']\n", "when.hours cannot be read: 'at night' names no hours"),
        ("[when]\nhours = 'sat'\n", "a list of texts"),
        ("[when.devices]\n'cuda:x' = 'idle'\n", 'knows no device "cuda:x"'),
        ("[when.devices]\n'cuda:0' = 'off'\n", "a table with values out of"),
        ("limits = 3\n", "must be a table, written as [limits]"),
        ("[limits\n", "are not valid TOML"),
    ],
)
def test_what_is_not_allowed_is_refused_with_file_and_key(file, text, says):
    file.write_text(text)
    with pytest.raises(UserError) as refusal:
        load(file, environ={})
    assert says in str(refusal.value)
    assert str(file) in str(refusal.value)


def test_variables_of_a_section_must_be_known(file):
    with pytest.raises(UserError, match="Did you mean SHOAL_LIMITS_CPU_PERCENT"):
        load(file, environ={"SHOAL_LIMITS_CPU_PERCENTS": "5"})
    assert load(file, environ={"SHOAL_HOME": "/x", "SHOAL_LIMITSX": "5"}).values == Settings()
    with pytest.raises(UserError, match="SHOAL_WHEN_MODE: must be one of"):
        load(file, environ={"SHOAL_WHEN_MODE": "often"})


def test_lists_and_tables_come_from_one_word(file):
    environ = {
        "SHOAL_WHEN_HOURS": "mon-fri 22:00-07:00; sat sun",
        "SHOAL_WHEN_DEVICES": "cuda:0=idle; cpu=never",
        "SHOAL_WHEN_BUSY_PROGRAMS": "",
    }
    when = load(file, environ=environ).values.when
    assert when.hours == ("mon-fri 22:00-07:00", "sat sun")
    assert when.devices == {"cuda:0": "idle", "cpu": "never"}
    assert when.busy_programs == ()


def test_every_key_says_what_it_is_for_and_its_default_is_allowed():
    for name, key in keys().items():
        assert key.about.endswith("."), name
        assert "text" not in key.allowed or not key.unit.startswith("%")
        if key.default is not None:
            assert read_text(name, as_text(name, key.default), HERE) == key.default


@given(count=st.integers(1, 2**50))
def test_amounts_are_written_as_they_are_read(count):
    text = settings_file.amount_text(count)
    assert read_text("limits.ram_bytes_max", text, HERE) == count


def test_amounts_of_a_thousand_and_of_1024():
    for text, count in (("1 GB", 10**9), ("1GiB", GIB), ("1.5 k", 1500), ("20 MB/s", 20_000_000)):
        assert read_text("limits.disk_bytes_max", text, HERE) == count
    with pytest.raises(UserError, match="such as '8 GiB'"):
        read_text("limits.disk_bytes_max", "-3", HERE)


def test_the_file_lies_with_other_configuration_unless_it_is_named(monkeypatch):
    named = settings_file.settings_path({"SHOAL_CONFIG": "/etc/shoal.toml"})
    assert str(named) == "/etc/shoal.toml"
    monkeypatch.setenv("XDG_CONFIG_HOME", "/somewhere")
    assert str(settings_file.settings_path({})) == "/somewhere/shoal/settings.toml"


def test_an_unknown_key_is_told_its_neighbours(file):
    with pytest.raises(UserError, match="Did you mean"):
        load(file, environ={}).value("limit.cpu_percent")


def test_a_demo_is_as_it_comes(file):
    file.write_text("[when]\nmode = 'never'\n")
    environ = {"SHOAL_CONFIG": str(file), "SHOAL_LIMITS_NICE": "3", "PATH": "/bin"}
    clean = settings_file.without_settings(environ)
    assert clean["PATH"] == "/bin"
    assert load(environ=clean).values == Settings()


def test_a_daemon_goes_on_with_the_settings_that_could_be_read_last():
    answers = [Settings(limits=LimitSettings(nice=3)), UserError("no"), UserError("no"), Settings()]

    def load():
        found = answers.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    settings = OwnerSettings(load)
    assert settings().limits.nice == 3
    assert settings().limits.nice == 3, "the file is broken meanwhile"
    with pytest.raises(UserError):
        settings.read()
    assert settings() == Settings()


def test_settings_that_never_could_be_read_end_the_start():
    def load():
        raise UserError("no such mode")

    with pytest.raises(UserError, match="no such mode"):
        OwnerSettings(load)()
