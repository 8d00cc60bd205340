"""What was joined is kept: `shoal run` goes on with it, `shoal leave` forgets it."""

from __future__ import annotations

import socket

import msgspec
import pytest

from host.files import crash_marker, memberships
from host.files.home import DEFAULT_INSTANCE, Home
from host.join_link import JoinLink, format_link
from node.daemon import learner_daemon
from protocol.errors import UserError
from protocol.status import NodeStatus
from shoal.__main__ import main
from shoal.machine import leave_command
from tests.support.daemon_double import PEER, STATUS, FakeDaemon


def link_to(number: int, name: str) -> str:
    return format_link(
        JoinLink(bytes([number]) * 32, 100, name, (f"/ip4/203.0.113.7/tcp/4100/p2p/{PEER}",))
    )


RUN = learner_daemon.run
TINY, LARGE = link_to(1, "tiny"), link_to(2, "large")


@pytest.fixture
def home(tmp_path, monkeypatch) -> Home:
    monkeypatch.setenv("SHOAL_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return Home()


@pytest.fixture
def started(home, monkeypatch) -> list:
    """The options of every daemon that was to start."""
    seen: list = []

    def begin(options):
        seen.append(options)
        options.on_accepted()
        return 0

    monkeypatch.setattr(learner_daemon, "run", begin)
    return seen


def test_a_whole_environment_may_have_a_health_address(started, monkeypatch):
    assert main(["join", TINY, "--name", "me"]) == 0
    monkeypatch.setenv("SHOAL_MONITOR", "9464")
    assert main(["run"]) == 0
    assert main(["join", TINY, "--name", "me"]) == 0
    assert main(["join", TINY, "--name", "me", "--monitor", "9000"]) == 0
    places = [None if one.monitor is None else one.monitor.port for one in started]
    assert places == [None, 9464, 9464, 9000]


def test_run_repeats_the_join_with_its_options(started, tmp_path):
    options = ["--port", "4711", "--device", "cpu", "--no-evaluate", "--data", "text"]
    assert main(["join", TINY, "--name", "me", "--tape", "off", *options]) == 0
    assert main(["run"]) == 0
    first, second = started
    assert second.link == first.link
    assert (second.name, second.port, second.device) == ("me", 4711, "cpu")
    assert (second.evaluates, second.tape.is_on) == (False, False)
    assert second.data == str(tmp_path / "text"), "from wherever it is run"


def test_a_join_that_is_refused_changes_nothing_of_what_run_repeats(started, monkeypatch):
    main(["join", TINY, "--name", "me", "--threads", "1"])

    def refuse(options):
        raise UserError("This machine does not suit tiny.")

    with monkeypatch.context() as patched:
        patched.setattr(learner_daemon, "run", refuse)
        assert main(["join", TINY]) == 2
        assert main(["join", LARGE]) == 2
    assert main(["run"]) == 0
    assert (started[-1].link.name, started[-1].name, started[-1].threads) == ("tiny", "me", 1)


def test_a_join_beside_a_running_learner_changes_nothing_of_what_run_repeats(
    started, home, monkeypatch, capsys
):
    main(["join", TINY, "--name", "me", "--threads", "1"])
    with (
        monkeypatch.context() as real,
        crash_marker.life(home, "learner", DEFAULT_INSTANCE, remedy=""),
    ):
        real.setattr(learner_daemon, "run", RUN)
        assert main(["join", TINY]) == 2
    assert "already" in capsys.readouterr().err
    assert main(["run"]) == 0
    assert (started[-1].name, started[-1].threads) == ("me", 1)


def test_a_join_says_what_it_lacks_of_the_former(started, capsys):
    main(["join", TINY, "--name", "me", "--threads", "1"])
    assert "former" not in capsys.readouterr().out
    main(["join", TINY, "--name", "me"])
    assert "without learner.threads of the former" in capsys.readouterr().out


def test_the_newest_is_run_unless_another_is_named(started, capsys):
    main(["join", TINY])
    main(["join", LARGE])
    main(["run"])
    assert "joined earlier: tiny" in capsys.readouterr().out
    main(["run", "tiny"])
    main(["run", "0202"])
    assert [one.link.name for one in started[2:]] == ["large", "tiny", "large"]


def test_each_instance_has_its_own(started, capsys):
    main(["join", TINY])
    main(["join", LARGE, "--instance", "two"])
    main(["run"])
    main(["run", "--instance", "two"])
    assert [one.link.name for one in started[2:]] == ["tiny", "large"]
    assert main(["run", "--instance", "three"]) == 2
    assert "No project has been joined here yet" in capsys.readouterr().err


def test_an_unknown_project_is_refused_with_those_that_are_known(started, capsys):
    main(["join", TINY])
    assert main(["run", "huge"]) == 2
    assert "Joined projects: tiny (01010101)" in capsys.readouterr().err


def test_leaving_forgets_it(started, home, capsys):
    main(["join", TINY])
    assert main(["leave"]) == 0
    assert "has left tiny" in capsys.readouterr().out
    assert main(["run"]) == 2
    assert home.project(bytes([1]) * 32).is_dir()


def test_one_of_several_projects_must_be_named_to_leave(started, capsys):
    main(["join", TINY])
    main(["join", LARGE])
    assert main(["leave"]) == 2
    assert "Name one of them: large (02020202), tiny (01010101)" in capsys.readouterr().err
    assert main(["leave", "large"]) == 0


def test_purging_removes_what_only_this_learner_needed(started, home, capsys):
    main(["join", TINY])
    main(["join", LARGE, "--instance", "two"])
    (home.project(bytes([1]) * 32) / "genesis").write_bytes(bytes(1000))
    (home.data_cache() / "text").write_bytes(bytes(2000))
    home.log("learner").write_bytes(bytes(500))
    home.suspended().mkdir()
    begun = home.begun_weights(bytes([1]) * 32)
    begun.mkdir(parents=True)
    (begun / "array").write_bytes(bytes(100))
    key = home.identity("learner")
    assert main(["leave", "--purge"]) == 0
    assert not (home.root / "projects" / ("01" * 32)).exists()
    assert not home.log("learner").exists()
    assert not home.suspended().exists()
    assert not begun.exists()
    assert (home.data_cache() / "text").exists(), "the other project may use it"
    assert key.exists()
    assert main(["leave", "--instance", "two", "--purge"]) == 0
    assert not (home.root / "cache").exists()


def test_purging_never_touches_a_voters_store(started, home, capsys):
    main(["join", TINY])
    store = home.syncer_store(bytes([1]) * 32)
    (store / "ballot").write_bytes(b"vote")
    assert main(["leave", "--purge"]) == 0
    assert (store / "ballot").exists()
    assert "what other daemons here use" in capsys.readouterr().out


def test_a_damaged_membership_is_told_with_its_file(started, home, capsys):
    main(["join", TINY])
    (place,) = home.project(bytes([1]) * 32).glob("joined-*.json")
    place.write_text("{}")
    assert main(["run"]) == 2
    assert str(place) in capsys.readouterr().err


def working_for(number: int) -> NodeStatus:
    """A learner that trains for the project of this number."""
    project = msgspec.structs.replace(STATUS.project, id=f"{number:02x}" * 32)
    return msgspec.structs.replace(STATUS, project=project)


def test_a_learner_at_work_hands_in_and_is_waited_for(started, home, capsys):
    main(["join", TINY])
    daemon = FakeDaemon(home.socket("learner"), working_for(1))
    assert main(["leave"]) == 0
    daemon.close()
    assert daemon.asked == ["finish"]
    assert home.daemons() == []


def test_a_learner_at_work_for_another_project_is_left_alone(started, home, capsys):
    main(["join", TINY])
    daemon = FakeDaemon(home.socket("learner"), working_for(2))
    assert main(["leave"]) == 0
    daemon.close()
    assert daemon.asked == []


def test_a_learner_that_stays_is_not_forgotten(started, home, capsys, monkeypatch):
    main(["join", TINY])
    monkeypatch.setattr(leave_command, "HAND_IN_S", 0.2)
    daemon = FakeDaemon(home.socket("learner"), working_for(1))
    monkeypatch.setattr(FakeDaemon, "end", lambda self, verb: {})
    assert main(["leave"]) == 3
    daemon.close()
    assert "nothing was forgotten" in capsys.readouterr().err
    assert len(memberships.memberships(home)) == 1


def test_a_killed_learner_does_not_keep_one_from_leaving(started, home):
    main(["join", TINY])
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(str(home.socket("learner")))
    assert main(["leave"]) == 0


def test_words_of_a_link_with_line_breaks_are_kept_without(started, home):
    main(["join", f"{TINY[:30]}\n {TINY[30:]}"])
    (one,) = memberships.memberships(home)
    assert one.joined.link == TINY


def test_a_link_that_is_none_leaves_no_trace(started, home):
    assert main(["join", TINY[:-3]]) == 2
    with pytest.raises(UserError):
        memberships.named(memberships.memberships(home), None)
