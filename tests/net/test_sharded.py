"""Two ranks that hold a model together, without a session: what they compute and what they hold."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from host.runtime.memory_files import MeetingFile
from tests.support.sharded_ranks import CASES, STEPS

pytestmark = pytest.mark.net

ROOT = Path(__file__).parents[2]
RANKS = 2
WAIT_S = 240.0


@pytest.fixture(scope="module")
def found():
    """By rank, what it found for each case."""
    meeting = MeetingFile("ranks")
    program = [sys.executable, "-m", "tests.support.sharded_ranks"]
    ranks = [
        subprocess.Popen(
            [*program, str(rank), str(RANKS), meeting.path],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            pass_fds=meeting.keep,
            text=True,
        )
        for rank in range(RANKS)
    ]
    try:
        return [json.loads(one.communicate(timeout=WAIT_S)[0]) for one in ranks]
    finally:
        for one in ranks:
            one.kill()
            one.wait()
        meeting.close()


@pytest.mark.parametrize("case", CASES)
def test_ranks_that_hold_the_model_together_have_the_losses_of_one(found, case):
    for rank in found:
        plain, together = rank[case]["losses"]
        assert len(plain) == STEPS
        assert together == pytest.approx(plain, abs=1e-5)
        assert plain[-1] < plain[0]


@pytest.mark.parametrize("case", CASES)
def test_each_rank_holds_half_of_the_weights_and_half_of_the_moments(found, case):
    for rank in found:
        (weights, moments), held = rank[case]["bytes"]
        assert moments == 2 * weights
        assert held == [pytest.approx(weights / RANKS, rel=0.02), pytest.approx(weights, rel=0.02)]
    together = [sum(rank[case]["bytes"][1][kind] for rank in found) for kind in (0, 1)]
    assert together[1] == 2 * found[0][case]["bytes"][0][0]


def test_each_kind_of_delivery_changes_the_rows_of_all_as_it_does_the_whole(found):
    assert found[0]["changed"] == [0.0, 0.0, 0.0]


def test_what_is_measured_has_no_dropout_and_what_is_trained_has(found):
    for rank in found:
        expected, loss, is_training = rank["measured"]
        assert loss == pytest.approx(expected, abs=1e-5)
        assert is_training


def test_a_compiler_is_left_out_and_that_is_said(found):
    for rank in found:
        words, is_compiled = rank["compiled"]
        assert "learner.compile is left out" in " ".join(words)
        assert not is_compiled


def test_a_rank_without_memory_ends_the_step_of_all(found):
    first, last = (rank["ended"] for rank in found)
    assert last == ["TrainerFailure", "oom", 2]
    assert first == ["RankLost", "", 2]
