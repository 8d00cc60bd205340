"""Shoal's own trainer takes the local steps that the `Trainer` of transformers takes.

With AdamW and with Muon, of a whole model and of an adapter, of documents that are read apart, and
under bf16 as far as bf16 can say.
"""

from __future__ import annotations

import copy

import accelerate
import msgspec
import numpy as np
import peft
import pytest
import torch
import transformers

from node.trainer.model import build_model
from node.trainer.setup import TrainerSetup
from node.trainer.text.reader import STARTS
from tests.support.adapter_project import adapter_genesis
from tests.support.base_folder import base_folder
from tests.support.tiny_loop import GENESIS, Repeating, make_loop, weights_of
from tests.support.tiny_project import INNER, configure

STEPS = 8
PLAIN = msgspec.structs.replace(
    INNER, warmup_frac=0.0, final_learning_rate_frac=1.0, fresh_moment_steps=0
)
LOSS_OFF_MAX = 1e-5
MUON_LOSS_OFF_MAX = 1e-4
"""torch's Muon orthogonalises in bf16, which makes more of what rounding leaves of a gradient."""

LEARNED = 0.05
"""Nats that the loss falls at least: without learning every trainer agrees."""


class Losses(transformers.TrainerCallback):
    def __init__(self):
        self.found = []

    def on_log(self, args, state, control, logs=None, **rest):
        if logs and "loss" in logs:
            self.found.append(logs["loss"])


class InOrder(transformers.Trainer):
    def _get_train_sampler(self, *given):
        return torch.utils.data.SequentialSampler(self.train_dataset)


class Both(torch.optim.Optimizer):
    """Two optimizers as the one that `Trainer` takes."""

    def __init__(self, *parts):
        groups = [group for part in parts for group in part.param_groups]
        super().__init__([one for group in groups for one in group["params"]], {})
        self.parts, self.param_groups = parts, groups

    def step(self, closure=None):
        for one in self.parts:
            one.step()


def muon_and_adamw(model):
    """As a reader of `torch.optim` would put them together."""
    tables = {id(model.get_input_embeddings().weight), id(model.lm_head.weight)}
    every = list(model.parameters())
    hidden = [one for one in every if one.dim() == 2 and id(one) not in tables]
    table = [one for one in every if id(one) in tables]
    norms = [one for one in every if one.dim() == 1]
    rate, decay = PLAIN.learning_rate, PLAIN.weight_decay
    muon = torch.optim.Muon(
        hidden,
        lr=rate,
        weight_decay=decay,
        momentum=PLAIN.muon_momentum,
        adjust_lr_fn="match_rms_adamw",
    )
    groups = [{"params": table}, {"params": norms, "weight_decay": 0.0}]
    betas = (PLAIN.beta1, PLAIN.beta2)
    return Both(muon, torch.optim.AdamW(groups, lr=rate, betas=betas, weight_decay=decay))


def by_transformers(folder, model, texts, *, optimizer=None, bf16=False, steps=STEPS, batch=0):
    """The loss of each step, of a model that `Trainer` trains in place.

    batch: documents in a step, which are laid one behind the other as `transformers` packs them.
    """
    told = Losses()
    collator = transformers.DataCollatorWithFlattening() if batch else None
    trainer = InOrder(
        model=model,
        args=transformers.TrainingArguments(
            output_dir=str(folder),
            per_device_train_batch_size=batch or PLAIN.batch_sequences,
            max_steps=steps,
            learning_rate=PLAIN.learning_rate,
            weight_decay=PLAIN.weight_decay,
            adam_beta1=PLAIN.beta1,
            adam_beta2=PLAIN.beta2,
            max_grad_norm=PLAIN.grad_norm_max,
            lr_scheduler_type="constant",
            logging_steps=1,
            logging_nan_inf_filter=False,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            bf16=bf16,
            disable_tqdm=True,
        ),
        train_dataset=[{"input_ids": one, "labels": one} for one in texts],
        callbacks=[told],
        data_collator=collator,
        optimizers=(optimizer, None),
    )
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()
    return told.found


def texts(steps=STEPS):
    return torch.from_numpy(np.concatenate([Repeating().sequences(at) for at in range(steps)]))


def flat(model):
    return torch.cat([one.detach().flatten() for one in model.parameters()])


@pytest.mark.parametrize(
    ("optimizer", "loss_off", "weight_off"),
    [
        ("adamw", LOSS_OFF_MAX, 1e-5),
        pytest.param("muon", MUON_LOSS_OFF_MAX, 1e-3, marks=pytest.mark.slow),
    ],
)
def test_the_losses_of_every_step_and_the_weights_are_those_of_transformers(
    tmp_path, optimizer, loss_off, weight_off
):
    if optimizer == "muon" and not hasattr(torch.optim, "Muon"):
        pytest.skip("this torch has no Muon")
    torch.set_num_threads(1)
    loop = make_loop(inner=msgspec.structs.replace(PLAIN, optimizer=optimizer))
    losses = [loop.step().loss for _ in range(STEPS)]
    model = build_model(GENESIS.model, seed=11)
    given = muon_and_adamw(model) if optimizer == "muon" else None
    theirs = by_transformers(tmp_path, model, texts(), optimizer=given)
    assert losses == pytest.approx(theirs, abs=loss_off)
    assert losses[-1] < losses[0] - LEARNED
    torch.testing.assert_close(weights_of(loop), flat(model), rtol=1e-3, atol=weight_off)


