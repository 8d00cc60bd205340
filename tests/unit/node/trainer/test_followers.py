from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from node.trainer.link.messages import Configure
from node.trainer.ranks import group
from node.trainer.ranks.followers import part_for
from node.trainer.text.reader import BlockReader, part_of


class Counting:
    """Blocks of four sequences, each filled with 10 * position + its number."""

    def sequences(self, position):
        return np.repeat(10 * position + np.arange(4)[:, None], 9, axis=1)


@given(st.integers(1, 40), st.integers(1, 64))
def test_the_ranks_have_every_sequence_once_and_about_as_many(ranks, sequences):
    shares = [group.share_of(rank, ranks, sequences) for rank in range(ranks)]
    assert [at for first, last in shares for at in range(first, last)] == list(range(sequences))
    sizes = [last - first for first, last in shares]
    assert max(sizes) - min(sizes) <= 1


@given(st.integers(1, 8), st.integers(1, 24), st.integers(0, 4))
def test_parts_of_a_batch_are_the_batch(ranks, sequences, skip):
    whole = BlockReader(Counting(), block_sequences=4)
    parts = BlockReader(Counting(), block_sequences=4)
    for reader in (whole, parts):
        reader.append(((3, 5), (9, 20)), skip)
    batch = whole.take(sequences)
    pieces = parts.plan(sequences)
    found = []
    for rank in range(min(ranks, sequences)):
        mine = part_of(pieces, *group.share_of(rank, min(ranks, sequences), sequences))
        found.append(parts.read(mine))
    np.testing.assert_array_equal(np.concatenate(found), batch)
    assert parts.mark() == whole.mark()


def test_gradients_travel_in_buckets_in_their_order(monkeypatch):
    monkeypatch.setattr(group, "BUCKET_BYTES", 40)
    gradients = [torch.full((size,), float(size)) for size in (3, 7, 20, 1, 2, 7, 1)]
    found = list(group.buckets(gradients))
    assert [one.numel() for bucket in found for one in bucket] == [3, 7, 20, 1, 2, 7, 1]
    assert [[one.numel() for one in bucket] for bucket in found] == [[3, 7], [20], [1, 2, 7], [1]]


@pytest.mark.parametrize(("threads", "ranks", "each"), [(8, 2, 4), (1, 4, 1)])
def test_ranks_divide_threads_and_memory(threads, ranks, each):
    command = Configure(b"", b"", "", threads, ram_bytes_max=1000)
    part = part_for(command, ranks)
    assert (part.threads, part.ram_bytes_max, part.ranks) == (each, 1000 // ranks, ranks)
