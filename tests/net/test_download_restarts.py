"""Real processes on loopback: a joiner that is killed in the middle of its weights goes on there.

Nobody but the syncer has weights, so that no merge makes new ones meanwhile.
"""

from __future__ import annotations

import pytest

from host.files.home import Home
from protocol import limits
from tests.net.swarms import TinySwarm

pytestmark = [pytest.mark.net, pytest.mark.timeout(900)]

SIZE = {
    "model__fragments": 4,
    "model__config__hidden_size": 256,
    "model__config__intermediate_size": 704,
    "model__config__num_hidden_layers": 4,
    "model__config__num_attention_heads": 4,
    "model__config__num_key_value_heads": 4,
}
"""3.3 million parameters: 13 MB of weights, and as much momentum, of which nothing comes."""

DOWN_BYTES_PER_S = 1_000_000
KILL_AT_BYTES = 6_000_000
"""Beside what need not come."""


def begun(swarm):
    home = Home(swarm.folder / "home")
    return sorted((home.root / "cache" / "begun-weights").glob("*/*/*"))


@pytest.mark.parametrize("is_on_disk", [False, True])
def test_a_joiner_that_is_killed_in_the_middle_of_its_weights_goes_on_there(tmp_path, is_on_disk):
    with TinySwarm(tmp_path) as swarm:
        swarm.prepare(**SIZE)
        swarm.begin()
        swarm.processes.environment |= {
            "SHOAL_LIMITS_DOWN_BYTES_PER_S": str(DOWN_BYTES_PER_S),
            "SHOAL_LEARNER_WEIGHTS_ON_DISK": str(is_on_disk).lower(),
        }
        swarm.start_learner("ada", "--no-evaluate")

        def is_midway():
            node = swarm.learner("ada")
            download = node.download if node else None
            has_come = download is not None and node.network.bytes_down > KILL_AT_BYTES
            return node if has_come else None

        killed = swarm.until(is_midway, "a download that is under way")
        zeros = killed.download.total_bytes // 2
        swarm.kill("ada")
        assert len(begun(swarm)) >= SIZE["model__fragments"]

        swarm.start_learner("ada", "--no-evaluate")
        held = swarm.until(
            lambda: (
                (node := swarm.learner("ada"))
                and node.weights_held == SIZE["model__fragments"]
                and node
            ),
            "all weights",
        )
        came = killed.download.done_bytes - zeros
        rest = killed.download.total_bytes - zeros - came
        fetched = sum(held.weights_sources.values())
        print(f"{came / 1e6:.2f} MB had come, {fetched / 1e6:.2f} MB came after that")
        assert fetched <= rest + limits.STATE_CHUNK_BYTES
        swarm.until(lambda: not begun(swarm), "a home without begun weights")
        swarm.processes.environment["SHOAL_LIMITS_DOWN_BYTES_PER_S"] = "100000000"
        swarm.until(lambda: swarm.merge_counts().get("ada"), "the joiner in a merge")
        assert "was here from before" in swarm.output("ada")
        assert "Traceback" not in swarm.output("ada")