END = 256
SIZES = (9, 10, 10)
"""Of the documents in a sequence: with the tokens that end them, 33."""


class Packed:
    """Learnable text: several documents in a sequence, each counting upwards from a letter."""

    def documents(self, position):
        letters = np.random.default_rng(position).integers(0, 200, size=(4, len(SIZES)))
        return [
            [(first + np.arange(size)) % 256 for first, size in zip(row, SIZES, strict=True)]
            for row in letters
        ]

    def sequences(self, position):
        begins = END | STARTS
        rows = [
            [begins, *(token for one in row for token in (*one, begins))]
            for row in self.documents(position)
        ]
        return np.array(rows)


def test_documents_read_apart_are_learned_as_transformers_learns_packed_ones(tmp_path):
    torch.set_num_threads(1)
    loop = make_loop(Packed(), inner=PLAIN, documents="separate")
    losses = [loop.step().loss for _ in range(STEPS)]
    documents = [
        [END, *one.tolist(), END]
        for at in range(STEPS)
        for row in Packed().documents(at)
        for one in row
    ]
    model = build_model(GENESIS.model, seed=11)
    together = PLAIN.batch_sequences * len(SIZES)
    theirs = by_transformers(tmp_path, model, documents, batch=together)
    assert losses == pytest.approx(theirs, abs=LOSS_OFF_MAX)
    assert losses[-1] < losses[0] - LEARNED
    torch.testing.assert_close(weights_of(loop), flat(model), rtol=1e-3, atol=1e-5)


def test_an_adapter_s_losses_of_every_step_are_those_of_transformers_with_peft(tmp_path):
    torch.set_num_threads(1)
    folder = base_folder(tmp_path / "model")
    genesis = adapter_genesis(tmp_path, folder, base_dtype="f32")
    command = configure(genesis, tmp_path, micro_batch=PLAIN.batch_sequences)
    setup = TrainerSetup(msgspec.structs.replace(command, inner=msgspec.msgpack.encode(PLAIN)))
    setup.loop.reader.append(((0, 2 * STEPS),))
    same = copy.deepcopy(setup.loop.reader)
    texts = torch.from_numpy(
        np.concatenate([same.take(PLAIN.batch_sequences) for _ in range(STEPS)])
    )
    model = peft.get_peft_model(
        transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32),
        peft.LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM"),
    )
    named = dict(model.named_parameters())
    with torch.no_grad():
        for name, one in setup.trainer.model.named_parameters():
            if one.requires_grad:
                named[f"base_model.model.{name}"].copy_(one)
    losses = [setup.loop.step().loss for _ in range(STEPS)]
    theirs = by_transformers(tmp_path, model, texts)
    assert losses == pytest.approx(theirs, abs=LOSS_OFF_MAX)
    assert losses[-1] < losses[0] - LEARNED / 5
    moved = [one for one in setup.trainer.model.parameters() if one.requires_grad]
    expected = [one for one in model.parameters() if one.requires_grad]
    for one, other in zip(moved, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


@pytest.fixture
def bf16(tmp_path):
    """Accelerators with bf16 autocast. Accelerate decides that once for a process, and forgets it
    where somebody asks for the arguments of a `Trainer`."""

    def forget():
        assert transformers.TrainingArguments(str(tmp_path), use_cpu=True).device.type == "cpu"

    def make():
        forget()
        return accelerate.Accelerator(cpu=True, mixed_precision="bf16")

    yield make
    forget()


@pytest.mark.slow
def test_in_bf16_the_losses_are_those_of_transformers_within_the_noise_of_bf16(tmp_path, bf16):
    """The noise is how far two runs are apart that differ only in how a batch is summed up."""
    torch.set_num_threads(1)
    steps = 3 * STEPS
    in_f32 = make_loop(inner=PLAIN)
    exact = np.array([in_f32.step().loss for _ in range(steps)])
    model = build_model(GENESIS.model, seed=11)
    theirs = by_transformers(tmp_path, model, texts(steps), bf16=True, steps=steps)

    def ours(micro_batch):
        loop = make_loop(inner=PLAIN, accelerator=bf16(), micro_batch=micro_batch)
        return np.array([loop.step().loss for _ in range(steps)])

    whole, cut = ours(PLAIN.batch_sequences), ours(1)
    noise = float(np.abs(whole - cut).max())
    assert noise > 10 * LOSS_OFF_MAX, "nothing was done in bf16"
    assert np.abs(whole - theirs).max() <= noise
    assert np.abs(whole - exact).max() <= 3 * noise
    assert whole[-1] < whole[0] - LEARNED


def test_what_a_processor_trains_in_bf16_it_measures_in_f32(bf16):
    torch.set_num_threads(1)
    samples = Repeating().sequences(0)

    @torch.no_grad()
    def measured(loop):
        losses = loop.trainer.losses(samples, lambda: None)
        return [loop.trainer.heldout_loss(samples, lambda: None), *losses]

    in_f32 = make_loop(inner=PLAIN)
    exact, exactly_trained = measured(in_f32), in_f32.step().loss
    loops = [make_loop(inner=PLAIN, accelerator=bf16()) for _ in range(2)]
    assert measured(loops[0]) == exact
    told = [[loop.step().loss for _ in range(STEPS)] for loop in loops]
    assert told[0][0] != exactly_trained, "nothing was done in bf16"
    # As in f32, the same steps give the same bits: what replay needs.
    assert told[0] == told[1]
    assert torch.equal(*map(weights_of, loops))
