"""The frozen base as one file: pieces that are checked, whatever became of them."""

from __future__ import annotations

import msgspec
import pytest

from host.files import held_base
from host.files.held_base import HeldBase, pieces_of
from protocol import limits
from protocol.errors import InternalError, UserError
from protocol.project import AdapterSpec, FrozenTensor, Genesis, ModelSpec
from tests.support.tiny_project import data_spec

PIECE = 1000
CONTENT = bytes(range(256)) * 9
"""2304 bytes: three pieces, the last one shorter."""


@pytest.fixture
def genesis(monkeypatch):
    monkeypatch.setattr(limits, "HELD_PIECE_BYTES", PIECE)
    frozen = (FrozenTensor("a", (1000,)), FrozenTensor("b", (2, 76)))
    pieces = tuple(pieces_of(memoryview(CONTENT)))
    adapter = AdapterSpec(1, 1.0, 0.0, ("a",), "both", "bf16", frozen, pieces)
    model = ModelSpec("x", {}, ())
    data = data_spec("text.txt")
    return Genesis(1, "x", bytes(32), model, data, 1, "balanced", 1, adapter=adapter)


def test_a_whole_base_is_kept_found_by_digest_and_read_as_tensors(genesis, tmp_path):
    held = HeldBase(tmp_path, genesis)
    assert held.size_bytes == len(CONTENT) == held.wanted_bytes()
    assert [one.bytes for one in held.missing()] == [1000, 1000, 304]
    held.keep_all(memoryview(CONTENT))
    assert held.missing() == []
    again = HeldBase(tmp_path, genesis)
    assert again.find(again.pieces[2].digest) is None, "not before it was checked"
    assert again.missing() == []
    assert bytes(again.find(again.pieces[2].digest)) == CONTENT[2000:]
    assert again.find(bytes(32)) is None
    tensors = {one.name: bytes(content) for one, content in again.tensors()}
    assert tensors == {"a": CONTENT[:2000], "b": CONTENT[2000:]}


def test_pieces_come_in_any_order_and_a_damaged_one_is_fetched_again(genesis, tmp_path):
    held = HeldBase(tmp_path, genesis)
    for number in (2, 0):
        held.keep(held.pieces[number], CONTENT[number * PIECE : (number + 1) * PIECE])
    assert [one.number for one in held.missing()] == [1]
    with pytest.raises(UserError, match="1 of 3 pieces are missing"):
        list(held.tensors())
    held.keep(held.pieces[1], CONTENT[PIECE : 2 * PIECE])
    assert held.missing() == []
    content = bytearray(held.path.read_bytes())
    content[1500] ^= 1
    held.path.write_bytes(bytes(content))
    assert [one.number for one in HeldBase(tmp_path, genesis).missing()] == [1]


def test_a_file_of_another_size_counts_as_nothing_and_is_put_right(genesis, tmp_path):
    held = HeldBase(tmp_path, genesis)
    held.path.write_bytes(CONTENT * 2)
    assert len(held.missing()) == 3
    held.keep_all(memoryview(CONTENT))
    assert held.path.read_bytes() == CONTENT


def test_other_content_is_never_kept(genesis, tmp_path):
    held = HeldBase(tmp_path, genesis)
    with pytest.raises(InternalError, match="is not what the project pins"):
        held.keep(held.pieces[0], CONTENT[1:1001])
    with pytest.raises(UserError, match="is not the frozen base model that the project names"):
        held.keep_all(memoryview(CONTENT[::-1]))
    assert not held.path.exists()


def test_a_full_disk_is_said_before_anything_is_fetched(genesis, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(held_base.os, "posix_fallocate", full)
    held = HeldBase(tmp_path, genesis)
    with pytest.raises(UserError, match=r"takes 2,304 bytes there: free some disk space"):
        held.keep(held.pieces[0], CONTENT[:PIECE])


def test_pieces_that_do_not_add_up_to_the_tensors_are_refused(genesis, tmp_path):
    adapter = msgspec.structs.replace(genesis.adapter, pieces=genesis.adapter.pieces[:2])
    with pytest.raises(UserError, match="another number of pieces"):
        HeldBase(tmp_path, msgspec.structs.replace(genesis, adapter=adapter))


def test_a_project_without_an_adapter_has_nothing_to_hold(genesis, tmp_path):
    held = HeldBase(tmp_path, msgspec.structs.replace(genesis, adapter=None))
    assert (held.size_bytes, held.missing(), list(held.tensors())) == (0, [], [])
