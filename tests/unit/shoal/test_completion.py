"""What a shell completes: verbs and options, and the names that this machine knows."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import msgspec
import pytest

from host.files import memberships
from host.files.home import Home
from host.join_link import format_link, parse_link
from protocol.status import ContributorRow, SeatStatus, SyncerStatus, VoterRow
from shoal.cli.app import app
from shoal.common import known_names
from tests.support.daemon_double import LINK, STATUS, FakeDaemon

EVIL = "eve\x1b[2J $(touch HERE)"


def syncer(**changes):
    plain = SyncerStatus(
        key="5a" * 32,
        name="default",
        pid=5,
        version="0.1.0",
        uptime_s=65.0,
        phase="training",
        sentence="All is well.",
        join_link=LINK,
        project=STATUS.project,
        swarm=STATUS.swarm,
        network=STATUS.network,
    )
    return msgspec.structs.replace(plain, **changes)


def gave(number, name):
    return ContributorRow(key=f"{number:02x}" * 32, name=name, tokens=1, merges=1)


@pytest.fixture
def home(tmp_path):
    """Where two learners joined, one project each."""
    home = Home(tmp_path / "home")
    for at, (name, instance) in enumerate((("My project", "default"), ("Other", "two"))):
        link = parse_link(LINK)
        link = msgspec.structs.replace(link, name=name, project=bytes([at]) * 32)
        joined = memberships.Joined(link=format_link(link), instance=instance, at_s=float(at))
        memberships.remember(home, joined)
    return home


@pytest.fixture
def hosting(home):
    """... and a syncer runs, which knows learners and voters."""
    learners = [gave(1, "ada"), gave(2, "rowers/bob"), gave(3, "twin"), gave(4, "twin")]
    voters = [
        VoterRow(key="5a" * 32, role="syncer", priority=50),
        VoterRow(key="5b" * 32, role="witness", priority=0, name="cellar"),
    ]
    seat = SeatStatus(role="leading", epoch=0, term=1, leader="5a" * 32, voters=voters)
    status = syncer(contributors=[*learners, gave(5, EVIL)], seat=seat)
    daemon = FakeDaemon(home.socket("syncer"), status)
    yield home
    daemon.close()


def test_projects_and_instances_are_those_joined_here(home):
    assert known_names.projects(home) == {"Other": "joined here", "My project": "joined here"}
    assert known_names.instances(home) == {
        "default": "learner of My project",
        "two": "learner of Other",
    }
    assert known_names.learners(home) == {}


def test_learners_are_named_where_a_name_is_one_keys_alone(hosting):
    found = known_names.learners(hosting)
    assert {"ada", "rowers/bob", "03" * 8, "04" * 8} < found.keys()
    assert found["03" * 8] == "learner twin"
    assert all(name.isprintable() for name in found)
    assert known_names.voters(hosting) == {"5a" * 8: "syncer", "cellar": "witness 5b5b5b5b"}


def test_where_nothing_is_there_is_nothing_to_complete(tmp_path):
    empty = Home(tmp_path / "none")
    for names in (known_names.projects, known_names.instances, known_names.learners):
        assert names(empty) == {}
    assert not (tmp_path / "none").exists()


def test_the_home_of_the_command_line_counts(tmp_path, monkeypatch):
    monkeypatch.setenv("SHOAL_HOME", "/of/environment")
    assert str(known_names.home_of(["__complete", "run", ""]).root) == "/of/environment"
    assert str(known_names.home_of(["--home", "/a", "run", ""]).root) == "/a"
    assert str(known_names.home_of(["run", "--home=/b", ""]).root) == "/b"


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    """What `shoal --install-completion` gives to bash."""
    path = tmp_path_factory.mktemp("completion") / "shoal.bash"
    path.write_text(app.generate_completion(shell="bash"))
    return path


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
def test_bash_completes_what_this_machine_knows(script, hosting, tmp_path):
    command = tmp_path / "bin" / "shoal"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m shoal "$@"\n')
    command.chmod(0o755)

    def completed(*words):
        listed = " ".join(f"'{word}'" for word in ("shoal", *words))
        lines = [
            f"PATH={command.parent}:$PATH",
            f"source '{script}'",
            f"COMP_WORDS=({listed}); COMP_CWORD={len(words)}",
            "_shoal",
            'printf "%s\\n" "${COMPREPLY[@]}"',
        ]
        done = subprocess.run(
            ["bash", "--norc", "-c", "\n".join(lines)],
            env={**os.environ, "SHOAL_HOME": str(hosting.root)},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        return set(filter(None, done.stdout.splitlines()))

    assert completed("run", "") == {"My\\ project", "Other"}
    assert completed("run", "My") == {"My\\ project"}
    assert completed("stop", "--instance", "") == {"default", "two"}
    assert {"ada", "rowers/bob"} < completed("project", "ban", "")
    assert {"status", "stop", "syncer"} == completed("s") - {"service", "sim"}
    assert not (tmp_path / "HERE").exists()
