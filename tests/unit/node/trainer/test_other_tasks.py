"""A ViT and a BERT take the local steps that a plain loop over transformers takes."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest
import torch

from node.trainer.gain import Change, measure_gain
from node.trainer.model import build_model
from node.trainer.setup import TrainerSetup
from node.trainer.text.masking import LABELS, READ
from protocol.messages import SequencePlace
from tests.support.image_folder import image_project, masked_project, signed
from tests.support.tiny_project import INNER, configure

STEPS = 6
PLAIN = msgspec.structs.replace(
    INNER, warmup_frac=0.0, final_learning_rate_frac=1.0, fresh_moment_steps=0
)


def set_up(genesis, folder):
    torch.set_num_threads(1)
    inner = msgspec.msgpack.encode(PLAIN)
    setup = TrainerSetup(configure(genesis, folder, inner=inner, micro_batch=2))
    setup.loop.reader.append(((0, STEPS),))
    return setup


def plain_loop(genesis, inputs):
    """Losses and weights of AdamW on these batches, by transformers' own loss."""
    model = build_model(genesis.model, seed=genesis.seed)
    decayed = [one for one in model.parameters() if one.dim() > 1]
    rest = [one for one in model.parameters() if one.dim() <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": PLAIN.weight_decay}, {"params": rest}],
        lr=PLAIN.learning_rate,
        betas=(PLAIN.beta1, PLAIN.beta2),
        weight_decay=0.0,
    )
    losses = []
    for batch in inputs:
        loss = model(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), PLAIN.grad_norm_max)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return losses, model


def compare(setup, genesis, inputs):
    losses = [setup.loop.step().loss for _ in range(STEPS)]
    theirs, model = plain_loop(genesis, inputs)
    assert losses == pytest.approx(theirs, abs=1e-5)
    assert losses[-1] < losses[0]
    ours = setup.trainer.tensors()
    for name, values in model.named_parameters():
        torch.testing.assert_close(ours[name].detach(), values.detach(), rtol=1e-3, atol=1e-5)


def test_a_vit_trains_as_with_transformers(tmp_path):
    genesis = signed(tmp_path, image_project(tmp_path))
    setup = set_up(genesis, tmp_path)

    def batch(position):
        pixels, labels = setup.corpus.look(setup.corpus.sequences(position))
        shown = (torch.from_numpy(pixels).float() / 255.0 - 0.5) / 0.5
        return {"pixel_values": shown, "labels": torch.from_numpy(labels)}

    assert genesis.images.classes == ("bars", "dots", "stripes")
    compare(setup, genesis, [batch(at) for at in range(STEPS)])


def test_a_bert_trains_as_with_transformers(tmp_path):
    genesis = signed(tmp_path, masked_project(tmp_path))
    setup = set_up(genesis, tmp_path)

    def batch(position):
        samples = torch.from_numpy(setup.corpus.sequences(position))
        return {"input_ids": samples[:, READ], "labels": samples[:, LABELS].contiguous()}

    compare(setup, genesis, [batch(at) for at in range(STEPS)])


def test_losses_of_masked_samples_average_to_that_of_all(tmp_path):
    setup = set_up(signed(tmp_path, masked_project(tmp_path)), tmp_path)
    samples = setup.corpus.heldout(5)
    with torch.no_grad():
        each = setup.trainer.losses(samples, lambda: None)
    assert each.shape == (5,)
    assert each.mean() == pytest.approx(setup.heldout_loss(setup.view.copies(), 5), abs=1e-5)


@pytest.mark.parametrize("project", [image_project, masked_project])
def test_a_push_is_probed_with_the_samples_of_its_places(tmp_path, project):
    setup = set_up(signed(tmp_path, project(tmp_path)), tmp_path)
    places = [SequencePlace(position, 1) for position in range(4)]
    own, heldout = setup.read_places(places), setup.corpus.heldout(4)
    before = setup.view.copies()
    for _ in range(STEPS):
        setup.loop.step()  # Among them those of these places.
    after = setup.view.copies()
    for fragment, values in enumerate(before):
        setup.view.write(fragment, values)
    gain, other = measure_gain(
        setup.loop,
        setup.layout,
        np.concatenate(before),
        Change(len(before) - 1, after[-1]),
        (own, heldout),
        lambda seconds: None,
    )
    assert gain.sequences == 4
    assert gain.mean > 0
    assert math.isfinite(other.mean)
    assert np.array_equal(setup.view.copies()[-1], before[-1]), "weights in training stay"
