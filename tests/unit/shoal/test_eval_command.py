"""`shoal eval`: scores of lm-eval, from task files on this machine."""

from __future__ import annotations

import json

import pytest
import torch
import transformers

from host.files.home import Home
from node.trainer.model import initial_weights
from node.trainer.tools.export import export_model
from shoal.__main__ import main
from shoal.common.exit_codes import ExitCode
from tests.support.own_tasks import NAME, QUESTIONS, RIGHT, own_tasks
from tests.support.tiny_project import tiny_genesis

pytestmark = pytest.mark.slow


@pytest.fixture
def place(tmp_path, monkeypatch):
    pytest.importorskip("lm_eval")
    monkeypatch.setenv("SHOAL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "datasets"))
    monkeypatch.chdir(tmp_path)
    # Else every later test of this process would give way to everything.
    monkeypatch.setattr("node.trainer.tools.benchmark.give_way", lambda: None)
    genesis = tiny_genesis(tmp_path)
    export_model(genesis, initial_weights(genesis), tmp_path / "model", tmp_path / "cache")
    own_tasks(tmp_path / "tasks")
    return tmp_path


def by_hand(folder):
    """Share of questions to whose right answer the model gives more."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()

    def logprob(question, answer):
        asked, said = list(question.encode()), list(answer.encode())
        with torch.no_grad():
            rows = model(torch.tensor([asked + said])).logits[0].log_softmax(-1)
        places = range(len(asked) - 1, len(asked) + len(said) - 1)
        return sum(float(rows[at, token]) for at, token in zip(places, said, strict=True))

    right = [
        logprob(question, answers[wanted]) > logprob(question, answers[1 - wanted])
        for (question, *answers), wanted in zip(QUESTIONS, RIGHT, strict=True)
    ]
    return sum(right) / len(right)


def test_scores_are_those_of_the_models_own_probabilities(place, capsys):
    command = ["eval", "--tasks", "tasks", "--model", "model", "--json", "scores.json"]
    assert main(command) == ExitCode.DONE
    said = json.loads((place / "scores.json").read_text())
    assert said["results"][NAME]["acc,none"] == by_hand(place / "model")
    assert said["n-samples"][NAME]["effective"] == len(QUESTIONS)
    assert NAME in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--tasks", "nowhere", "--model", "model"], "There is no folder nowhere"),
        (["--tasks", "model", "--model", "model"], "has no task files"),
        (["--tasks", "tasks", "--model", "model", "--only", "nope"], "Choose of: own_words"),
        (["--tasks", "tasks", "--model", "tasks"], "tasks holds no model"),
        (["--tasks", "tasks", "--model", "model", "--step", "3"], "names the weights already"),
        (["--tasks", "tasks", "--model", "model", "--chat"], "has no chat template"),
        (["--tasks", "tasks"], "No syncer default has run"),
    ],
)
def test_what_is_missing_is_said(place, options, words, capsys):
    assert main(["eval", *options]) == ExitCode.WRONG_INPUT
    assert words in capsys.readouterr().err
    assert not list(Home().data_cache().glob("eval-*"))


def test_a_task_without_its_data_is_named(place, capsys):
    (place / "tasks" / "words.jsonl").unlink()
    assert main(["eval", "--tasks", "tasks", "--model", "model"]) == ExitCode.WRONG_INPUT
    assert "The tasks own_words cannot be loaded" in capsys.readouterr().err


def test_without_the_library_it_says_how_to_install_it(place, capsys, monkeypatch):
    monkeypatch.setattr("shoal.model.eval_command.find_spec", lambda name: None)
    assert main(["eval", "--tasks", "tasks", "--model", "model"]) == ExitCode.WRONG_INPUT
    assert "pip install 'shoal-train[eval]'" in capsys.readouterr().err
