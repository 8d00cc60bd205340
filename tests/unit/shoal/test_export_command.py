"""`shoal export` says which checkpoint it writes and whose word its loss is; or it writes none."""

from __future__ import annotations

import numpy as np
import pytest

from host.files import keystore
from host.files.home import Home
from host.files.signed_project import OpenedProject
from protocol import wire
from protocol.errors import UserError
from protocol.log.accounts import ChosenName
from protocol.log.records import (
    AccountsNoted,
    CheckpointEvaluated,
    CheckpointMarked,
    Record,
    SeatTaken,
    certify,
    record_hash,
    sign_record,
)
from protocol.log.state import SwarmState
from protocol.project import encode
from shoal.model.export_choice import choose
from shoal.model.export_command import export
from syncer_node.storage.store import Checkpoint, Store
from tests.support.builders import (
    ONE,
    TWO,
    charter_envelope,
    contribution,
    merged,
    project,
    weights,
)


class Disk:
    """A syncer's store with a log that a test makes, and checkpoints of it."""

    def __init__(self, home: Home) -> None:
        tiny = project()
        self.project = OpenedProject(
            genesis=tiny.genesis,
            genesis_bytes=encode(tiny.genesis),
            charter=tiny.charter,
            envelope=charter_envelope(tiny),
        )
        self.here = keystore.load_or_create(home.identity("syncer"))
        self.store = Store(home.syncer_store(tiny.project))
        self.store.voter.boot()
        self.state = SwarmState(tiny.genesis.data.block_sequences)
        for body in (SeatTaken(self.here.key), weights()):
            self.add(body)
        for learner, name in ((ONE, "ada"), (TWO, "bob")):
            version = self.state.fragments[0].version + 1
            part = contribution(learner=learner.key)
            self.add(merged(version=version, contributions=(part,), global_step=version))
            self.add(AccountsNoted((ChosenName(learner.key, name),), ()))

    def add(self, body) -> int:
        state = self.state
        record = Record(self.project.id, 0, 1, state.index + 1, state.head, 1.7e9, body)
        encoded = wire.encode(record)
        digest = record_hash(encoded)
        self.store.voter.append(state.index, [encoded])
        votes = [sign_record(record, digest, self.here)]
        self.store.voter.keep_certificate(certify(record, digest, votes))
        state.apply(record, digest)
        return record.index

    def mark(self, *losses: float, second=TWO) -> int:
        step = self.state.global_step
        index = self.add(CheckpointMarked(step, ONE.key, second.key if second else None))
        self.keep(index)
        for who, loss in zip((ONE, second), losses, strict=False):
            self.add(CheckpointEvaluated(index, step, 0, who.key, loss))
        return index

    def keep(self, index: int, *, is_first: bool = False) -> None:
        versions = [one.version * (not is_first) for one in self.state.fragments]
        values = [np.zeros(8, np.float32) for _ in versions]
        summary = None if is_first else self.state.summary()
        self.store.write_checkpoint(Checkpoint(index, values, values, versions, summary))

    def choose(self, which="best", **changes):
        flags = {"is_untrained_wanted": False, **changes}
        return choose(self.store.root, which, self.project, **flags)


@pytest.fixture
def disk(tmp_path):
    made = Disk(Home(tmp_path / "home"))
    yield made
    made.store.close()


def test_it_names_step_tokens_loss_and_both_who_measured(disk):
    best = disk.mark(2.0, 2.01)
    disk.mark(3.0)
    chosen = disk.choose()
    assert chosen.place.name == str(best)
    said = "\n".join(chosen.lines)
    assert "global step 2, after" in said
    ada, bob = (f"{name} ({key.key.hex()[:8]})" for name, key in (("ada", ONE), ("bob", TWO)))
    assert f"held-out loss 2.0100, measured by {ada} and {bob}" in said


def test_one_learners_word_is_called_that(disk):
    disk.mark(2.0, second=None)
    said = "\n".join(disk.choose().lines)
    assert "alone" in said
    assert "one learner's word" in said


def test_without_a_best_it_says_that_it_takes_the_newest_and_why(disk):
    disk.mark(0.0, 4.0)
    newest = disk.mark()
    chosen = disk.choose()
    assert chosen.place.name == str(newest)
    said = "\n".join(chosen.lines)
    assert "no checkpoint counts as best yet, so this is the newest" in said
    assert "ada" in said
    assert "0.0000" in said
    assert "its held-out loss was not measured" in said


def test_a_false_zero_is_not_what_is_exported(disk):
    honest = disk.mark(2.0, 2.0)
    false = disk.mark(0.0, 4.0)
    assert disk.choose().place.name == str(honest)
    said = "\n".join(disk.choose(str(false)).lines)
    assert "they differ: 0.0000 and 4.0000" in said


def test_a_best_that_is_not_here_is_missed_aloud(disk):
    best = disk.mark(2.0, 2.0)
    disk.mark(3.0)
    disk.store.set_aside(best)
    assert f"the best checkpoint {best} is not on this disk" in "\n".join(disk.choose().lines)


def test_untrained_weights_are_written_only_on_demand(disk):
    disk.keep(0, is_first=True)
    for which in ("best", "latest", "0"):
        with pytest.raises(UserError, match="--untrained"):
            disk.choose(which)
    chosen = disk.choose(is_untrained_wanted=True)
    assert not chosen.is_trained
    assert disk.mark(2.0, 2.0)
    assert disk.choose().is_trained
    with pytest.raises(UserError, match="nothing that anybody trained"):
        disk.choose("0")


def test_a_checkpoint_is_named_by_its_global_step(disk):
    disk.keep(0, is_first=True)
    early = disk.mark(2.0, 2.0)
    for name in ("cyd", "dot"):
        version = disk.state.fragments[0].version + 1
        disk.add(merged(version=version, contributions=(contribution(),), global_step=version))
        disk.add(AccountsNoted((ChosenName(ONE.key, name),), ()))
    disk.mark(1.5, 1.5)
    assert disk.choose(step=2).place.name == str(early)
    with pytest.raises(UserError, match=r"global step 3 on this disk. Choose one of: 0, 2, 4\."):
        disk.choose(step=3)
    with pytest.raises(UserError, match=r"of global step 0 .* holds the first weights"):
        disk.choose(step=0)


def test_of_two_checkpoints_of_one_step_the_newer_is_taken(disk):
    disk.mark(2.0, 2.0)
    again = disk.mark(2.0, 2.0)
    assert disk.choose(step=2).place.name == str(again)


def test_two_names_for_the_weights_are_one_too_many(tmp_path):
    with pytest.raises(UserError, match="Use one of them"):
        export(to=tmp_path / "out", checkpoint="latest", step=2, home=Home(tmp_path))
