"""What the demo of a liar reports and judges, without a process; `tests/net` has its liar."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest

from protocol.numerics.codecs import decode
from shoal.demo.liar import FACTOR, backwards, spawning
from shoal.demo.liar_command import LIAR, LiarReport, _Run, make_report, rows, shortfalls
from shoal.local_swarm import processes
from shoal.local_swarm.processes import SwarmFailed
from tests.support.builders import ONE, STRANGER, contribution, merged

SAID = f"Not counted, because their pushes point elsewhere: {LIAR.name} (ab12cd34)."


def run(loss, merges=()):
    return _Run(loss, 5.5, merges, STRANGER.key, SAID)


def merges(*trusts):
    """One honest push in each, and one of the liar that counts so far."""
    honest = contribution(learner=ONE.key, share=0.5)
    return [
        merged(
            version=at,
            contributions=(
                honest,
                contribution(learner=STRANGER.key, trust=trust, share=trust / 2),
            ),
        )
        for at, trust in enumerate(trusts, 1)
    ]


def report(**changes) -> LiarReport:
    made = make_report([run(2.0), run(2.02, merges(0.6, 0.4, 0.0)), run(7.5)], 200.04)
    return msgspec.structs.replace(made, **changes)


def test_the_report_counts_until_the_liar_is_named():
    made = report()
    assert (made.liar_named_after_pushes, made.liar_pushes) == (2, 3)
    assert made.liar_share_max == pytest.approx(0.3)
    assert (made.honest_doubted, made.honest_pushes) == (0, 3)
    assert shortfalls(made) == []


def test_a_liar_that_was_never_doubted_is_told():
    made = make_report([run(2.0), run(2.0, merges(1.0)), run(7.5)], 1.0)
    assert made.liar_named_after_pushes is None
    assert shortfalls(made) == ["The liar was not named."]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"loss_with_liar": 2.05}, "1.025 times that without, more than 1.02"),
        ({"loss_with_liar": math.nan}, "nan times that without"),
        ({"loss_plain_with_liar": 2.0}, "nothing was shown"),
        ({"said": ""}, "was not named"),
    ],
)
def test_what_was_not_shown_is_said(changes, said):
    (sentence,) = shortfalls(report(**changes))
    assert said in sentence


def test_a_model_without_a_loss_is_no_failure_of_the_plain_run_only():
    made = make_report([run(2.0), run(2.0, merges(0.0)), run(None)], 1.0)
    assert shortfalls(made) == []
    assert dict(rows(made))["the same, plain mean"].startswith("none")
    with pytest.raises(SwarmFailed):
        make_report([run(2.0), run(None), run(7.0)], 1.0)


def test_the_liar_hands_in_the_opposite():
    values, minus = np.full(128, 3.0, np.float32), np.full(128, 1.0, np.float32)
    payload, left = backwards("f32", values, np.zeros(128, np.float32), minus=minus)
    np.testing.assert_array_equal(decode("f32", payload, 128), np.full(128, -2.0 * FACTOR))
    assert not left.any()


def test_only_the_liar_is_another_program(monkeypatch, tmp_path):
    started = []
    monkeypatch.setattr(processes, "spawn", lambda name, command, *rest: started.append(command))
    with (tmp_path / "log").open("wb") as output:
        for name in ("kestrel", LIAR.name):
            spawning(LIAR.name)(name, ["python", "-P", "-m", "shoal", "join"], {}, output)
    assert [command[3] for command in started] == ["shoal", "shoal.demo.liar"]
