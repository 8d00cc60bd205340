"""Documents that lie in one sequence, each read as if it were alone."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
import torch

from node.trainer.model import build_model, describe_model
from node.trainer.objective import keeps_apart, next_token
from node.trainer.text.corpus import describe_corpus, open_corpus
from node.trainer.text.reader import STARTS, learned_tokens
from node.trainer.text.rows import RowPacker
from node.trainer.text.tokenizer_files import pin_tokenizer
from tests.support.base_folder import base_folder
from tests.support.chats import CHATML, chats_spec, write_chats
from tests.support.tiny_project import CONFIG, data_spec, write_text

END = 256
EXPERTS = CONFIG | {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "head_dim": 24,
}
GPT2 = {"vocab_size": 257, "n_positions": 64, "n_embd": 48, "n_layer": 2, "n_head": 2}
SLIDING = CONFIG | {
    "head_dim": 24,
    "num_key_value_heads": 1,
    "sliding_window": 8,
    "layer_types": ["sliding_attention", "full_attention"],
}
WITH_POSITIONS = [
    ("llama", CONFIG),
    ("gpt2", GPT2),
    ("qwen3_moe", EXPERTS),
    ("gemma3_text", SLIDING),
]
BLOOM = {"vocab_size": 257, "hidden_size": 48, "n_layer": 2, "n_head": 2}
MAMBA = {"vocab_size": 257, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 8}


def built(model_type, config):
    model = build_model(describe_model(model_type, config), seed=3).eval()
    with torch.no_grad():
        for tensor in model.parameters():
            if tensor.dim() > 1:
                tensor.mul_(4.0)  # First weights hardly look at what came before.
    return model


def documents(*sizes):
    draw = np.random.default_rng(5)
    return [draw.integers(0, 256, size) for size in sizes]


def row_of(*texts):
    """The texts in one sequence, each behind the token that ends the one before."""
    row = np.array([END, *(token for text in texts for token in (*text, END))])
    row[row == END] |= STARTS
    return torch.from_numpy(row[None])


@pytest.mark.parametrize(("model_type", "config"), WITH_POSITIONS, ids=lambda one: str(one)[:12])
def test_the_loss_of_documents_in_one_sequence_is_that_of_each_alone(model_type, config):
    model = built(model_type, config)
    apart = next_token(model, vocabulary=257, sequence_tokens=40, documents="separate")
    joined = next_token(model, vocabulary=257, sequence_tokens=40)
    texts = documents(17, 1, 11)
    with torch.no_grad():
        alone = sum(float(joined.measured(model, row_of(one) & (STARTS - 1))) for one in texts)
        together = float(apart.measured(model, row_of(*texts)))
        as_one = float(joined.measured(model, row_of(*texts) & (STARTS - 1)))
    assert together == pytest.approx(alone, rel=1e-5)
    assert abs(as_one - alone) > 1e-2, "the first document has a say in the others"


def test_gradients_and_the_mean_of_each_sequence_are_those_of_documents_alone():
    model = built("llama", CONFIG)
    apart = next_token(model, vocabulary=257, sequence_tokens=40, documents="separate")
    texts = documents(9, 14)
    apart.lowered(model, row_of(*texts)).backward()
    together = [one.grad.clone() for one in model.parameters()]
    model.zero_grad()
    for one in texts:
        apart.lowered(model, row_of(one)).backward()
    for grad, one in zip(together, model.parameters(), strict=True):
        torch.testing.assert_close(grad, one.grad, rtol=1e-4, atol=1e-5)
    rows = row_of(*texts)
    total = float(apart.measured(model, rows).detach())
    assert apart.terms(rows.numpy()) == 25
    assert float(apart.each(model, rows).detach()) == pytest.approx(total / 25, rel=1e-5)


@pytest.mark.parametrize(
    ("model_type", "config", "can"),
    [(*one, True) for one in WITH_POSITIONS] + [("bloom", BLOOM, False), ("mamba", MAMBA, False)],
    ids=lambda one: str(one)[:12],
)
def test_whether_a_model_reads_documents_apart_is_found_out(model_type, config, can):
    model = build_model(describe_model(model_type, config), seed=3).train()
    assert keeps_apart(model, 257) == can
    assert model.training


def test_a_conversation_is_read_by_itself_and_what_fills_up_too():
    rows = []
    packer = RowPacker(16, 99, rows.append, marks=True)
    chats = ([~1, 2, 3, 4], [~5, ~6, 7], list(range(20, 45)))
    for one in chats:
        packer.add(np.array(one))
    packer.finish()
    marked = np.maximum(np.array(rows), ~np.array(rows))
    ids = marked & (STARTS - 1)
    begun = {tuple(map(int, place)) for place in np.argwhere(marked & STARTS)}
    is_first = np.isin(ids, (1, 5, 20, 35)) & (np.array(rows) < 0)
    first = {tuple(map(int, place)) for place in np.argwhere(is_first)}
    fillers = {(at, int(np.argmax(row == 99))) for at, row in enumerate(ids) if 99 in row}
    assert begun == first | fillers
    plain = []
    unmarked = RowPacker(16, 99, plain.append)
    for one in chats:
        unmarked.add(np.array(one))
    unmarked.finish()
    learned = np.array(rows)[:, 1:]
    assert learned_tokens(np.array(rows)) == learned_tokens(np.array(plain))
    assert sorted(learned[learned >= 0]) == sorted(np.array(plain)[:, 1:][learned >= 0])


def opened(spec, cache, **words):
    counted = describe_corpus(spec, cache=cache, **words)
    spec = msgspec.structs.replace(spec, blocks=counted.blocks, digest=counted.digest)
    return open_corpus(spec, seed=3, cache=cache, **words)


def test_of_text_the_token_that_ends_one_begins_the_next(tmp_path):
    spec, cache = data_spec(write_text(tmp_path / "text.txt")), tmp_path / "cache"
    joined, apart = opened(spec, cache), opened(spec, cache, documents="separate")
    assert joined.facts.digest == apart.facts.digest, "the same files serve both"
    positions = range(joined.local_blocks)
    as_one = np.concatenate([joined.sequences(at) for at in positions])
    by_itself = np.concatenate([apart.sequences(at) for at in positions])
    np.testing.assert_array_equal(by_itself & (STARTS - 1), as_one)
    np.testing.assert_array_equal((by_itself & STARTS) != 0, as_one == END)
    assert (as_one == END).any()


def test_of_chats_each_begins_where_it_is_marked(tmp_path):
    folder = base_folder(tmp_path / "model", template=CHATML)
    cache = tmp_path / "cache"
    tokenizer = pin_tokenizer("base", folder, cache)
    spec = chats_spec(write_chats(tmp_path / "chats"))
    joined = opened(spec, cache, tokenizer=tokenizer)
    apart = opened(spec, cache, tokenizer=tokenizer, documents="separate")
    rows, plain = apart.heldout(99), joined.heldout(99)
    np.testing.assert_array_equal(rows < 0, plain < 0)
    ids = np.maximum(rows, ~rows)
    np.testing.assert_array_equal(ids & (STARTS - 1), np.maximum(plain, ~plain))
    assert ((ids & STARTS) != 0).sum(axis=1).max() > 1, "several lie in one sequence"
    assert ((ids[:, 0] & STARTS) != 0).all()
