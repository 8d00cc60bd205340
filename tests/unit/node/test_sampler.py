"""Samples of what the model writes: when they are drawn, and what is kept of them."""

from __future__ import annotations

import asyncio

import pytest

from host.files.local_settings import LearnerSettings
from node.daemon import sampler
from node.daemon.sampler import Sampler
from protocol.errors import TransientError


class Trainer:
    def __init__(self, *answers):
        self.answers = list(answers)
        self.asked = []
        self.is_at_work = True

    async def draw(self, prompt, tokens):
        self.asked.append((prompt, tokens))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def sampler(self, every_s=60.0):
        wanted = LearnerSettings(sample_every_s=every_s, sample_prompt="the ")
        return Sampler(wanted, self.draw, lambda: 7, lambda: self.is_at_work)


@pytest.fixture
def slept(monkeypatch):
    """Seconds of each rest; the fourth ends it."""
    rests = []

    async def sleep(seconds):
        rests.append(seconds)
        if len(rests) == 4:
            raise asyncio.CancelledError

    monkeypatch.setattr(sampler.asyncio, "sleep", sleep)
    return rests


def run(made):
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(made.run())


def test_a_sample_is_drawn_on_its_schedule_and_the_newest_is_kept(slept):
    trainer = Trainer("sea", "sky", "sun", "x" * 10_000)
    made = trainer.sampler()
    run(made)
    assert slept == [60.0] * 4
    assert trainer.asked == [("the ", sampler.TOKENS)] * 4
    one = made.newest
    assert (one.prompt, one.global_step, len(one.text)) == ("the ", 7, sampler.TEXT_CHARS_MAX)


def test_a_trainer_that_ends_or_rests_is_asked_again_soon(slept):
    trainer = Trainer(TransientError("it ended"), "sea", "", "sky")
    made = trainer.sampler(every_s=1.0)
    run(made)
    assert slept == [sampler.LOOK_S, *[sampler.EVERY_S_MIN] * 3]
    assert made.newest.text == "sky"


def test_nobody_is_asked_while_it_does_not_train(slept):
    trainer = Trainer()
    trainer.is_at_work = False
    made = trainer.sampler()
    run(made)
    assert (trainer.asked, made.newest) == ([], None)


def test_without_a_schedule_there_is_none():
    trainer = Trainer()
    asyncio.run(trainer.sampler(every_s=0.0).run())
    assert trainer.asked == []
