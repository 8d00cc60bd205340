from __future__ import annotations

import numpy as np
import pytest

from node.trainer.setup import open_data
from node.trainer.text.masking import LABELS, READ, UNASKED, asked_of, hide
from node.trainer.text.reader import BlockReader, read_places
from node.trainer.text.tokenizer import ByteVocabulary
from protocol.project import MaskedSpec
from tests.support.image_folder import masked_project, signed

SPEC = MaskedSpec(257, 0.25)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("masking")


@pytest.fixture(scope="module")
def genesis(place):
    return signed(place, masked_project(place))


@pytest.fixture(scope="module")
def text(place, genesis):
    return open_data(genesis, place / "cache")


def test_the_project_pins_how_tokens_are_hidden(genesis):
    assert genesis.masked == MaskedSpec(257, 0.15)
    assert not genesis.writes


def test_what_is_not_asked_is_read_as_it_is_and_every_sequence_is_asked_as_often(text, genesis):
    for samples in (text.sequences(0), text.heldout(4)):
        is_asked = samples[:, LABELS] != UNASKED
        assert (is_asked.sum(axis=1) == asked_of(32, genesis.masked.frac)).all()
        whole = np.where(is_asked, samples[:, LABELS], samples[:, READ])
        assert whole.max() < 257  # The token that hides is never asked for.


def test_a_place_hides_the_same_tokens_for_everybody_and_others_in_the_next_pass(
    place, text, genesis
):
    again = open_data(genesis, place / "cache")
    blocks = genesis.data.blocks
    first = text.sequences(0)
    assert np.array_equal(first, again.sequences(0))
    same_text = [at for at in range(blocks, 2 * blocks) if _tokens(again, at) == _tokens(text, 0)]
    assert same_text, "every block comes once in each pass"
    assert not np.array_equal(first, text.sequences(same_text[0]))


def test_readers_and_probers_see_the_same(text, genesis):
    reader = BlockReader(text, block_sequences=4, sample_tokens=32)
    reader.append(((0, 3),))
    batch = reader.take(6)
    assert reader.sample_tokens == 32
    assert np.array_equal(batch[5], read_places(text, [(1, 1)])[0])


def test_the_mask_is_bound_to_the_seed(place):
    one, two = (
        open_data(signed(place, masked_project(place, project__seed=seed)), place / "cache")
        for seed in (5, 6)
    )
    assert np.array_equal(_whole(one.heldout(2)), _whole(two.heldout(2))), (
        "the held-out text is the same"
    )
    assert not np.array_equal(one.heldout(2), two.heldout(2))


def test_the_ends_of_documents_are_asked_for_last():
    vocabulary = ByteVocabulary()
    tokens = np.full((1, 8), vocabulary.eos)
    tokens[0, 3] = 65
    draws = np.random.default_rng(1).integers(0, 2**64, size=(3, 1, 8), dtype=np.uint64)
    labels = hide(tokens, SPEC, vocabulary, draws)[0, LABELS]
    assert labels[3] == 65
    assert (labels == vocabulary.eos).sum() == 1  # Two are asked for, and one is no end.


def test_eight_in_ten_are_hidden_one_is_replaced_and_one_stays():
    vocabulary = ByteVocabulary()
    tokens = np.full((1000, 40), 7)
    draws = np.random.default_rng(1).integers(0, 2**64, size=(3, 1000, 40), dtype=np.uint64)
    samples = hide(tokens, SPEC, vocabulary, draws)
    read = samples[:, READ][samples[:, LABELS] != UNASKED]
    assert read.size == 10_000
    assert (read == 257).mean() == pytest.approx(0.8, abs=0.02)
    assert (read == 7).mean() == pytest.approx(0.1, abs=0.02)
    others = read[(read != 257) & (read != 7)]
    assert len(set(others.tolist())) > 200


def _whole(samples):
    return np.where(samples[:, LABELS] != UNASKED, samples[:, LABELS], samples[:, READ])


def _tokens(text, position):
    return _whole(text.sequences(position)).tobytes()
