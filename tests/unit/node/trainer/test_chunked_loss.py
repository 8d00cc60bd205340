"""The loss over a large vocabulary, some tokens at a time: the same as of all logits at once."""

from __future__ import annotations

import pytest
import torch

from node.trainer import chunked_loss
from node.trainer.chunked_loss import VOCABULARY_MIN, chunkable_head, loss_of_hidden
from node.trainer.model import build_model, describe_model
from node.trainer.objective import IGNORED, cross_entropy_sum, objective_of
from tests.support.tiny_project import CONFIG

LARGE = {"vocab_size": VOCABULARY_MIN}
LLAMA = CONFIG | LARGE | {"tie_word_embeddings": False}
TIED = LLAMA | {"tie_word_embeddings": True}
GPT2 = {"n_embd": 32, "n_layer": 1, "n_head": 2, "n_positions": 64} | LARGE
GEMMA2 = LLAMA | {"head_dim": 24, "final_logit_softcapping": 5.0, "query_pre_attn_scalar": 24}
COHERE = LLAMA | {"logit_scale": 0.3}
PHI = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2,
    "max_position_embeddings": 64, **LARGE,
}  # fmt: skip
CHUNKED = [
    ("llama", LLAMA), ("llama", TIED), ("gpt2", GPT2), ("phi", PHI), ("cohere", COHERE),
]  # fmt: skip


def built(model_type, config):
    return build_model(describe_model(model_type, config), seed=3)


def batch(count=2, length=25):
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, VOCABULARY_MIN, (count, length), generator=generator)
    ids[0, 4:9] = -1 - ids[0, 4:9]  # Context, which is no target.
    return ids


def lowered(model, loss):
    model.zero_grad()
    model.eval()  # Without dropout.
    value = loss(model, batch())
    (value / 7).backward()
    return value.detach(), {name: one.grad.clone() for name, one in model.named_parameters()}


@pytest.mark.parametrize("rows", [16, 1000], ids=["three chunks", "one chunk"])
@pytest.mark.parametrize(
    ("model_type", "config"), CHUNKED, ids=["llama", "tied", "gpt2", "phi", "scaled"]
)
def test_loss_and_gradients_are_those_of_all_logits_at_once(monkeypatch, model_type, config, rows):
    monkeypatch.setattr(chunked_loss, "LOGITS_MAX", rows * VOCABULARY_MIN)
    model = built(model_type, config)
    assert chunkable_head(model) is not None
    expected, wanted = lowered(model, cross_entropy_sum)
    found, gradients = lowered(model, objective_of(model))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=0)
    assert gradients.keys() == wanted.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, wanted[name], rtol=1e-4, atol=1e-6)


def test_the_z_loss_is_part_of_it(monkeypatch):
    model = built("llama", LLAMA)
    chunked = lowered(model, objective_of(model, z_loss=0.01))
    monkeypatch.setattr(chunked_loss, "VOCABULARY_MIN", 10**9)
    whole = lowered(model, objective_of(model, z_loss=0.01))
    torch.testing.assert_close(chunked, whole, rtol=1e-4, atol=1e-6)
    plain, _ = lowered(model, cross_entropy_sum)
    assert float(chunked[0]) > float(plain) + 1


@pytest.mark.parametrize(
    ("model_type", "config"), [("gemma2", GEMMA2), ("llama", CONFIG)],
    ids=["capped", "small"],
)  # fmt: skip
def test_models_that_cap_their_logits_and_small_vocabularies_are_left_as_they_are(
    model_type, config
):
    model = built(model_type, config)
    assert chunkable_head(model) is None
    ids = batch() % config["vocab_size"]
    torch.testing.assert_close(objective_of(model)(model, ids), cross_entropy_sum(model, ids))


def test_a_frozen_head_takes_no_gradient():
    model = built("llama", LLAMA)
    model.get_output_embeddings().weight.requires_grad_(requires_grad=False)
    objective_of(model)(model, batch()).backward()
    assert model.get_output_embeddings().weight.grad is None
    assert float(model.get_input_embeddings().weight.grad.abs().sum()) > 0


def test_under_autocast_it_is_as_near_to_f32_as_all_logits_at_once_are():
    model = built("llama", LLAMA)
    exact = cross_entropy_sum(model, batch()).detach()
    with torch.autocast("cpu", torch.bfloat16):
        found = objective_of(model)(model, batch())
        theirs = cross_entropy_sum(model, batch()).detach()
    assert abs(found - exact) <= 2 * abs(theirs - exact) + 1e-3 * exact
    found.backward()
    assert all(torch.isfinite(one.grad).all() for one in model.parameters())


def test_no_more_logits_than_a_chunk_has_are_ever_there(monkeypatch):
    """Of so many tokens all logits would be 64 MB; the largest tensor made is a chunk."""
    head = torch.nn.Linear(8, VOCABULARY_MIN, bias=False)
    hidden = torch.randn(1000, 8, requires_grad=True)
    made = []
    linear = chunked_loss.functional.linear

    def seen(*given):
        made.append(linear(*given))
        return made[-1]

    monkeypatch.setattr(chunked_loss.functional, "linear", seen)
    targets = torch.arange(1000)
    loss_of_hidden(hidden, head, targets, ignored=IGNORED).backward()
    assert sum(len(one) for one in made) == 1000
    assert max(one.numel() for one in made) <= chunked_loss.LOGITS_MAX
    assert hidden.grad is not None


def test_texts_without_a_target_lose_nothing():
    model = built("llama", LLAMA)
    ids = -1 - batch()
    ids[ids >= 0] = -1
    loss = objective_of(model)(model, ids)
    loss.backward()
    assert float(loss) == 0.0
