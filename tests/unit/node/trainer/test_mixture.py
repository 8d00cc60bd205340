"""Several sources by weight: shares, order, digests, what is held out, and what is published."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from node.trainer import setup
from node.trainer.text.mixture import SLOTS, SourceOrder, describe_mixture, open_sources
from node.trainer.text.published import open_published, publish
from protocol.errors import UserError
from protocol.project import Genesis, encode
from tests.support.mixtures import (
    WEIGHTS,
    is_second,
    mixed_genesis,
    sources_of,
    write_letters,
    write_sources,
)
from tests.support.tiny_project import BLOCK_SEQUENCES, data_spec, tiny_genesis

EXACT = 0.01


@pytest.fixture(scope="module")
def genesis(tmp_path_factory):
    return mixed_genesis(tmp_path_factory.mktemp("mixed"))


@pytest.fixture(scope="module")
def cache(genesis):
    return _folder(genesis) / "cache"


def _folder(genesis):
    return Path(genesis.mixture[0].location).parent


@pytest.fixture
def corpus(genesis, cache):
    return open_sources(genesis, cache=cache)


@pytest.mark.parametrize("weights", [(0.7, 0.3), (1, 1, 1), (5, 90, 3, 2), (0.999, 0.001)])
def test_any_stretch_has_the_shares_to_about_a_sequence(weights):
    order = SourceOrder(weights)
    assert sum(order.slots) == SLOTS
    row = np.array([order.at(number)[0] for number in range(SLOTS)])
    for source, weight in enumerate(weights):
        share = weight / sum(weights)
        assert order.slots[source] == pytest.approx(share * SLOTS, abs=1)
        passed = np.cumsum(np.append(0, row == source)) - share * np.arange(SLOTS + 1)
        assert passed.max() - passed.min() < 2 * (1 + len(weights))


def test_a_source_is_counted_on_over_the_end_of_the_table_and_found_again():
    order = SourceOrder((2, 5, 1))
    ranks = [0, 0, 0]
    for number in range(3 * SLOTS):
        source, rank = order.at(number)
        assert rank == ranks[source]
        ranks[source] += 1
        if number % 1000 == 0:
            assert order.number_of(source, rank) == number


def test_learners_that_take_turns_do_not_each_get_one_source():
    order = SourceOrder((1, 1))
    row = np.array([order.at(number)[0] for number in range(SLOTS)])
    for turns in (2, 3, 4, 8):
        for first in range(turns):
            assert abs(row[first::turns].mean() - 0.5) < 0.03


@pytest.mark.parametrize("weights", [(1, 0.0009), (1e6, 1)])
def test_a_share_next_to_nothing_is_refused(weights):
    with pytest.raises(UserError, match=r"Source 2 of the mixture .* smallest is 0\.001"):
        SourceOrder(weights)


def test_what_is_read_has_the_weights_and_each_source_is_read_whole_before_again(corpus):
    seen: list[list[bytes]] = [[], []]
    for position in range(corpus.spec.blocks):
        rows = corpus.sequences(position)
        for row, second in zip(rows, is_second(rows), strict=True):
            seen[int(second)].append(row.tobytes())
    total = sum(map(len, seen))
    assert total == corpus.spec.blocks * BLOCK_SEQUENCES
    for rows, weight, source in zip(seen, WEIGHTS, corpus.mixture, strict=True):
        assert abs(len(rows) / total - weight) < EXACT
        size = source.sequences
        passes = [rows[at : at + size] for at in range(0, len(rows), size)]
        full = [sorted(one) for one in passes if len(one) == size]
        assert full
        assert all(len(set(one)) == len(one) for one in full)
        assert all(one == full[0] for one in full)
    assert len(seen[0]) > 2 * corpus.mixture[0].sequences  # The smaller one, again and again.


def test_two_machines_read_the_same_and_another_seed_another_order(genesis, corpus, tmp_path):
    other = mixed_genesis(tmp_path)
    assert other.data.digest == genesis.data.digest
    there = open_sources(other, cache=tmp_path / "cache")
    assert there.matches
    for position in (0, 7, 10**6):
        np.testing.assert_array_equal(there.sequences(position), corpus.sequences(position))
    reseeded = msgspec.structs.replace(other, seed=12)
    third = open_sources(reseeded, cache=tmp_path / "cache")
    assert (third.sequences(7) != corpus.sequences(7)).any()


def test_the_digest_covers_every_source_and_the_weights(genesis, tmp_path):
    paths = write_sources(tmp_path)

    def digest(weights=WEIGHTS):
        spec = data_spec("", source="mixture")
        return describe_mixture(spec, sources_of(paths, weights), cache=tmp_path / "cache").digest

    assert digest() == genesis.data.digest
    assert digest((7, 3)) == digest()
    assert digest((0.6, 0.4)) != digest()
    write_letters(paths[1], "nopqrstuvwxyz", chars=90_000, seed=9)
    assert digest() != genesis.data.digest


def test_a_machine_with_another_copy_says_so_and_reads_on(genesis, tmp_path):
    paths = write_sources(tmp_path, chars=(30_000, 30_000))
    changed = msgspec.structs.replace(
        genesis,
        mixture=tuple(
            msgspec.structs.replace(one, location=str(path))
            for one, path in zip(genesis.mixture, paths, strict=True)
        ),
    )
    corpus = open_sources(changed, cache=tmp_path / "cache")
    assert not corpus.matches
    rows = np.concatenate([corpus.sequences(at) for at in range(genesis.data.blocks)])
    assert abs(is_second(rows).mean() - 0.3) < EXACT


def test_what_is_held_out_has_the_weights_and_ends_with_the_source_that_ends_first(corpus):
    rows = corpus.heldout(10**6)
    assert len(rows) == corpus.heldout_sequences
    assert len({row.tobytes() for row in rows}) == len(rows)
    assert abs(is_second(rows).mean() - 0.3) < EXACT
    np.testing.assert_array_equal(corpus.heldout(9), rows[:9])


def test_shards_have_the_weights_each_and_are_read_back(genesis, corpus, cache):
    spec = publish(corpus, genesis, cache=cache)
    published = msgspec.structs.replace(genesis, published=spec)
    shards = open_published(published, cache=cache, owner="host")
    assert shards.matches
    np.testing.assert_array_equal(shards.heldout(10**6), corpus.heldout(10**6))
    per_shard = spec.shard_blocks * BLOCK_SEQUENCES
    rows = np.concatenate([shards.sequences(at) for at in range(genesis.data.blocks)])
    seconds = is_second(rows)
    for first in range(0, len(rows) - per_shard, per_shard):
        assert abs(seconds[first : first + per_shard].sum() - 0.3 * per_shard) < 4
    assert abs(seconds.mean() - 0.3) < EXACT
    own = np.concatenate([corpus.sequences(at) for at in range(genesis.data.blocks)])
    assert sorted(map(bytes, rows)) == sorted(map(bytes, own))


@pytest.mark.parametrize(
    ("letters", "words"),
    [
        (None, "Source 2 of the mixture .jsonl .*n.jsonl.: There is no"),
        ("", "Source 2 of the mixture .* is empty in all"),
    ],
)
def test_a_source_that_cannot_be_read_is_named(tmp_path, letters, words):
    paths = write_sources(tmp_path)
    if letters is None:
        paths[1].unlink()
    else:
        paths[1].write_text('{"text": ""}\n')
    with pytest.raises(UserError, match=words):
        describe_mixture(
            data_spec("", source="mixture"), sources_of(paths), cache=tmp_path / "cache"
        )


def test_a_pass_is_bounded_where_a_small_weight_would_make_it_endless(tmp_path):
    paths = write_sources(tmp_path, chars=(30_000, 90_000))
    found = describe_mixture(
        data_spec("", source="mixture"), sources_of(paths, (0.99, 0.01)), cache=tmp_path / "cache"
    )
    sequences = sum(one.sequences for one in found.mixture)
    assert found.blocks == -(-4 * sequences // BLOCK_SEQUENCES)


def test_a_learner_reads_copies_in_one_folder_by_their_names(genesis, tmp_path):
    write_sources(tmp_path)
    moved = setup.read_at(genesis, str(tmp_path))
    assert [one.location for one in moved.mixture] == [
        str(tmp_path / name) for name in ("a.jsonl", "n.jsonl")
    ]
    assert open_sources(moved, cache=tmp_path / "cache").matches
    assert setup.read_at(genesis, "") == genesis
    evil = msgspec.structs.replace(genesis.mixture[0], location="/home/..")
    with pytest.raises(UserError, match="no name that a copy could have"):
        setup.read_at(msgspec.structs.replace(genesis, mixture=(evil,) * 2), str(tmp_path))


def test_a_project_with_one_source_is_written_as_before(tmp_path):
    one = tiny_genesis(tmp_path)
    assert one.mixture is None
    fields = msgspec.msgpack.decode(encode(one))
    assert len(fields) == 8
    assert msgspec.msgpack.decode(encode(one), type=Genesis) == one
