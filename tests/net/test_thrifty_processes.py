"""Hosts that spare their machines' memory, in a swarm of real processes: weights in files, and of a
learner moments in 8 bits and a batch of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.net.swarms import TinySwarm

pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed")
pytestmark = [pytest.mark.net, pytest.mark.timeout(600)]

SETTINGS = """\
[learner]
weights_on_disk = true
optimizer_in_8_bits = true
batch_sequences = 6
"""

MODEL = {
    "model__config__hidden_size": 320,
    "model__config__intermediate_size": 640,
    "model__fragments": 2,
}
"""Its fragments are above a megabyte, from where on they are put into files."""


@pytest.fixture(scope="module")
def swarm(tmp_path_factory):
    with TinySwarm(tmp_path_factory.mktemp("thrifty")) as one:
        one.prepare(chars=400_000, training__batch_sequences_max=8, **MODEL)
        one.begin("--weights-on-disk")
        settings = one.folder / "settings.toml"
        settings.write_text(SETTINGS)
        one.processes.environment["SHOAL_CONFIG"] = str(settings)
        one.start_learner("ada")
        yield one


def test_its_pushes_are_merged_with_the_batch_that_it_chose(swarm):
    now = swarm.until(
        lambda: (now := swarm.learner("ada")) and now.merged >= 4 and now, "merged pushes"
    )
    assert now.batch_sequences == 6
    assert now.tokens == now.local_step * 6 * 32
    (peer,) = swarm.syncer().peers
    assert (peer.name, peer.refused) == ("ada", {})


@pytest.mark.parametrize("who", ["learner", "syncer"])
def test_weights_lie_in_files_without_names(swarm, who):
    status = swarm.learner("ada") if who == "learner" else swarm.syncer()
    maps = Path(f"/proc/{status.pid}/maps").read_text().splitlines()
    files = [line for line in maps if "/weights/" in line and line.endswith("(deleted)")]
    assert len(files) >= 2 * MODEL["model__fragments"], "value and momentum of each"
    assert all(" rw-p " in line for line in files), "private maps"
