from __future__ import annotations

import numpy as np
import pytest
import torch

from node.trainer.model import FragmentView, build_model, describe_model
from node.trainer.objective import cross_entropy_sum, objective_of, router_coefficient
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
