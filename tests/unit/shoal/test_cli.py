"""The command as people and scripts meet it: verbs, one-line errors, exit codes."""

from __future__ import annotations

import errno
import json
import re
import shutil
import subprocess
from collections.abc import Iterator

import pytest

from host.files import keystore
from host.files.home import Home
from host.options import NodeOptions
from node.daemon import learner_daemon
from protocol.errors import CorruptState, TransientError, UserError
from shoal.__main__ import foreign_package, main
from shoal.cli import app
from shoal.common.exit_codes import MEANINGS
from shoal.machine import status_command
from tests.support.daemon_double import LINK, SENTENCE, FakeDaemon


@pytest.fixture
def home(tmp_path, monkeypatch) -> Home:
    monkeypatch.setenv("SHOAL_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(learner_daemon, "run", raising(AssertionError("no daemon was to start")))
    return Home()


@pytest.fixture
def daemon(home) -> Iterator[FakeDaemon]:
    running = FakeDaemon(home.socket("learner"))
    yield running
    running.close()


def error_of(capsys) -> str:
    """The one line on stderr."""
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("error: ")
    return lines[0]


def test_help_names_every_verb_and_every_exit_code(capsys):
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    verbs = "project syncer witness join status stop export demo version"
    areas = "config identity service sim"
    for verb in f"{verbs} {areas}".split():
        assert re.search(rf"│ {verb} +[A-Z]", text), f"{verb} is not explained"
    assert "--home" in text
    for code, meaning in MEANINGS.items():
        assert f"{int(code)}  {meaning}" in text


@pytest.mark.parametrize(
    "verb",
    [
        *("project create", "project sign", "project show", "syncer run", "syncer key"),
        *("project add-syncer", "project add-witness", "project remove-voter", "project readmit"),
        *("project ban", "project unban", "project set", "project reset-seat"),
        *("syncer drain", "syncer readmit", "witness run", "witness key", "syncer status"),
        *("init", "doctor", "run", "leave", "logs", "version", "pause", "resume", "finish", "tui"),
        *("identity show", "identity export", "identity import", "project invite"),
        *("config list", "config get", "config set", "config unset", "config explain"),
        *("invite", "config path", "service install", "service status", "service uninstall"),
        *("project restore-snapshot", "syncer snapshot"),
        *("join", "status", "stop", "export", "demo"),
    ],
)
def test_every_verb_explains_itself(verb, capsys):
    assert main([*verb.split(), "--help"]) == 0
    assert verb in capsys.readouterr().out


def test_the_version_is_one_line_or_a_table(capsys):
    assert main(["--version"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("shoal ")
    assert main(["version"]) == 0
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert names[:4] == ["shoal", "protocol", "engine", "torch"]
    assert main(["version", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["protocol"] in line


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["statsu"], 'Did you mean "status"'),
        (["status", "--jsn"], "--jsn"),
        (["status", "x"], "`shoal status` takes no more arguments, but got 'x'"),
        (["stats", "run"], "Ask `shoal --help`"),
        (["project", "shw"], "Ask `shoal project --help`"),
        (
            ["config", "set", "limits.nice"],
            "No value for limits.nice: shoal config set limits.nice VALUE",
        ),
        (["export"], "--to needs a value: Directory"),
        (["join", LINK, "--monitor"], "--monitor needs a value: Port"),
        (["join", LINK, "--log-json", "--log-text"], "--log-text is given more than once"),
        (["logs", "--lines", "-1"], "--lines"),
        (["service", "install", "--role", "syncer"], "Name the signed project"),
        (["join"], "Give its join link: shoal join 'shoal:...'"),
        (["join", "Otter Lamp River Stone"], "shoal join --nearby otter-lamp-river-stone"),
        (["join", LINK, "--duty", "0"], "--duty"),
        (["join", LINK, "--threads", "two"], "--threads"),
        (["join", LINK, "--port", "70000"], "--port"),
        (["join", "http://example.org"], "shoal:"),
        (["join", LINK, "--instance", "A"], "instance name"),
        (["join", LINK, "--name", "x" * 65], "name"),
        (["project", "sign", "absent.toml"], "shoal project create"),
        (["project", "show", "absent.shoal"], "shoal project sign absent.toml"),
        (["project", "create", "project.json"], "project.toml"),
        (["syncer", "run", "absent.toml"], "shoal project create"),
        (["syncer", "run", "absent.json"], ".shoal"),
        (["witness", "run", "absent.toml"], "shoal project create"),
        (["project", "add-syncer", "absent.shoal"], "needs PROJECT"),
        (["project", "ban", "ab" * 32, "absent.shoal"], "shoal project sign absent.toml"),
        (["export", "--to", "model"], "No syncer default"),
        (["export", "--to", "model", "--checkpoint", "worst"], "--checkpoint"),
        (["export", "--to", "."], "--to"),
        (["stop", "--role", "owner"], "--role"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(home, tmp_path, arguments, words, capsys):
    (tmp_path / "here").touch()
    assert main(arguments) == 2
    assert words in error_of(capsys)


def test_only_syncers_where_syncers_are_asked(home, daemon, capsys):
    assert main(["syncer", "status"]) == 3
    assert "No syncer daemon" in error_of(capsys)


BASH = shutil.which("bash")


@pytest.mark.skipif(BASH is None, reason="bash is not installed")
@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        (["shoal", "doc"], "doctor"),
        (["shoal", "config", "exp"], "explain"),
        (["shoal", "join", "--mon"], "--monitor"),
        (["shoal", "logs", "--level", "war"], "warning"),
    ],
)
def test_bash_completes_verbs_options_and_choices(typed, offered, tmp_path):
    assert main(["--install-completion", "--shell", "bash", "--output", str(tmp_path / "x")]) == 0
    program = (
        f"source {tmp_path / 'x'}; COMP_WORDS=({' '.join(typed)}); COMP_CWORD={len(typed) - 1}; "
        'COMP_LINE="${COMP_WORDS[*]}"; _shoal; echo "${COMPREPLY[@]}"'
    )
    done = subprocess.run([BASH, "-c", program], capture_output=True, text=True, check=False)
    assert offered in done.stdout.split(), done.stderr


@pytest.mark.parametrize("verb", ["status", "stop"])
def test_nobody_there_is_exit_code_3_and_says_how_to_start(home, verb, capsys):
    assert main([verb]) == 3
    assert "shoal join LINK" in error_of(capsys)
    assert not home.root.exists()


def test_a_home_is_named_before_or_after_the_verb(home, tmp_path, capsys):
    other = str(tmp_path / "other")
    assert main(["--home", other, "status"]) == 3
    assert other in error_of(capsys)
    assert main(["status", "--home", other]) == 3
    assert other in error_of(capsys)


def test_status_says_how_things_are(daemon, capsys):
    assert main(["status"]) == 0
    assert SENTENCE in capsys.readouterr().out
    assert main(["status", "--instance", "other"]) == 3


def test_status_as_json_is_a_list_of_tagged_maps(daemon, capsys):
    assert main(["status", "--json"]) == 0
    (status,) = json.loads(capsys.readouterr().out)
    assert (status["type"], status["sentence"]) == ("node", SENTENCE)
    said = f"The network is down. {SENTENCE}"
    assert status["verdict"] == {"level": "CARE", "sentence": said}


def test_a_socket_that_a_killed_daemon_left_is_named_and_the_others_are_shown(home, daemon, capsys):
    home.socket("syncer").touch()
    assert main(["status"]) == 0
    printed = capsys.readouterr()
    assert SENTENCE in printed.out
    assert "syncer default" in printed.err


@pytest.mark.parametrize("as_json", [True, False])
def test_watching_goes_on_until_ctrl_c_and_that_is_no_failure(
    daemon, home, as_json, capsys, monkeypatch
):
    looks = []

    def pause() -> None:
        looks.append(1)
        if len(looks) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(status_command, "pause", pause)
    arguments = ["status", "--watch", *(["--json"] if as_json else [])]
    assert main(arguments) == 0
    assert len(looks) == 3
    assert SENTENCE in capsys.readouterr().out


def test_stop_waits_until_the_daemon_is_gone(daemon, home, capsys):
    assert main(["stop"]) == 0
    assert capsys.readouterr().out == "learner default has stopped\n"
    assert home.daemons() == []


def test_a_project_is_created_once(home, tmp_path, capsys):
    assert main(["project", "create", "--name", "harbour"]) == 0
    text = (tmp_path / "project.toml").read_text()
    assert 'name = "harbour"' in text
    assert main(["project", "create"]) == 2
    assert "not overwritten" in capsys.readouterr().err
    assert (tmp_path / "project.toml").read_text() == text
    assert main(["project", "show", "project.toml"]) == 0
    assert "harbour" in capsys.readouterr().out


def test_a_project_that_is_not_signed_cannot_be_served(home, capsys):
    main(["project", "create"])
    assert main(["syncer", "run", "project.toml"]) == 2
    assert "shoal project sign project.toml" in capsys.readouterr().err


def test_the_witnesses_key_is_the_one_it_will_run_with(home, capsys):
    assert main(["witness", "key"]) == 0
    key = keystore.load_or_create(home.identity("witness")).key
    assert capsys.readouterr().out == key.hex() + "\n"


def test_nobody_to_drain_is_exit_code_3(home, capsys):
    assert main(["syncer", "drain"]) == 3
    assert "No syncer daemon called default runs in" in error_of(capsys)


def test_the_syncers_key_is_the_one_it_will_run_with(home, capsys):
    assert main(["syncer", "key"]) == 0
    key = keystore.load_or_create(home.identity("syncer")).key
    assert capsys.readouterr().out == key.hex() + "\n"


def test_join_hands_its_choices_to_the_daemon(home, monkeypatch):
    got: list[NodeOptions] = []
    monkeypatch.setattr(learner_daemon, "run", lambda options: got.append(options) or 4)
    arguments = ["--duty", "0.5", "--threads", "2", "--no-evaluate", "--device", "cpu"]
    assert main(["join", LINK, *arguments]) == 4
    options = got[0]
    assert options.home.root == home.root
    assert options.link.name == "tiny"
    assert (options.duty_frac, options.threads, options.evaluates) == (0.5, 2, False)
    key = keystore.load_or_create(home.identity("learner")).key
    assert options.name == f"learner-{key[:4].hex()}", "not the host's name, which is private"


def raising(error: BaseException):
    def run(arguments: object) -> int:
        raise error

    return run


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UserError("a\nb"), 2),
        (TransientError("away"), 3),
        (CorruptState("bad disk"), 1),
        (BrokenPipeError(), 0),
    ],
)
def test_errors_of_ours_are_one_line_without_a_trace(home, error, code, capsys, monkeypatch):
    monkeypatch.setattr(app, "run", raising(error))
    assert main([]) == code
    assert "Traceback" not in capsys.readouterr().err


