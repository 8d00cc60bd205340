"""`shoal service`: units that systemd understands, and a systemctl that is asked for the right."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from host.files import memberships
from host.files.home import Home
from shoal.__main__ import main
from shoal.machine import service_command, service_units
from shoal.machine.service_units import UnitWish
from tests.support.daemon_double import LINK

WISH = UnitWish(
    role="learner",
    instance="default",
    command=("/bin/true", "-m", "shoal", "run"),
    environment={"SHOAL_HOME": service_units.STATE},
    is_system=True,
)

SYSTEMCTL = """#!/bin/sh
echo "$@" >> {log}
case "$*" in
  *show*) printf 'ActiveState=failed\\nSubState=failed\\nResult=exit-code\\nExecMainStatus=4\\n' ;;
  *fail*) echo "no bus" >&2; exit 1 ;;
esac
"""


@pytest.fixture
def home(tmp_path, monkeypatch) -> Home:
    monkeypatch.setenv("SHOAL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("SHOAL_CONFIG", raising=False)
    monkeypatch.setattr(service_command, "SYSTEM_UNITS", tmp_path / "system")
    monkeypatch.setattr(service_command, "HOMES", ("/nobody/",))
    return Home()


@pytest.fixture
def systemctl(home, tmp_path, monkeypatch) -> Path:
    """A systemctl that writes down what it is asked; systemd runs, as far as one can see."""
    log, tool = tmp_path / "asked", tmp_path / "bin" / "systemctl"
    tool.parent.mkdir()
    tool.write_text(SYSTEMCTL.format(log=log))
    tool.chmod(0o755)
    log.touch()
    monkeypatch.setenv("PATH", f"{tool.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(service_command, "RUNNING_SYSTEMD", tmp_path)
    return log


def unit_file(tmp_path) -> Path:
    return tmp_path / "config" / "systemd" / "user" / "shoal-learner-default.service"


def test_a_link_is_joined_and_run_at_every_start(systemctl, home, tmp_path, capsys):
    assert main(["service", "install", LINK]) == 0
    text = unit_file(tmp_path).read_text()
    assert re.search(r"^ExecStart=\S+python\S* -m shoal run 0000000000000000$", text, re.M)
    assert f'Environment="SHOAL_HOME={home.root}"' in text
    (one,) = memberships.memberships(home)
    assert one.link.name == "tiny"
    asked = systemctl.read_text().splitlines()
    assert asked == ["--user daemon-reload", "--user enable --now shoal-learner-default.service"]
    assert "shoal logs -f" in capsys.readouterr().out


def test_what_was_joined_needs_no_link(systemctl, home, tmp_path, capsys):
    assert main(["service", "install"]) == 2
    assert "No project has been joined here yet" in capsys.readouterr().err
    memberships.remember(home, memberships.now_joined(LINK, "two", {}))
    assert main(["service", "install", "tiny", "--instance", "two", "--no-start"]) == 0
    path = unit_file(tmp_path).with_name("shoal-learner-two.service")
    assert "shoal run 0000000000000000 --instance two\n" in path.read_text()
    assert systemctl.read_text().splitlines()[-1] == "--user enable shoal-learner-two.service"


def test_options_of_the_daemon_are_checked_before_anything_is_written(systemctl, tmp_path, capsys):
    assert main(["service", "install", LINK, "--", "--prt", "4200"]) == 2
    assert "--prt" in capsys.readouterr().err
    assert not unit_file(tmp_path).exists()
    assert main(["service", "install", LINK, "--", "--port", "4200"]) == 0
    assert f"join {LINK} --port 4200" in unit_file(tmp_path).read_text()


def test_printing_changes_nothing_and_needs_no_systemd(home, tmp_path, capsys):
    assert main(["service", "install", LINK, "--print"]) == 0
    assert capsys.readouterr().out.startswith(service_units.MARK)
    assert memberships.memberships(home) == []
    assert not unit_file(tmp_path).exists()


def test_without_systemd_it_says_what_to_do_instead(home, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(service_command, "RUNNING_SYSTEMD", tmp_path / "absent")
    assert main(["service", "install", LINK]) == 2
    error = capsys.readouterr().err
    assert "systemd does not run on this machine" in error
    assert "shoal run" in error
    assert memberships.memberships(home) == []


def test_a_unit_of_somebody_else_is_not_overwritten(systemctl, tmp_path, capsys):
    unit_file(tmp_path).parent.mkdir(parents=True)
    unit_file(tmp_path).write_text("[Service]\n")
    assert main(["service", "install", LINK]) == 2
    assert "was not written by Shoal" in capsys.readouterr().err
    assert main(["service", "uninstall"]) == 2
    assert unit_file(tmp_path).exists()


def test_systemctls_own_words_are_passed_on(systemctl, capsys):
    assert main(["service", "install", LINK, "--instance", "fail"]) == 3
    assert "no bus" in capsys.readouterr().err


def test_status_says_why_a_unit_is_down(systemctl, capsys):
    assert main(["service", "status"]) == 3
    main(["service", "install", LINK])
    capsys.readouterr()
    assert main(["service", "status"]) == 0
    assert "ended with exit-code, exit code 4" in capsys.readouterr().out
    assert main(["service", "status", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["unit"] == "shoal-learner-default.service"


def test_uninstalling_removes_what_fits(systemctl, home, tmp_path, capsys):
    main(["service", "install", LINK])
    main(["service", "install", LINK, "--instance", "two"])
    assert main(["service", "uninstall", "--instance", "two"]) == 0
    assert [one.name for one in service_command.installed()] == ["shoal-learner-default.service"]
    assert "--user disable --now shoal-learner-two.service" in systemctl.read_text()
    assert main(["service", "uninstall"]) == 0
    assert service_command.installed() == []
    assert memberships.memberships(home), "leaving is another verb"


def test_a_system_unit_is_roots_and_sees_no_homes(systemctl, home, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(service_command.os, "geteuid", lambda: 1000)
    assert main(["service", "install", LINK, "--system"]) == 2
    assert "sudo" in capsys.readouterr().err
    monkeypatch.setattr(service_command.os, "geteuid", lambda: 0)
    monkeypatch.setattr(service_command, "HOMES", ("/",))
    assert main(["service", "install", LINK, "--system"]) == 2
    assert "--run-as" in capsys.readouterr().err
    assert main(["service", "install", LINK, "--run-as", "root"]) == 2
    assert main(["service", "install", LINK, "--system", "--run-as", "no-such-user"]) == 2


@pytest.mark.parametrize(
    ("word", "written"),
    [
        ("plain", "plain"),
        ("with space", '"with space"'),
        ("100%", "100%%"),
        ("$HOME", "$$HOME"),
        ('say "x"', '"say \\"x\\""'),
        ("", '""'),
        ("a;b", '"a;b"'),
    ],
)
def test_words_reach_the_daemon_as_they_are(word, written):
    assert service_units.quoted(word) == written


def test_a_system_unit_without_a_user_has_one_made_up():
    text = service_units.text_of(WISH)
    assert "DynamicUser=yes" in text
    assert "StateDirectory=shoal" in text
    assert "PrivateDevices=yes" in text


def test_accelerators_stay_visible_where_there_are_some():
    text = service_units.text_of(
        UnitWish(
            **{name: getattr(WISH, name) for name in WISH.__slots__ if name not in ("groups",)}
            | {"has_accelerators": True, "groups": ("video",)}
        )
    )
    assert "DeviceAllow=char-nvidia rw" in text
    assert "SupplementaryGroups=video" in text
    assert "PrivateDevices" not in text


ANALYZE = shutil.which("systemd-analyze")
needs_analyze = pytest.mark.skipif(ANALYZE is None, reason="systemd-analyze is not installed")


@needs_analyze
@pytest.mark.parametrize("is_system", [True, False])
@pytest.mark.parametrize("has_accelerators", [True, False])
def test_systemd_finds_nothing_wrong(is_system, has_accelerators, tmp_path):
    fields = {name: getattr(WISH, name) for name in WISH.__slots__}
    changes = {"is_system": is_system, "has_accelerators": has_accelerators}
    wish = UnitWish(**{**fields, **changes})
    path = tmp_path / wish.name
    path.write_text(service_units.text_of(wish))
    scope = [] if is_system else ["--user"]
    done = subprocess.run(
        [ANALYZE, *scope, "verify", "--man=no", str(path)],
        capture_output=True,
        text=True,
        env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)},
        check=False,
    )
    ours = [line for line in done.stderr.splitlines() if wish.name in line]
    assert (done.returncode, ours) == (0, [])


@needs_analyze
def test_a_system_unit_is_rated_as_safe(tmp_path):
    path = tmp_path / WISH.name
    path.write_text(service_units.text_of(WISH))
    done = subprocess.run(
        [ANALYZE, "security", "--offline=true", "--threshold=25", "--no-pager", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-200:]
