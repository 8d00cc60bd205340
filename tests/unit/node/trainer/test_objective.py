from __future__ import annotations

import numpy as np
import pytest
import torch

from node.trainer.model import FragmentView, build_model, describe_model
from node.trainer.objective import (
    cross_entropy_sum,
    inputs_of,
    next_token,
    objective_of,
    router_coefficient,
)
from protocol.fragments import build_layout
from tests.support.tiny_loop import make_loop
from tests.support.tiny_project import CONFIG

EXPERTS = CONFIG | {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "head_dim": 24,
    "router_aux_loss_coef": 0.05,
}
MIXTRAL = CONFIG | {"num_local_experts": 4, "router_aux_loss_coef": 0.02}
OLMOE = CONFIG | {"num_experts": 4, "num_experts_per_tok": 2}

LAYOUT = build_layout(describe_model("qwen3_moe", EXPERTS).tensors, "balanced", 3)


def built(model_type, config):
    return build_model(describe_model(model_type, config), seed=3)


def sequences(count=3):
    return torch.randint(0, 257, (count, 33), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    ("model_type", "config", "coefficient"),
    [("qwen3_moe", EXPERTS, 0.05), ("mixtral", MIXTRAL, 0.02), ("olmoe", OLMOE, 0.01)],
)
def test_the_loss_of_a_mixture_of_experts_is_that_of_transformers(model_type, config, coefficient):
    model, batch = built(model_type, config), sequences()
    assert router_coefficient(model) == coefficient
    theirs = model(
        input_ids=batch[:, :-1],
        labels=batch[:, 1:],
        shift_labels=batch[:, 1:].contiguous(),
        output_router_logits=True,
        use_cache=False,
    )
    ours = objective_of(model)(model, batch) / (3 * 32)
    torch.testing.assert_close(ours, theirs.loss)
    alone = cross_entropy_sum(model, batch) / (3 * 32)
    torch.testing.assert_close(ours - alone, coefficient * theirs.aux_loss, rtol=1e-3, atol=1e-5)
    ours.backward()
    routers = [one for name, one in model.named_parameters() if name.endswith("gate.weight")]
    assert all(float(one.grad.abs().sum()) > 0 for one in routers)


@pytest.mark.parametrize(("model_type", "config"), [("llama", CONFIG), ("olmoe", OLMOE)])
def test_a_z_loss_is_added_to_what_is_lowered_and_not_to_what_is_measured(model_type, config):
    model, batch = built(model_type, config), sequences()
    batch[:, 5] = ~batch[:, 5]  # Context: read, and not learned.
    with torch.no_grad():
        for one in model.parameters():
            one.mul_(3.0)
        logits = model(input_ids=inputs_of(batch), use_cache=False).logits
        denominators = torch.log(torch.exp(logits).sum(dim=-1))[batch[:, 1:] >= 0]
        assert len(denominators) == 3 * 31
        added = 0.01 * float((denominators**2).sum())
        without = float(objective_of(model)(model, batch))
        wanted = next_token(model, vocabulary=257, sequence_tokens=32, z_loss=0.01)
        assert float(wanted.lowered(model, batch)) - without == pytest.approx(added, rel=1e-4)
        assert float(wanted.measured(model, batch)) == float(cross_entropy_sum(model, batch))
    before = denominators.abs().mean()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(20):
        optimizer.zero_grad()
        (objective_of(model, 1.0)(model, batch) / 96).backward()
        optimizer.step()
    with torch.no_grad():
        after = model(input_ids=inputs_of(batch), use_cache=False).logits.logsumexp(dim=-1)
    assert after.abs().mean() < before


def test_a_coefficient_of_nothing_switches_it_off():
    model = built("qwen3_moe", EXPERTS | {"router_aux_loss_coef": 0.0})
    assert objective_of(model) is cross_entropy_sum


def test_a_dense_model_has_no_auxiliary_loss():
    assert objective_of(built("LlamaForCausalLM", CONFIG)) is cross_entropy_sum


def test_local_steps_lower_both_and_the_heldout_loss_is_cross_entropy_alone():
    model = built("qwen3_moe", EXPERTS)
    loop, batch = make_loop(model=model), sequences(4)
    values = np.concatenate(FragmentView(model, LAYOUT).copies())
    with torch.no_grad():
        expected = float(cross_entropy_sum(model, batch)) / (4 * 32)
    measured = loop.evaluate(batch.numpy(), layout=LAYOUT, values=values)
    assert measured == pytest.approx(expected, abs=1e-5)
    first = loop.step().loss
    assert first > measured + 0.05  # The auxiliary loss is at least 1 per token, and weighs 0.05.
    for _ in range(30):
        last = loop.step().loss
    assert last < first
