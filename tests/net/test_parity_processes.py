"""One learner through real daemons does what its loop does alone, bit for bit.

The swarm has one learner, codecs f32, and a plain outer step: no momentum, rate 1. The learner's
tape says behind which local steps fragments were copied and delivered. A loop of plain torch takes
the same local steps here, with `anchor - (anchor - value)` where a merge was; every push must have
had its bits.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import peft
import pytest
import torch
import transformers
from blake3 import blake3
from torch.nn import functional

from host.files.signed_project import read_signed
from host.tape.tape_file import find_tapes
from node.trainer.model import layout_of
from node.trainer.text.corpus import open_corpus
from protocol import tape
from protocol.log.permutation import block_at
from syncer_node.storage.store import find_checkpoint, read_checkpoint
from tests.net.example_swarm import ExampleSwarm
from tests.support.base_folder import base_folder
from tests.support.own_loops import install

pytestmark = [pytest.mark.net, pytest.mark.timeout(900)]

PLAIN = {
    "model__merge__embeddings": "mean",
    "model__merge__matrices": "mean",
    "model__merge__vectors": "mean",
    "training__warmup_frac": 0.0,
    "training__final_learning_rate_frac": 1.0,
    "training__fresh_moment_steps": 0,
    "outer__learning_rate": 1.0,
    "outer__momentum": 0.0,
    "outer__trust": "all",
    "outer__probes_frac": 0.0,
    "rounds__up_codec": "f32",
    "rounds__down_codec": "f32",
}
MERGES = 24
HAS_MUON = hasattr(torch.optim, "Muon")


class Alone:
    """A loop without a swarm, and the outer step of one learner."""

    def __init__(self, layout, tensors, first, step):
        self.layout, self.tensors, self.step = layout, tensors, step
        self.newest = [(0, values) for values in first]
        self.standing = [None] * len(first)
        self.copies, self.pushed = {}, {}
        self.blocks, self.steps, self.compared = [], 0, 0

    def read(self, fragment):
        cut = self.layout.fragments[fragment]
        flat = np.zeros(cut.numel, np.float32)
        for span in cut.spans:
            values = self.tensors[span.name].detach().numpy().reshape(-1)
            flat[span.offset : span.offset + span.numel] = values[span.start : span.end]
        return flat

    def write(self, fragment, flat):
        for span in self.layout.fragments[fragment].spans:
            values = torch.from_numpy(flat[span.offset : span.offset + span.numel].copy())
            with torch.no_grad():
                self.tensors[span.name].view(-1)[span.start : span.end].copy_(values)

    def follow(self, frame):
        match frame:
            case tape.Fed(start, stop, skip):
                self.blocks += [(at, skip if at == start else 0) for at in range(start, stop)]
            case tape.StepsDone(local_step):
                while self.steps < local_step:
                    self.step(self.blocks)
                    self.steps += 1
            case tape.SnapshotTaken(fragment, local_step):
                assert self.steps == local_step
                self.copies[fragment] = self.read(fragment)
            case tape.PushCaptured(sequence, fragment, base_version, digest):
                version, anchor = self.standing[fragment]
                assert version == base_version
                moved = flushed(anchor - self.copies[fragment])
                assert blake3(moved.tobytes()).digest() == digest, f"push {sequence} differs"
                self.pushed[fragment, sequence] = moved
                self.compared += bool(moved.any())
            case tape.PushClosed(fragment, sequence, is_merged):
                if is_merged:
                    version, theta = self.newest[fragment]
                    moved = self.pushed[fragment, sequence]
                    self.newest[fragment] = version + 1, flushed(theta - moved)
            case tape.VersionApplied(fragment, version, local_step, is_assign):
                assert (self.steps, self.newest[fragment][0]) == (local_step, version)
                assert is_assign
                self.standing[fragment] = self.newest[fragment]
                self.write(fragment, self.newest[fragment][1])
            case tape.Inexact(reason):
                pytest.fail(reason)


def flushed(values):
    """Without subnormals and negative zeros, as everything that travels."""
    values[np.abs(values) < np.finfo(np.float32).tiny] = 0.0
    return values


def run_alone(swarm, name, make):
    """Follows the tape of a learner; make(genesis, inner, cache): tensors and a step."""
    torch.set_num_threads(1)
    signed = read_signed(swarm.signed)
    store = swarm.home.syncer_store(swarm.project_id)
    first = read_checkpoint(find_checkpoint(store, "0")).theta
    tensors, step = make(signed.genesis, signed.charter.inner, swarm.home.data_cache())
    alone = Alone(layout_of(signed.genesis), tensors, first, step)
    (life,) = find_tapes(swarm.home.tape(swarm.project_id, "learner", name))
    for _, frame in life.frames("events"):
        alone.follow(frame)
    assert alone.compared >= MERGES - 3 * len(first)
    assert alone.steps > MERGES
    return alone


def trained(swarm):
    """Trains with one learner until enough was merged."""
    swarm.begin()
    swarm.start_learner("ada", "--micro-batch", "2")
    swarm.until(
        lambda: (now := swarm.syncer()) and now.swarm.global_step >= MERGES, f"{MERGES} merges"
    )
    swarm.run("stop", "--role", "learner")


def sequences_of(source, blocks, size, count):
    """The next sequences of the leased blocks, which lose them."""
    found = []
    while len(found) < count:
        position, first = blocks[0]
        taken = source(position)[first : first + count - len(found)]
        found += list(taken)
        blocks[0] = (position, first + len(taken))
        if first + len(taken) == size:
            blocks.pop(0)
    return np.stack(found)


def digits(genesis, inner, cache):
    """The example's class by itself."""
    from own_loops.digits import Digits

    start = SimpleNamespace(
        config=genesis.model.config, device=torch.device("cpu"), inner=inner, seed=genesis.seed
    )
    loop, data = Digits(start), genesis.data

    def numbers(position):
        first = block_at(position, data.blocks, genesis.seed) * data.block_sequences
        return np.arange(first, first + data.block_sequences)

    def step(blocks):
        samples = sequences_of(numbers, blocks, data.block_sequences, inner.batch_sequences)
        loop.step(SimpleNamespace(samples=samples, learning_rate=inner.learning_rate))

    return loop.tensors(), step


