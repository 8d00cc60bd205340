"""A rank of several that hold a model together, compared with a plain trainer: run as a program.

    python -m tests.support.sharded_ranks RANK RANKS MEETING

MEETING: descriptor of the file at which they meet. Prints, as JSON, what it found for each case.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys

import msgspec
import numpy as np
import torch

from node.trainer.builtin import builtin_loop
from node.trainer.failures import RankLost, TrainerFailure
from node.trainer.loop import InnerLoop, make_accelerator
from node.trainer.model import build_model, describe_model, layout_of
from node.trainer.objective import next_token
from node.trainer.ranks import messages
from node.trainer.ranks.group import RankGroup
from node.trainer.ranks.sharded import ShardedTrainer, follow
from node.trainer.text.reader import BlockReader
from tests.support.tiny_loop import GENESIS, Repeating
from tests.support.tiny_project import CONFIG, INNER

STEPS = 12
LAYOUT = layout_of(GENESIS)

MIXTRAL = {
    **CONFIG,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "output_router_logits": True,
    "tie_word_embeddings": False,
}

CASES = {
    "tied": ("LlamaForCausalLM", CONFIG, {}),
    "chunked": (
        "LlamaForCausalLM",
        {**CONFIG, "vocab_size": 16_384, "tie_word_embeddings": False},
        {"z_loss": 1e-3},
    ),
    "experts": ("MixtralForCausalLM", MIXTRAL, {}),
    "checkpointed": ("LlamaForCausalLM", CONFIG, {}),
}


def reader():
    found = BlockReader(Repeating(), block_sequences=4)
    found.append(((0, 100),))
    return found


def plain(architecture, config, inner):
    model = build_model(describe_model(architecture, config), seed=11)
    return builtin_loop(model, reader(), inner, accelerator=make_accelerator("cpu"), micro_batch=1)


def together(architecture, config, inner, group, tell=print):
    model = build_model(describe_model(architecture, config), seed=11)
    accelerator = make_accelerator("cpu")
    objective = next_token(model, vocabulary=257, sequence_tokens=32, z_loss=inner.z_loss)
    trainer = ShardedTrainer(
        model,
        inner,
        group=group,
        accelerator=accelerator,
        micro_batch=1,
        objective=objective,
        tell=tell,
    )
    trainer.join(group, None)
    return InnerLoop(trainer, reader(), inner, device=accelerator.device)


def held_bytes(trainer):
    """Bytes of weights, and of the optimizer's moments, in this process."""

    def here(tensor):
        return tensor.to_local() if hasattr(tensor, "to_local") else tensor

    kept = [one for state in trainer.optimizer.state.values() for one in state.values()]
    counted = ((one for one in trainer.tensors().values()), (one for one in kept if one.dim()))
    return [sum(here(one).untyped_storage().nbytes() for one in tensors) for tensors in counted]


def case(name, group):
    architecture, config, changes = CASES[name]
    inner = msgspec.structs.replace(INNER, **changes)
    loops = [plain(architecture, config, inner), together(architecture, config, inner, group)]
    if name == "checkpointed":
        assert loops[1].trainer.checkpoint_activations()
    losses = [[loop.step().loss for _ in range(STEPS)] for loop in loops]
    return {"losses": losses, "bytes": [held_bytes(loop.trainer) for loop in loops]}


def measured(group):
    """The held-out loss of a model with dropout, which measuring leaves out."""
    config = {**CONFIG, "attention_dropout": 0.3}
    alone = plain("LlamaForCausalLM", config, INNER).trainer.twin()
    samples = np.concatenate([Repeating().sequences(position) for position in range(3)])
    trainer = together("LlamaForCausalLM", config, INNER, group).trainer
    with torch.no_grad():
        expected = alone.heldout_loss(samples, lambda: None)
    return [expected, trainer.heldout_loss(samples, lambda: None), trainer.model.training]


def compiled(group):
    """What it says where it should be compiled, and whether it is."""
    words = []
    trainer = together("LlamaForCausalLM", CONFIG, INNER, group, words.append).trainer
    trainer.compile()
    return [words, trainer.is_compiled]


def changed(group):
    """On rank 0, how far a fragment is from that of one rank after each kind of delivery."""
    alone = plain("LlamaForCausalLM", CONFIG, INNER).view(LAYOUT)
    loop = together("LlamaForCausalLM", CONFIG, INNER, group)
    view, moments = loop.view(LAYOUT), loop.moments(LAYOUT)
    draw, apart = np.random.default_rng(5), []
    for kept_frac in (0.25, None, 0.0):
        values = draw.standard_normal(view.numel(1), dtype=np.float32)
        if group.rank:
            follow(messages.Change(1, kept_frac), loop.trainer, view, moments)
            follow(messages.Gather(1), loop.trainer, view, moments)
            continue
        found = [np.empty_like(values), np.empty_like(values)]
        for one, out in zip((alone, view), found, strict=True):
            if kept_frac is None:
                one.add(1, values)
            else:
                one.blend(1, values, kept_frac)
            one.read(1, out)
        apart.append(float(np.abs(found[1] - found[0]).max()))
    return apart


def ended(group):
    """How it ends where the last rank has no memory for its second pass."""
    loop = together("LlamaForCausalLM", CONFIG, INNER, group)
    objective = loop.trainer.objective
    passes = []

    def lowered(forward, samples):
        passes.append(samples)
        if len(passes) > 1 and group.rank == group.ranks - 1:
            raise torch.OutOfMemoryError("none left")
        return objective.lowered(forward, samples)

    loop.trainer.objective = dataclasses.replace(objective, lowered=lowered)
    try:
        loop.step()
    except (TrainerFailure, RankLost) as error:
        return [type(error).__name__, getattr(error, "kind", ""), len(passes)]
    return None


def main(rank, ranks, meeting):
    torch.set_num_threads(1)
    group = RankGroup(rank, ranks, torch.device("cpu"), meeting)
    found = {name: case(name, group) for name in CASES}
    for more in (measured, compiled, changed, ended):
        found[more.__name__] = more(group)
    print(json.dumps(found), flush=True)
    os._exit(0)  # As ranks do: others notice that it is gone.


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
