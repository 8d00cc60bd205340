"""Shoal's own trainer takes the local steps that the `Trainer` of transformers takes."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
import torch
import transformers

from node.trainer.model import build_model
from tests.support.tiny_loop import GENESIS, Repeating, make_loop, weights_of
from tests.support.tiny_project import INNER

STEPS = 8
PLAIN = msgspec.structs.replace(
    INNER, warmup_frac=0.0, final_learning_rate_frac=1.0, fresh_moment_steps=0
)


class Losses(transformers.TrainerCallback):
    def __init__(self):
        self.found = []

    def on_log(self, args, state, control, logs=None, **rest):
        if logs and "loss" in logs:
            self.found.append(logs["loss"])


class InOrder(transformers.Trainer):
    def _get_train_sampler(self, *given):
        return torch.utils.data.SequentialSampler(self.train_dataset)


def by_transformers(folder, texts):
    model = build_model(GENESIS.model, seed=11)
    told = Losses()
    trainer = InOrder(
        model=model,
        args=transformers.TrainingArguments(
            output_dir=str(folder),
            per_device_train_batch_size=PLAIN.batch_sequences,
            max_steps=STEPS,
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
            disable_tqdm=True,
        ),
        train_dataset=[{"input_ids": one, "labels": one} for one in texts],
        callbacks=[told],
    )
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()
    return told.found, torch.cat([one.detach().flatten() for one in model.parameters()])


@pytest.mark.timeout(120)
def test_the_losses_of_every_step_and_the_weights_are_those_of_transformers(tmp_path):
    torch.set_num_threads(1)
    loop = make_loop(inner=PLAIN)
    losses = [loop.step().loss for _ in range(STEPS)]
    texts = np.concatenate([Repeating().sequences(at) for at in range(STEPS)])
    theirs, weights = by_transformers(tmp_path, torch.from_numpy(texts))
    assert losses == pytest.approx(theirs, abs=1e-5)
    assert losses[-1] < losses[0] - 0.05
    torch.testing.assert_close(weights_of(loop), weights, rtol=1e-3, atol=1e-5)