def llama(genesis, inner, cache):
    """A few lines of torch over a model of `transformers`."""
    config = transformers.LlamaConfig(**genesis.model.config)
    return plain_torch(transformers.LlamaForCausalLM(config).float(), genesis, inner, cache)


def with_adapter(folder):
    """The same over a published model and an adapter that `peft` puts beside it."""

    def make(genesis, inner, cache):
        base = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        config = peft.LoraConfig(r=4, lora_alpha=8, target_modules="all-linear")
        tensors, step = plain_torch(peft.get_peft_model(base, config), genesis, inner, cache)
        return {name.removeprefix("base_model.model."): one for name, one in tensors.items()}, step

    return make


def plain_torch(model, genesis, inner, cache):
    """The tensors that are trained, and what trains them."""
    every = [one for one in model.parameters() if one.requires_grad]
    hidden = []
    if inner.optimizer == "muon":
        tables = {id(model.get_input_embeddings().weight), id(model.lm_head.weight)}
        hidden = [one for one in every if one.dim() == 2 and id(one) not in tables]
    known = {id(one) for one in hidden}
    rest = [one for one in every if id(one) not in known]
    optimizers = [
        torch.optim.AdamW(
            [
                {"params": [one for one in rest if one.dim() > 1]},
                {"params": [one for one in rest if one.dim() <= 1], "weight_decay": 0.0},
            ],
            lr=inner.learning_rate,
            betas=(inner.beta1, inner.beta2),
            weight_decay=inner.weight_decay,
            fused=True,
        )
    ]
    if hidden:
        muon = torch.optim.Muon(
            hidden,
            lr=inner.learning_rate,
            weight_decay=inner.weight_decay,
            momentum=inner.muon_momentum,
            nesterov=True,
            adjust_lr_fn="match_rms_adamw",
        )
        optimizers.append(muon)
    corpus = open_corpus(genesis.data, seed=genesis.seed, cache=cache, tokenizer=genesis.tokenizer)
    size = genesis.data.block_sequences

    def step(blocks):
        ids = sequences_of(corpus.sequences, blocks, size, inner.batch_sequences)
        ids = torch.from_numpy(ids)
        logits = model(input_ids=ids[:, :-1]).logits.reshape(-1, model.config.vocab_size)
        loss = functional.cross_entropy(logits, ids[:, 1:].reshape(-1), reduction="sum")
        (loss / ids[:, 1:].numel()).backward()
        torch.nn.utils.clip_grad_norm_(every, inner.grad_norm_max)
        for one in optimizers:
            one.step()
            one.zero_grad()

    return {name: one for name, one in model.named_parameters() if one.requires_grad}, step


def test_a_loop_of_its_own(tmp_path, monkeypatch):
    install(tmp_path, monkeypatch)
    with ExampleSwarm(tmp_path) as swarm:
        swarm.prepare_example("own-loop/digits.toml", **PLAIN)
        trained(swarm)
        alone = run_alone(swarm, "ada", digits)
    assert alone.compared >= 6


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_model_of_transformers_in_plain_torch(tmp_path, optimizer):
    if optimizer == "muon" and not HAS_MUON:
        pytest.skip("this torch has no Muon")
    with ExampleSwarm(tmp_path) as swarm:
        swarm.prepare(**PLAIN, training__optimizer=optimizer)
        trained(swarm)
        run_alone(swarm, "ada", llama)


def test_an_adapter_in_plain_peft(tmp_path):
    folder = base_folder(tmp_path / "model")
    adapter = {"rank": 4, "alpha": 8.0, "base_dtype": "f32"}
    changes = {f"model__adapter__{key}": value for key, value in adapter.items()}
    with ExampleSwarm(tmp_path) as swarm:
        swarm.prepare(base=str(folder), data__tokenizer="base", **changes, **PLAIN)
        trained(swarm)
        run_alone(swarm, "ada", with_adapter(folder))
