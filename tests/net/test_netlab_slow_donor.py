"""Newcomers to a swarm whose only learner gives weights at 50 kB/s, beside a syncer on a fast line.

A syncer and a learner train a Llama of 6.4 million parameters, each process in a network of its
own. One newcomer comes while the learner is away, another one while it gives what it may. It
happens once; the tests look at what was seen.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import pytest

from tests.net.lab_swarm import LabSwarm
from tests.netlab import Lab, Link
from tests.netlab.marks import needs_lab

pytestmark = [pytest.mark.net, pytest.mark.timeout(1200), needs_lab]

SYNCER, SLOW, ALONE, BESIDE = "syncer", "ada", "bob", "cyd"
LATENCY_S = 0.01
LINE = Link(latency_s=LATENCY_S, rate_bytes_per_s=100e6 / 8)
"""From the syncer to each newcomer."""

SLOW_BYTES_PER_S = 50_000

SIZE = {
    "model__fragments": 8,
    "model__config__hidden_size": 256,
    "model__config__intermediate_size": 704,
    "model__config__num_hidden_layers": 8,
    "model__config__num_attention_heads": 4,
    "model__config__num_key_value_heads": 4,
    "rounds__local_steps": 8,
    "rounds__pull_timeout_s": 60.0,
    "limits__lease_s": 120.0,
    "training__batch_sequences": 1,
    "limits__evaluate_every": 100_000,
}


@dataclass
class Came:
    """How a newcomer got its weights."""

    seconds: float
    status: Any


def start(swarm, name):
    return swarm.start_learner(name, "--no-evaluate", "--duty", "0.2")


def newcomer(swarm, name):
    start(swarm, name)
    swarm.until(lambda: (s := swarm.learner(name)) and s.download, "a download")
    began_s = time.monotonic()
    status = swarm.until(
        lambda: (s := swarm.learner(name)) and s.weights_held == len(s.versions) > 0 and s,
        "all weights",
    )
    came = Came(time.monotonic() - began_s, status)
    swarm.kill(name)
    return came


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    folder = tmp_path_factory.mktemp("slow")
    nodes = (SYNCER, SLOW, ALONE, BESIDE)
    with (
        Lab(nodes, link=Link(latency_s=LATENCY_S), seed=7) as lab,
        LabSwarm(lab, folder, poll_s=0.02) as swarm,
    ):
        swarm.prepare(**SIZE)
        swarm.begin()
        start(swarm, SLOW)
        swarm.all_merge(SLOW)
        swarm.until(lambda: min(swarm.learner(SLOW).versions) > 0, "a merge of every fragment")
        swarm.kill(SLOW)
        for name in (ALONE, BESIDE):
            lab.shape_one_way(SYNCER, name, LINE)
        found = {ALONE: newcomer(swarm, ALONE)}
        swarm.processes.environment["SHOAL_LIMITS_UP_BYTES_PER_S"] = str(SLOW_BYTES_PER_S)
        start(swarm, SLOW)
        swarm.until(
            lambda: (s := swarm.learner(SLOW)) and s.state == "training", "a learner that gives"
        )
        slow_key = swarm.learner(SLOW).key
        del swarm.processes.environment["SHOAL_LIMITS_UP_BYTES_PER_S"]
        found[BESIDE] = newcomer(swarm, BESIDE)
        swarm.processes.check()
    return found, slow_key


def test_a_slow_learner_costs_a_newcomer_hardly_anything(seen):
    found, slow_key = seen
    total = sum(found[BESIDE].status.weights_sources.values())
    ratio = found[BESIDE].seconds / found[ALONE].seconds
    of_slow = found[BESIDE].status.weights_sources.get(slow_key, 0)
    print(
        f"{total / 1e6:.1f} MB: {found[ALONE].seconds:.1f} s of the syncer alone, "
        f"{found[BESIDE].seconds:.1f} s beside the slow learner, {ratio:.2f} times; "
        f"{of_slow / total:.1%} came of the learner"
    )
    # Of the learner alone it takes a thousand seconds.
    assert found[BESIDE].seconds < 0.1 * total / SLOW_BYTES_PER_S
    assert of_slow < 0.2 * total
