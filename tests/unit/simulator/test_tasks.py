"""Questions for small models: each has one right answer, and guessing is told from knowing."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from simulator.compare.tasks import OPENS, TASKS, WINDOW, Questions, scores, share_right

TEXT = b"x = {'one': 1, 'two': 22}; y = [one, two + three]; z = call(one, two + four)\n"


def heldout(text=TEXT, sequences=48, tokens=64):
    """Text over and over, cut into sequences that begin at different places."""
    whole = np.frombuffer(text * (sequences * tokens), np.uint8).astype(np.int64)
    return np.stack([whole[at * 7 : at * 7 + tokens] for at in range(sequences)])


class Model(torch.nn.Module):
    """Says what a function of the bytes before it says."""

    def __init__(self, says):
        super().__init__()
        self.says = says
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def forward(self, input_ids):
        logits = torch.zeros(*input_ids.shape, 256)
        for row, prompt in enumerate(input_ids.tolist()):
            logits[row, -1, self.says(bytes(prompt))] = 1.0
        return SimpleNamespace(logits=logits)


def behind_the_same(prompt):
    """The byte behind the last one, where it was before."""
    return prompt[prompt.index(prompt[-1]) + 1]


def that_closes(prompt):
    opened = []
    for byte in prompt:
        if byte in OPENS.values():
            opened.append(byte)
        elif byte in OPENS and opened:
            opened.pop()
    return next(close for close, opens in OPENS.items() if opens == opened[-1])


def that_adds(prompt):
    one, other = prompt.rsplit(b"\n", 1)[1].removesuffix(b"=").split(b"+")
    return ord(str(int(one) + int(other)))


def that_copies(prompt):
    return prompt[len(prompt.split(b"\n")[1])]


@pytest.mark.parametrize(
    ("task", "says"),
    [
        ("brackets", that_closes),
        ("copying", that_copies),
        ("induction", behind_the_same),
        ("arithmetic", that_adds),
    ],
)
def test_who_knows_the_rule_has_all_of_them_right(task, says):
    questions = TASKS[task].make(heldout())
    assert len(questions.answers) == len(questions.prompts) >= 12
    assert share_right(Model(says), questions) == 1.0


@pytest.mark.parametrize("task", list(TASKS))
def test_who_always_says_the_same_is_no_better_than_a_guess(task):
    questions = TASKS[task].make(heldout())
    best = max(share_right(Model(lambda _, byte=byte: byte), questions) for byte in range(256))
    assert best <= max(0.25, TASKS[task].chance + 1e-9)


def test_brackets_are_as_many_of_each_kind_and_can_be_seen_open():
    questions = TASKS["brackets"].make(heldout())
    kinds, counts = np.unique(questions.answers, return_counts=True)
    assert set(kinds) == set(OPENS)
    assert len(set(counts)) == 1
    assert questions.prompts.shape[1] == WINDOW
    for prompt, answer in zip(questions.prompts, questions.answers, strict=True):
        assert OPENS[int(answer)] in prompt


def test_only_the_options_count():
    prompts, answers = np.zeros((1, 3), np.int64), np.array([ord(")")])
    shouting = Model(lambda _: ord("x"))
    assert share_right(shouting, Questions(prompts, answers)) == 0.0
    assert share_right(shouting, Questions(prompts, answers, (ord(")"),))) == 1.0


def test_a_text_without_brackets_has_no_questions_about_them():
    found = scores(Model(behind_the_same), heldout(b"nothing to be closed here, and so on. "))
    assert set(found) == set(TASKS) - {"brackets"}


def test_the_questions_are_the_same_each_time():
    for task in TASKS.values():
        one, other = task.make(heldout()), task.make(heldout())
        np.testing.assert_array_equal(one.prompts, other.prompts)
        np.testing.assert_array_equal(one.answers, other.answers)
