from __future__ import annotations

from contextlib import nullcontext

import msgspec
import pytest
import torch
from torch import nn

from node.trainer import making
from node.trainer.failures import RankLost, TrainerFailure
from node.trainer.link.messages import Configure
from node.trainer.loop import make_accelerator
from node.trainer.model import build_model
from node.trainer.own.interface import Start
from node.trainer.ranks.sharded import in_step, units
from node.trainer.setup import NOTHING_TO_SHARE, THREAD_VARIABLES, TrainerSetup
from protocol.errors import UserError
from protocol.project import AdapterSpec
from tests.support.tiny_loop import GENESIS
from tests.support.tiny_project import INNER, configure, tiny_genesis


def test_blocks_are_put_together_one_at_a_time():
    model = build_model(GENESIS.model, seed=1)
    assert units(model) == list(model.model.layers)


def test_blocks_that_share_a_tensor_are_not_parted():
    model = nn.Module()
    model.blocks = nn.ModuleList([nn.Linear(2, 2) for _ in range(4)])
    model.blocks[1].weight = model.blocks[0].weight
    model.out = nn.Linear(2, 2)
    model.out.bias = model.blocks[2].bias
    assert units(model) == [model.blocks[3]]


def test_lists_inside_of_blocks_and_lists_without_tensors_are_no_units():
    block = nn.Module()
    block.experts = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
    model = nn.Module()
    model.blocks = nn.ModuleList([block, nn.ReLU(), nn.ModuleList([nn.Linear(2, 2)])])
    assert units(model) == [block]


def started(*, optimizer="adamw", genesis=GENESIS, **machine):
    return Start(
        genesis=genesis,
        inner=msgspec.structs.replace(INNER, optimizer=optimizer),
        accelerator=make_accelerator("cpu"),
        machine=Configure(b"", b"", "", threads=1, ranks=2, sharded=True, **machine),
        vocabulary_size=257,
        phase=lambda name: nullcontext(),
        tell=lambda words: None,
        sharing=object(),
    )


def test_a_device_that_is_alone_holds_the_whole_model_and_says_so(tmp_path, monkeypatch):
    for name in THREAD_VARIABLES:
        monkeypatch.setenv(name, "1")
    genesis = tiny_genesis(tmp_path)
    ready = TrainerSetup(configure(genesis, tmp_path, sharded=True, micro_batch=1)).ready()
    assert (ready.ranks, ready.is_sharded) == (1, False)
    assert NOTHING_TO_SHARE in ready.adjustments


def test_muon_wants_whole_matrices():
    with pytest.raises(UserError, match=r"need whole matrices.*learner\.sharded to false"):
        making.builtin(started(optimizer="muon"))


def test_a_base_in_four_bits_is_not_cut_up():
    adapter = AdapterSpec(4, 8.0, 0.0, ("q_proj",), "both", "bf16")
    tuned = msgspec.structs.replace(GENESIS, adapter=adapter)
    with pytest.raises(UserError, match=r"learner\.base_in_4_bits to false"):
        making.builtin(started(genesis=tuned, base_in_4_bits=True))


def test_moments_in_eight_bits_are_not_cut_up():
    with pytest.raises(UserError, match=r"learner\.optimizer_in_8_bits to false"):
        making.builtin(started(optimizer_in_8_bits=True))


def test_a_rank_that_is_gone_is_told_from_other_trouble():
    with pytest.raises(RankLost), in_step():
        raise RuntimeError("[gloo/transport/tcp/pair.cc:534] Connection closed by peer")
    with pytest.raises(RankLost), in_step():
        raise torch.distributed.DistBackendError("unhandled system error")
    with pytest.raises(RuntimeError, match="shapes"), in_step():
        raise RuntimeError("shapes cannot be multiplied")


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("NCCL: out of memory")])
def test_a_rank_without_memory_does_not_go_on_alone(error):
    with pytest.raises(TrainerFailure) as caught, in_step():
        raise error
    assert caught.value.kind == "oom"
