"""A standby behind a slow line is killed in the middle of the first weights, and goes on there.

There is no learner, so that no merge makes new ones meanwhile.
"""

from __future__ import annotations

import pytest

from protocol import limits
from syncer_node.daemon.array_fetcher import AT_ONCE
from tests.net.lab_swarm import LabSwarm
from tests.netlab import Lab, Link
from tests.netlab.marks import needs_lab

pytestmark = [pytest.mark.net, pytest.mark.timeout(900), needs_lab]

LEADER, STANDBY, WITNESS = NODES = ("s0", "s1", "w0")
LINE = Link(latency_s=0.025, rate_bytes_per_s=1.5e6)
KILL_AT_BYTES = 10_000_000
REST_BYTES = 3 * limits.STATE_CHUNK_BYTES
"""Manifests, and what hosts tell each other."""

SIZE = {
    "model__fragments": 4,
    "model__config__hidden_size": 256,
    "model__config__intermediate_size": 704,
    "model__config__num_hidden_layers": 6,
    "model__config__num_attention_heads": 4,
    "model__config__num_key_value_heads": 4,
}
"""4.9 million parameters, 20 MB; momentum consists of zeros."""


def bytes_down(swarm):
    status = swarm.syncer(STANDBY)
    return status.network.bytes_down if status is not None else 0


def test_a_standby_goes_on_with_the_weights_that_it_has(tmp_path):
    voters = {LEADER: "syncer", STANDBY: "syncer", WITNESS: "witness"}
    with (
        Lab(NODES, link=Link(latency_s=0.025), seed=8) as lab,
        LabSwarm(lab, tmp_path) as swarm,
    ):
        swarm.prepare(voters=voters, **SIZE)
        lab.shape_one_way(LEADER, STANDBY, LINE)
        swarm.start_first()
        swarm.start_syncer(STANDBY)
        swarm.start_witness(WITNESS)
        swarm.until(lambda: bytes_down(swarm) > KILL_AT_BYTES, "weights on their way")
        begun = swarm.store(STANDBY) / "begun-weights"
        swarm.kill(STANDBY)
        came = sum(file.stat().st_blocks * 512 for file in begun.iterdir())
        on_the_way = (AT_ONCE + 1) * limits.STATE_CHUNK_BYTES
        assert came > KILL_AT_BYTES - on_the_way

        swarm.start_syncer(STANDBY)
        swarm.until(lambda: not list(begun.glob("*")), "weights that are kept")
        down = bytes_down(swarm)
        print(f"{came / 1e6:.2f} MB had come, {down / 1e6:.2f} MB came after that")
        whole = 4 * swarm.syncer(STANDBY).project.parameters
        assert down < whole - came + REST_BYTES
        outputs = swarm.outputs()
    assert not any("Traceback" in output for output in outputs.values())
