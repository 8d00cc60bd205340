"""The trials of `shoal doctor`, as the processes that they are."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from host.bulk import speed_probe
from host.join_link import JoinLink, format_link
from node.trainer.tools.trial_facts import TrialWish
from protocol.numerics.outer import digest
from shoal.doctor import probes
from tests.net.hosts import Host, run
from tests.support.tiny_project import CONFIG, INNER, SEQUENCE_TOKENS

pytestmark = pytest.mark.net

WISH = TrialWish(
    architecture="LlamaForCausalLM",
    config=dict(CONFIG),
    inner=INNER,
    sequence_tokens=SEQUENCE_TOKENS,
    device="cpu",
)


def test_the_engine_is_tried_without_a_swarm():
    answer = probes.try_swarm("", port=0)
    assert answer.trouble == ""
    assert answer.engine_s > 0
    assert answer.addresses


def test_a_swarm_that_is_away_is_told_apart_from_an_engine_that_fails():
    link = format_link(
        JoinLink(
            bytes(32),
            100,
            "tiny",
            ("/ip4/127.0.0.1/tcp/1/p2p/12D3KooWA1fSTf6iTo2cKnh1epDYJH4Lot8SZcFnaHakq96muaQr",),
        )
    )
    answer = probes.try_swarm(link, port=0)
    assert answer.is_engine_up
    assert not answer.is_in_swarm
    assert "none of the swarm's addresses answers" in answer.trouble


def test_a_host_is_reached_and_its_line_is_measured(tmp_path):
    genesis = b"not a real one, but its digest is right"

    async def main():
        host = Host(tmp_path, "one", bootstrap=[])
        await host.transport.start()
        blobs = {digest(genesis): memoryview(genesis)}
        host.transport.serve_blobs(lambda peer, name: blobs.get(name) or speed_probe.find(name))
        link = JoinLink(digest(genesis), len(genesis), "tiny", tuple(host.transport.addresses()))
        answer = await asyncio.to_thread(probes.try_swarm, format_link(link), port=0)
        await host.transport.close()
        assert answer.genesis == genesis
        assert [one.path for one in answer.hosts] == ["direct"]
        assert answer.down_bytes_per_s > 100_000
        assert answer.charter == b"", "nobody leads there"

    run(main(), timeout_s=90.0)


def test_a_model_is_trained_on_random_text():
    answer = probes.try_training(WISH)
    assert (answer.trouble, answer.device) == ("", "cpu")
    assert answer.parameters > 1000
    assert answer.tokens_per_s > 0
    assert answer.memory_bytes > 50 << 20


def test_a_device_that_is_not_there_is_told_in_words():
    answer = probes.try_training(msgspec.structs.replace(WISH, device="cuda:7"))
    assert answer.device == ""
    assert answer.trouble
