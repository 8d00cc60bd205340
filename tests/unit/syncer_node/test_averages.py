"""The moving average of versions: what is in it, across restarts and voids, and what is refused."""

from __future__ import annotations

import logging

import msgspec
import numpy as np
import pytest

from host.bulk.blob_store import BlobStore
from protocol.errors import CorruptState
from protocol.log.records import FragmentMerged
from protocol.numerics.codecs import encode
from protocol.numerics.outer import digest
from simulator.stand_ins.tiny import tiny_weights
from syncer_node.machine.jobs import Merge, MergePart
from syncer_node.storage.averages import Averages, decay_at, path_of, read_average
from syncer_node.storage.merge_bank import MergeBank
from tests.support.builders import ONE, contribution, layout, project, push_header

LAYOUT = layout()
DECAY = 0.6
HEAD, OTHER = b"one history", b"another"


def charter(decay=DECAY):
    plain = project().charter
    return msgspec.structs.replace(plain, outer=msgspec.structs.replace(plain.outer, ema=decay))


class Syncer:
    """A bank that averages into a folder; a new one over the same folder is its next life."""

    def __init__(self, root, decay=DECAY):
        self.root = root
        self.averages = Averages(root, len(LAYOUT.fragments))
        self.bank = MergeBank(LAYOUT, charter(decay), BlobStore(), on_version=self.averages.take)

    def begin(self, thetas, numbers=(0, 0, 0, 0)):
        for at, (theta, number) in enumerate(zip(thetas, numbers, strict=True)):
            self.bank.initialise(at, number, theta, np.zeros_like(theta))
        return self

    def merge(self, fragment, number):
        """The next version; what a record of it would say."""
        values = np.random.default_rng([number, fragment]).normal(size=LAYOUT.fragments[0].numel)
        payload = encode("int4", values.astype(np.float32))
        header = push_header(sequence=number, fragment=fragment, digest=digest(payload))
        part = MergePart(ONE.key, header, 1.0)
        self.bank.keep_push(part.push, fragment, payload, "int4")
        outer = self.bank.charter.outer
        outcome = self.bank.merge(Merge(number, fragment, number, "int4", outer, (part,)))
        self.bank.adopt(fragment, number, outcome.payload_digest)
        record = FragmentMerged(
            round=number,
            global_step=number,
            fragment=fragment,
            version=number,
            payload=outcome.payload_digest,
            payload_bytes=len(outcome.payload),
            codec="int4",
            learning_rate=outer.learning_rate,
            momentum=outer.momentum,
            state=outcome.state,
            contributions=(contribution(),),
        )
        return record, outcome.payload

    def keep(self, index, kept=(), head=HEAD):
        self.averages.keep(index, head, lambda: kept)

    def end(self):
        self.averages.close()
        return self


def first():
    return [tiny_weights(one.numel, one.index) for one in LAYOUT.fragments]


def test_every_merge_moves_the_average_towards_the_new_version(tmp_path):
    syncer = Syncer(tmp_path).begin(first())
    wanted = syncer.bank.current(0).theta.astype(np.float64)
    for number in range(1, 31):
        syncer.merge(0, number)
        share = min(DECAY, (1 + number) / (10 + number))
        wanted = share * wanted + (1 - share) * syncer.bank.current(0).theta
    syncer.keep(7)
    syncer.end()
    found = read_average(tmp_path, 7, HEAD)
    np.testing.assert_allclose(found[0], wanted, rtol=1e-5, atol=1e-6)
    assert float(np.abs(found[0] - syncer.bank.current(0).theta).max()) > 1e-3
    assert found[1].tobytes() == first()[1].tobytes(), "nothing was merged into it"


def test_first_weights_are_soon_forgotten_and_decay_is_what_it_becomes():
    assert decay_at(0.999, 1) < 0.2
    assert decay_at(0.999, 10**6) == 0.999
    assert decay_at(0.5, 100) == 0.5


def test_a_life_that_was_cut_has_the_average_of_one_that_was_not(tmp_path):
    whole = Syncer(tmp_path / "whole").begin(first())
    cut = Syncer(tmp_path / "cut").begin(first())
    for syncer in (whole, cut):
        syncer.root.mkdir()
        for number in range(1, 6):
            syncer.merge(0, number)
    cut.keep(5)
    later = [whole.merge(0, number) for number in range(6, 9)]
    cut.end()
    thetas = [cut.bank.current(at).theta for at in range(4)]
    momentum = cut.bank.current(0).momentum

    # As recovery does it: the checkpoint, its average, and the merges behind it.
    again = Syncer(tmp_path / "cut").begin(thetas, (5, 0, 0, 0))
    again.bank.initialise(0, 5, thetas[0], momentum)
    again.averages.load(5, HEAD)
    for record, payload in later:
        again.bank.replay(record, payload)
    for syncer in (whole, again):
        syncer.keep(8)
        syncer.end()
    one, other = (read_average(tmp_path / name, 8, HEAD) for name in ("whole", "cut"))
    assert [values.tobytes() for values in one] == [values.tobytes() for values in other]


def test_weights_that_no_merge_made_begin_a_new_average(tmp_path):
    syncer = Syncer(tmp_path).begin(first())
    syncer.merge(0, 1)
    syncer.merge(1, 1)
    fetched = tiny_weights(LAYOUT.fragments[0].numel, 77)
    syncer.bank.initialise(0, 9, fetched, np.zeros_like(fetched))
    syncer.keep(3)
    syncer.end()
    found = read_average(tmp_path, 3, HEAD)
    assert found[0].tobytes() == fetched.tobytes()
    assert found[1].tobytes() != syncer.bank.current(1).theta.tobytes()


def test_averages_go_with_their_checkpoints(tmp_path):
    syncer = Syncer(tmp_path).begin(first())
    for index in (3, 6, 9):
        syncer.keep(index, kept=(6, 9))
    syncer.end()
    assert [index for index in (3, 6, 9) if path_of(tmp_path, index).exists()] == [6, 9]


def test_without_a_decay_nothing_is_kept_and_an_older_file_goes(tmp_path):
    syncer = Syncer(tmp_path).begin(first())
    syncer.keep(3)
    syncer.end()
    assert path_of(tmp_path, 3).exists()
    without = Syncer(tmp_path, decay=0.0).begin(first())
    without.merge(0, 1)
    without.keep(3, kept=(3,))
    without.end()
    assert not path_of(tmp_path, 3).exists()


def test_a_damaged_one_and_one_of_a_void_history_are_refused(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("shoal"), "propagate", True)  # Commands turn it off.
    syncer = Syncer(tmp_path).begin(first())
    syncer.merge(0, 1)
    syncer.keep(3)
    syncer.end()
    with pytest.raises(CorruptState, match="of another history"):
        read_average(tmp_path, 3, OTHER)
    later = Syncer(tmp_path).begin(first())
    later.averages.load(3, OTHER)
    later.keep(6, kept=(3,))
    later.end()
    assert "the moving average is not up to date" in caplog.text
    assert read_average(tmp_path, 6, HEAD)[0].tobytes() == first()[0].tobytes()
    content = bytearray(path_of(tmp_path, 3).read_bytes())
    content[-5] ^= 1
    path_of(tmp_path, 3).write_bytes(content)
    with pytest.raises(CorruptState, match="damaged"):
        read_average(tmp_path, 3, HEAD)
    path_of(tmp_path, 3).unlink()
    with pytest.raises(CorruptState, match="cannot be read"):
        read_average(tmp_path, 3, HEAD)