def test_ctrl_c_is_130_for_a_verb_and_a_clean_stop_for_a_daemon(home, monkeypatch):
    monkeypatch.setattr(learner_daemon, "run", raising(KeyboardInterrupt()))
    assert main(["join", LINK]) == 0
    monkeypatch.setattr(app, "run", raising(KeyboardInterrupt()))
    assert main([]) == 130


def test_a_bug_is_70_and_its_trace_is_in_a_file(home, capsys, monkeypatch):
    monkeypatch.setattr(learner_daemon, "run", raising(ZeroDivisionError("oops")))
    assert main(["join", LINK]) == 70
    assert "ZeroDivisionError: oops" in error_of(capsys)
    (report,) = home.logs().glob("crash-*.txt")
    assert "Traceback" in report.read_text()


def test_a_report_says_cause_versions_and_command(home, capsys, monkeypatch):
    monkeypatch.setattr(learner_daemon, "run", raising(ZeroDivisionError("oops")))
    main(["join", LINK])
    (report,) = home.logs().glob("crash-*.txt")
    for word in ("cause", "ZeroDivisionError: oops", "command", "protocol", "torch", "home"):
        assert word in report.read_text()


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.ENOSPC, "No space left", "/data/x"), "disk is full (/data/x). Free"),
        (MemoryError(), "out of memory"),
        (OSError(errno.EMFILE, "Too many open files"), "ulimit -n"),
        (ModuleNotFoundError("No module named 'torch'", name="torch"), "library torch is missing"),
    ],
)
@pytest.mark.parametrize("wrap", ["bare", "group", "cause"])
def test_what_is_wrong_with_the_machine_is_no_bug_of_ours(
    home, error, words, wrap, capsys, monkeypatch
):
    outer: Exception = error
    if wrap == "group":
        outer = ExceptionGroup("unhandled errors", [error, ValueError("a consequence")])
    elif wrap == "cause":
        outer = RuntimeError("something failed")
        outer.__cause__ = error
    monkeypatch.setattr(learner_daemon, "run", raising(outer))
    assert main(["join", LINK]) == 1
    assert words in error_of(capsys)
    (report,) = home.logs().glob("crash-*.txt")
    assert type(error).__name__ in report.read_text()


def test_an_error_of_ours_alone_in_a_group_is_itself(home, capsys, monkeypatch):
    monkeypatch.setattr(app, "run", raising(ExceptionGroup("g", [UserError("say it again")])))
    assert main([]) == 2
    assert error_of(capsys) == "error: say it again"


def test_a_package_of_somebody_else_is_named_before_anything_runs(capsys, monkeypatch):
    assert foreign_package() is None
    monkeypatch.setattr("tui.__project__", "another")
    assert main(["version"]) == 2
    line = error_of(capsys)
    assert "'tui'" in line
    assert "tui/__init__.py" in line
