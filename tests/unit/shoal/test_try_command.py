"""The `try` verb: whose weights, which project, and what is typed."""

from __future__ import annotations

import io

import msgspec
import pytest

from host.files.home import Home
from node.trainer.model import initial_weights
from protocol.project import encode
from shoal.__main__ import main
from shoal.common.exit_codes import ExitCode
from tests.support.daemon_double import STATUS, FakeDaemon
from tests.support.tiny_project import tiny_genesis

ONE, OTHER = "ab" * 32, "cd" * 32


@pytest.fixture(scope="module")
def genesis(tmp_path_factory):
    plain = tiny_genesis(tmp_path_factory.mktemp("project"))
    return msgspec.structs.replace(plain, fragments=1)


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("SHOAL_HOME", str(tmp_path / "home"))
    # Else every later test of this process would give way to everything.
    monkeypatch.setattr("node.trainer.tools.talk.give_way", lambda: None)
    return Home()


@pytest.fixture
def started():
    """Daemons that a test starts, ended with it."""
    running = []
    yield running
    for one in running:
        one.close()


def daemon(home, genesis, *, role="learner", project=ONE, step=7, said=None):
    """said: another genesis, that it says the weights are of."""
    (values,) = initial_weights(genesis)
    status = msgspec.structs.replace(
        STATUS, project=msgspec.structs.replace(STATUS.project, id=project, name=role)
    )
    named = {
        "ticket": 1,
        "genesis": encode(said or genesis),
        "global_step": step,
        "tokens": 512,
        "numels": [values.size],
    }
    answers = {"weights": named, "piece": {"values": values.tobytes()}}
    return FakeDaemon(home.socket(role), status, answers=answers)


def typed(monkeypatch, *lines):
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))


PROMPT = ("try", "--prompt", "ab", "--tokens", "6", "--temperature", "0")


def test_one_prompt_prints_what_follows_and_nothing_else(home, genesis, started, capsys):
    started.append(daemon(home, genesis))
    assert main(list(PROMPT)) == ExitCode.DONE
    first = capsys.readouterr()
    assert first.out.endswith("\n")
    assert len(first.out) <= 8
    told = first.err.splitlines()
    assert told[0] == "tiny, global step 7 after 512 tokens, from the running learner"
    assert main(list(PROMPT)) == ExitCode.DONE
    assert capsys.readouterr().out == first.out


def test_a_syncer_is_asked_before_a_learner(home, genesis, started, capsys):
    started += [daemon(home, genesis), daemon(home, genesis, role="syncer", step=9)]
    assert main(list(PROMPT)) == ExitCode.DONE
    assert "global step 9 after 512 tokens, from the running syncer" in capsys.readouterr().err


def test_a_conversation_goes_on_until_quit(home, genesis, started, capsys, monkeypatch):
    started.append(daemon(home, genesis))
    typed(monkeypatch, "ab", "", "/new", "ab", "/quit", "never")
    assert main(["try", "--tokens", "6", "--temperature", "0"]) == ExitCode.DONE
    seen = capsys.readouterr()
    assert "It continues what you write. /new: begin again" in seen.err
    assert seen.err.count("global step 7") == 2
    answers = seen.out.split("\n")
    assert len(answers) == 4
    assert answers[0] == answers[2] != ""


def test_weights_stay_where_the_daemon_is_gone(home, genesis, started, capsys, monkeypatch):
    running = daemon(home, genesis)
    lines = iter(["ab", "/new", "ab"])

    def line(_):
        said = next(lines, None)
        if said == "/new":
            running.close()
        if said is None:
            raise EOFError
        return said

    monkeypatch.setattr("builtins.input", line)
    assert main(["try", "--tokens", "6", "--temperature", "0"]) == ExitCode.DONE
    seen = capsys.readouterr()
    assert "The weights stay as they are." in seen.err
    first, again, _ = seen.out.split("\n")
    assert first == again


def test_ctrl_c_ends_an_answer_and_not_the_conversation(
    home, genesis, started, capsys, monkeypatch
):
    started.append(daemon(home, genesis))
    typed(monkeypatch, "ab", "cd", "/quit")
    asked = []

    def say(self, text, out, **_):
        asked.append(text)
        if len(asked) == 1:
            raise KeyboardInterrupt
        out("!")

    monkeypatch.setattr("node.trainer.tools.talk.Talk.say", say)
    assert main(["try"]) == ExitCode.DONE
    assert asked == ["ab", "cd"]
    assert capsys.readouterr().out.endswith("!\n")


def test_several_projects_are_named_and_one_is_chosen(home, genesis, started, capsys):
    started += [
        daemon(home, genesis),
        daemon(home, genesis, role="syncer", project=OTHER),
    ]
    assert main(list(PROMPT)) == ExitCode.WRONG_INPUT
    refused = capsys.readouterr().err
    assert "learner (abababab)" in refused
    assert "syncer (cdcdcdcd)" in refused
    assert main([PROMPT[0], "cdcd", *PROMPT[1:]]) == ExitCode.DONE
    assert "from the running syncer" in capsys.readouterr().err


def test_without_any_project_it_says_what_to_do(home, capsys):
    assert main(list(PROMPT)) == ExitCode.WRONG_INPUT
    assert "Join one with `shoal join`" in capsys.readouterr().err


def test_a_model_that_cannot_be_loaded_ends_it(home, genesis, started, capsys, monkeypatch):
    model = msgspec.structs.replace(genesis.model, architecture="BertModel")
    started.append(daemon(home, genesis, said=msgspec.structs.replace(genesis, model=model)))
    typed(monkeypatch, "ab", "cd")
    assert main(["try"]) == ExitCode.WRONG_INPUT
    assert "'BertModel' is not supported" in capsys.readouterr().err
