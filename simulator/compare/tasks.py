"""Questions that a small model of bytes can be asked, beside its loss.

Loss says how well a model continues text on the whole. Whether it uses what it was just told is
seen where only that gives the answer: which bracket is open, what came behind the same letters
before, what was copied so far. Every question has one right answer, a byte, and the model answers
with the likeliest one. The questions are the same for all models.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from node.trainer.text.reader import Sequences

Tokens = NDArray[np.int64]

SEED: Final = 20_604
QUESTIONS: Final = 256
WINDOW: Final = 32
"""Bytes that a question about brackets shows."""

OPENS: Final = {ord(")"): ord("("), ord("]"): ord("["), ord("}"): ord("{")}
LETTERS: Final = np.arange(ord("a"), ord("z") + 1, dtype=np.int64)
COPIED: Final = 12
RECALLED: Final = 20
BATCH: Final = 64


@dataclass(frozen=True, slots=True)
class Questions:
    """Of one kind."""

    prompts: Tokens
    """(questions, tokens)."""
    answers: Tokens
    """(questions,)."""
    options: tuple[int, ...] = ()
    """Among which the likeliest is taken; empty for every byte."""


@dataclass(frozen=True, slots=True)
class Task:
    """One kind of questions."""

    says: str
    chance: float
    """Share that a model has right which knows what kind of answer is wanted, and no more."""
    make: Callable[[Sequences], Questions]
    """From held-out text, which not all need."""


def scores(model: nn.Module, heldout: Sequences) -> dict[str, float]:
    """Of each task, the share of its questions that the model answers right; without those of which
    the text has no questions."""
    found = {}
    for name, task in TASKS.items():
        questions = task.make(heldout)
        if len(questions.answers):
            found[name] = share_right(model, questions)
    return found


def share_right(model: nn.Module, questions: Questions) -> float:
    """From 0 to 1."""
    right = 0
    device = next(model.parameters()).device
    options = torch.tensor(questions.options or range(256), device=device)
    with torch.no_grad():
        for first in range(0, len(questions.answers), BATCH):
            prompts = torch.from_numpy(questions.prompts[first : first + BATCH]).to(device)
            logits = model(input_ids=prompts).logits[:, -1]
            said = options[logits[:, options].argmax(dim=-1)].cpu().numpy()
            right += int((said == questions.answers[first : first + BATCH]).sum())
    return right / len(questions.answers)


def _brackets(heldout: Sequences) -> Questions:
    """As many of each kind, where the bracket that is to be closed can be seen."""
    found: dict[int, list[Tokens]] = {close: [] for close in OPENS}
    for sequence in heldout:
        for at in range(WINDOW, len(sequence)):
            close = int(sequence[at])
            if close in OPENS and _open_in(sequence[at - WINDOW : at]) == OPENS[close]:
                found[close].append(sequence[at - WINDOW : at])
    each = min(QUESTIONS // len(OPENS), *map(len, found.values()))
    prompts = [prompt for windows in found.values() for prompt in windows[:each]]
    answers = [close for close in OPENS for _ in range(each)]
    shown = np.stack(prompts) if prompts else np.empty((0, WINDOW), np.int64)
    return Questions(shown, np.array(answers, np.int64), tuple(OPENS))


def _open_in(window: Tokens) -> int | None:
    """The bracket that is open last; None where none is that can be seen."""
    opened: list[int] = []
    for byte in map(int, window):
        if byte in OPENS.values():
            opened.append(byte)
        elif byte in OPENS and opened and opened.pop() != OPENS[byte]:
            opened.clear()  # As in a string: what is open then is anybody's guess.
    return opened[-1] if opened else None


def _copying(heldout: Sequences) -> Questions:
    """A word of random letters, and on the next line the first half of it again."""
    chance = np.random.default_rng(SEED)
    words = chance.choice(LETTERS, (QUESTIONS, COPIED))
    lines = np.full((QUESTIONS, 1), ord("\n"), np.int64)
    half = COPIED // 2
    prompts = np.concatenate([words, lines, words[:, :half]], axis=1)
    return Questions(prompts, words[:, half])


def _induction(heldout: Sequences) -> Questions:
    """Letters in random order, then one of them again: what came behind it?"""
    chance = np.random.default_rng(SEED + 1)
    prompts, answers = [], []
    for _ in range(QUESTIONS):
        letters = chance.permutation(LETTERS)[:RECALLED]
        at = int(chance.integers(RECALLED - 1))
        prompts.append(np.append(letters, letters[at]))
        answers.append(letters[at + 1])
    return Questions(np.stack(prompts), np.array(answers))


def _arithmetic(heldout: Sequences) -> Questions:
    """Sums of one digit, behind four that are worked out."""
    chance = np.random.default_rng(SEED + 2)
    sums = [(one, other) for one in range(10) for other in range(10 - one)]
    prompts, answers = [], []
    for one, other in sums:
        shown = [sums[at] for at in chance.integers(len(sums), size=4)]
        text = "".join(f"{first}+{second}={first + second}\n" for first, second in shown)
        prompts.append(np.frombuffer(f"{text}{one}+{other}=".encode(), np.uint8).astype(np.int64))
        answers.append(ord(str(one + other)))
    digits = tuple(range(ord("0"), ord("9") + 1))
    return Questions(np.stack(prompts), np.array(answers), digits)


TASKS: Final[dict[str, Task]] = {
    "brackets": Task("closes the bracket that is open", 1 / 3, _brackets),
    "copying": Task("goes on copying a word of random letters", 1 / 26, _copying),
    "induction": Task("says what came behind the same letter before", 1 / 26, _induction),
    "arithmetic": Task("adds two digits", 1 / 10, _arithmetic),
}
