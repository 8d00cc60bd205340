"""What a syncer makes of its disk after a crash, with the real log, merges and arithmetic."""

from __future__ import annotations

import os
import shutil
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from host.bulk.blob_store import BlobStore
from host.files.signed_project import OpenedProject
from protocol.errors import CorruptState
from protocol.log.records import (
    Admission,
    CharterAdopted,
    CheckpointEvaluated,
    CheckpointMarked,
    FragmentMerged,
    SeatTaken,
    VotersAdmitted,
    WeightsInitialised,
    WeightsRestored,
)
from protocol.numerics.codecs import encode
from protocol.numerics.outer import digest
from protocol.project import BaseSpec, BaseTensor, FirstState, Voter
from simulator.stand_ins.tiny import charter_envelope, tiny_weights
from syncer_node.machine.jobs import Merge, MergePart
from syncer_node.machine.standby import NONE
from syncer_node.storage.checkpoints import CheckpointStore
from syncer_node.storage.merge_bank import MergeBank
from syncer_node.storage.store import Store
from tests.support.builders import (
    ONE,
    SYNCER,
    TWO,
    Log,
    contribution,
    layout,
    project,
    push_header,
    sealed_charter,
)

LAYOUT = layout()


@pytest.fixture
def made(monkeypatch):
    """How often weights were drawn, without a process and a model."""
    calls = []

    def draw(_):
        calls.append(1)
        return [tiny_weights(fragment.numel, fragment.index) for fragment in LAYOUT.fragments]

    monkeypatch.setattr(CheckpointStore, "_make_weights", draw)
    return calls


class Syncer:
    """A syncer's bank and disk; another one in the same place is the same syncer, restarted."""

    def __init__(self, root, base=None):
        tiny = project()
        opened = OpenedProject(
            msgspec.structs.replace(tiny.genesis, base=base),
            tiny.genesis_bytes,
            tiny.charter,
            charter_envelope(tiny),
        )
        self.store = Store(root)
        self.bank = MergeBank(LAYOUT, tiny.charter, BlobStore())
        self.disk = CheckpointStore(self.store, self.bank, opened, SYNCER)
        self.log = None

    def begin(self):
        """First weights, in the log."""
        self.store.voter.boot()
        digests = self.disk.initialise()
        self.log = Log()
        for body in (SeatTaken(SYNCER.key), WeightsInitialised(digests)):
            self.commit(body)
        return self

    def commit(self, body):
        entry = self.log.add(body)
        self.store.voter.append(self.log.state.index - 1, [entry.record])
        self.store.voter.keep_certificate(entry.certificate)

    def merge(self, fragment):
        """One push, merged and committed as the daemon does it."""
        version = self.bank.current(fragment).number + 1
        step = self.log.state.global_step + 1
        numel = LAYOUT.fragments[fragment].numel
        values = np.random.default_rng(step).normal(size=numel).astype(np.float32)
        payload = encode("int4", values)
        part = MergePart(ONE.key, push_header(sequence=step, digest=digest(payload)), 1.0)
        self.bank.keep_push(part.push, fragment, payload, "int4")
        outcome = self.bank.merge(
            Merge(step, fragment, version, "int4", project().charter.outer, (part,))
        )
        self.store.write_payload(fragment, version, outcome.payload_digest, outcome.payload)
        body = FragmentMerged(
            round=step,
            global_step=step,
            fragment=fragment,
            version=version,
            payload=outcome.payload_digest,
            payload_bytes=len(outcome.payload),
            codec="int4",
            learning_rate=project().charter.outer.learning_rate,
            momentum=project().charter.outer.momentum,
            state=outcome.state,
            contributions=(contribution(sequence=step),),
        )
        self.commit(body)
        self.bank.adopt(fragment, version, outcome.payload_digest)

    def checkpoint(self, keep=()):
        index = self.log.state.index
        self.disk.write_checkpoint(
            self.disk.capture(index, self.log.state.summary()), keep=set(keep)
        )
        return index

    def bits(self):
        versions = [self.bank.current(at) for at in range(len(LAYOUT.fragments))]
        return [(v.number, v.theta.tobytes(), v.momentum.tobytes()) for v in versions]

    def place(self, index):
        return self.store.root / "checkpoints" / str(index)


@pytest.fixture
def syncer(tmp_path, made):
    """Nine merges over two checkpoints, the newest two merges after the last of them."""
    one = Syncer(tmp_path).begin()
    for fragment in (0, 1, 2, 3):
        one.merge(fragment)
    one.first = one.checkpoint()
    for fragment in (0, 1, 2):
        one.merge(fragment)
    one.second = one.checkpoint()
    for fragment in (3, 0):
        one.merge(fragment)
    return one


def restarted(syncer):
    syncer.store.close()
    again = Syncer(syncer.store.root)
    return again, again.disk.recover()


def flip(path, at=-50):
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def test_the_first_weights_are_made_once(tmp_path, made):
    first = Syncer(tmp_path).disk.initialise()
    again = Syncer(tmp_path)
    assert again.disk.initialise() == first
    assert len(made) == 1
    theta = again.bank.current(2).theta
    np.testing.assert_array_equal(theta, tiny_weights(theta.size, 2))
    assert not again.bank.current(2).momentum.any()


def test_an_empty_disk_recovers_to_nothing(tmp_path, made):
    recovered = Syncer(tmp_path).disk.recover()
    assert (recovered.state.index, recovered.recent) == (0, [])
    assert made == []


def test_a_restart_gives_the_same_bits_and_the_same_log(syncer):
    again, recovered = restarted(syncer)
    assert again.bits() == syncer.bits()
    assert recovered.state.summary() == syncer.log.state.summary()
    assert recovered.recent == syncer.log.entries
    assert set(recovered.origins) == {f.record_index for f in recovered.state.fragments}


def test_a_damaged_newest_checkpoint_costs_nothing_but_a_longer_replay(syncer):
    flip(syncer.place(syncer.second) / "state.safetensors")
    again, recovered = restarted(syncer)
    assert again.bits() == syncer.bits()
    assert recovered.state.summary() == syncer.log.state.summary()
    assert again.store.checkpoints() == [syncer.first, 0]
    assert (syncer.place(syncer.second).with_suffix(".corrupt") / "meta").is_file()


def test_a_flipped_bit_in_what_a_checkpoint_says_of_the_log_costs_a_longer_replay(syncer):
    for at in range(20, (syncer.place(syncer.second) / "meta").stat().st_size, 97):
        held = (syncer.place(syncer.second) / "meta").read_bytes()
        flip(syncer.place(syncer.second) / "meta", at)
        again, recovered = restarted(syncer)
        assert again.bits() == syncer.bits()
        assert recovered.state.summary() == syncer.log.state.summary()
        aside = syncer.place(syncer.second).with_suffix(".corrupt")
        (aside / "meta").write_bytes(held)
        aside.rename(syncer.place(syncer.second))


@pytest.fixture
def lone(syncer):
    """A syncer whose log says that nobody else votes, and which disk is its own."""
    voter = syncer.store.voter
    disk = msgspec.structs.replace(voter.boot(), generation=3)
    voter.save_ballot(disk)
    syncer.commit(CharterAdopted(charter_envelope(project())))
    syncer.commit(VotersAdmitted((Admission(SYNCER.key, 3, disk.disk),)))
    syncer.disk_name = disk.disk
    return syncer


@pytest.mark.parametrize("damage", [Path.unlink, flip, partial(os.truncate, length=0)])
def test_a_syncer_that_votes_alone_makes_a_lost_ballot_anew(lone, damage, caplog):
    damage(lone.store.root / "ballot")
    again, recovered = restarted(lone)
    assert again.bits() == lone.bits()
    ballot, last = recovered.ballot, lone.log.state
    assert (ballot.disk, ballot.generation, ballot.term) == (lone.disk_name, 3, last.term)
    assert ballot.boot == last.index + 1
    assert "made it anew" in caplog.text
    assert again.store.voter.boot().boot == ballot.boot + 1


def test_a_lost_ballot_of_a_disk_that_was_never_admitted_is_not_made_anew(syncer):
    (syncer.store.root / "ballot").unlink()
    with pytest.raises(CorruptState, match="may have voted before"):
        restarted(syncer)


def test_a_lost_ballot_is_not_made_anew_where_somebody_else_ever_voted(lone):
    alone = project().charter
    both = (*alone.voters, Voter(TWO.key, "witness", 0))
    for revision, voters in ((2, both), (3, alone.voters)):
        charter = msgspec.structs.replace(alone, revision=revision, voters=voters)
        lone.commit(CharterAdopted(sealed_charter(charter)))
    (lone.store.root / "ballot").unlink()
    with pytest.raises(CorruptState, match="may have voted before"):
        restarted(lone)


def test_a_checkpoint_that_vanished_is_as_good_as_damaged(syncer):
    (syncer.place(syncer.second) / "meta").unlink()
    again, _ = restarted(syncer)
    assert again.bits() == syncer.bits()


def test_a_checkpoint_of_other_weights_than_the_log_names_is_not_used(syncer):
    path = syncer.place(syncer.second) / "state.safetensors"
    tensors = load_file(path)
    tensors["theta.0001"] = tensors["theta.0001"] + 1
    save_file(tensors, path)
    again, _ = restarted(syncer)
    assert again.bits() == syncer.bits()
    assert syncer.second not in again.store.checkpoints()


def test_a_torn_record_is_cut_and_the_rest_recovered(syncer):
    before = syncer.bits()
    path = syncer.store.voter.log.path
    syncer.store.close()
    with path.open("ab") as handle:
        handle.write(b"\x00\x00\x01\x00half")
    again, recovered = restarted(syncer)
    assert again.bits() == before
    again.store.voter.append(recovered.state.index, [b"next"])


def test_missing_certificates_are_made_again(syncer):
    syncer.store.close()
    syncer.store.voter.certificates.path.unlink()
    _, recovered = restarted(syncer)
    assert recovered.recent == syncer.log.entries


def payload_file(syncer, fragment):
    number = syncer.bank.current(fragment).number
    (found,) = (syncer.store.root / "payloads").glob(f"{fragment}-{number}-*.bin")
    return found


def test_a_missing_payload_means_that_the_weights_are_fetched(syncer):
    payload_file(syncer, 0).unlink()
    _, recovered = restarted(syncer)
    assert recovered.state.summary() == syncer.log.state.summary()
    assert recovered.held == [NONE] * 4


def test_a_damaged_payload_is_set_aside_and_the_weights_are_fetched(syncer):
    path = payload_file(syncer, 0)
    flip(path, at=3)
    _, recovered = restarted(syncer)
    assert recovered.held == [NONE] * 4
    assert not path.exists()
    assert path.with_suffix(".corrupt").is_file()


def test_recovery_goes_on_where_it_stopped(syncer):
    again, recovered = restarted(syncer)
    again.log = syncer.log
    again.merge(1)
    assert again.bits()[1][0] == recovered.state.fragments[1].version + 1
    third, _ = restarted(again)
    assert third.bits() == again.bits()


def test_old_checkpoints_go_and_the_best_and_the_first_stay(syncer):
    syncer.disk.name_best(syncer.first)
    for fragment in (1, 2, 3):
        syncer.merge(fragment)
        syncer.checkpoint()
    held = syncer.store.checkpoints()
    assert syncer.first in held
    assert 0 in held
    assert syncer.second not in held


def test_payloads_that_an_older_checkpoint_needs_are_kept(syncer):
    for fragment in (1, 2):
        syncer.merge(fragment)
    last = syncer.checkpoint()
    flip(syncer.place(last) / "state.safetensors")
    again, _ = restarted(syncer)
    assert again.bits() == syncer.bits()


def test_damaged_first_weights_are_noticed_even_before_the_first_merge(tmp_path, made):
    one = Syncer(tmp_path).begin()
    flip(one.place(0) / "state.safetensors")
    _, recovered = restarted(one)
    assert recovered.held == [NONE] * 4


def test_a_log_that_ends_before_the_checkpoint_is_told_as_corrupt(syncer):
    path = syncer.store.voter.log.path
    syncer.store.close()
    flip(path, at=path.stat().st_size // 3)
    with pytest.raises(CorruptState, match="no other voter has the rest"):
        restarted(syncer)


def test_first_weights_that_rotted_to_no_numbers_are_not_used(tmp_path, made):
    one = Syncer(tmp_path).begin()
    path = one.place(0) / "state.safetensors"
    tensors = load_file(path)
    tensors["momentum.0000"] = np.full_like(tensors["momentum.0000"], np.nan)
    save_file(tensors, path)
    one.merge(0)
    _, recovered = restarted(one)
    assert recovered.state.summary() == one.log.state.summary()
    assert recovered.held == [NONE] * 4


def test_first_weights_that_are_not_the_projects_are_never_proposed(tmp_path, made):
    drawn = Syncer(tmp_path / "drawn").disk.initialise()
    states = tuple(FirstState(one.theta, one.momentum) for one in drawn)
    tensors = (BaseTensor("F32", bytes(32)),)
    Syncer(tmp_path / "same", BaseSpec("folder:model", tensors, states)).disk.initialise()
    other = BaseSpec("folder:model", tensors, (states[0], states[0], *states[2:]))
    with pytest.raises(CorruptState, match="fragment 1 are not those of folder:model"):
        Syncer(tmp_path / "other", other).disk.initialise()


# The guard goes back


class Guarded(Syncer):
    """A syncer whose model was wrecked behind its second checkpoint of three."""

    def wrecked(self):
        self.begin()
        charter = msgspec.structs.replace(project().charter, revision=2, guard="restore")
        self.commit(CharterAdopted(sealed_charter(charter)))
        for fragment, loss in enumerate((5.0, 2.0, 9.7)):
            self.merge(fragment)
            self.commit(CheckpointMarked(fragment + 1, ONE.key, TWO.key))
            index = self.checkpoint(keep=self.log.state.candidates)
            for who in (ONE, TWO):
                self.commit(CheckpointEvaluated(index, fragment + 1, 0, who.key, loss))
        self.best = self.log.state.restoring
        return self

    def go_back(self):
        """As a leader does; the record."""
        checkpoint, states = self.best
        kept = self.disk.checkpoint_of(checkpoint, states)
        self.disk.keep_restored(checkpoint, kept.theta, kept.momentum)
        self.bank.hold_checkpoint(checkpoint, kept.theta, kept.momentum)
        state = self.log.state
        body = WeightsRestored(
            pause=state.pause.record,
            checkpoint=checkpoint,
            global_step=state.global_step,
            round=state.rounds,
            versions=tuple(one.version + 1 for one in state.fragments),
            fragments=states,
        )
        self.commit(body)
        self.bank.adopt_restored(body)
        return body


@pytest.fixture
def guarded(tmp_path, made):
    return Guarded(tmp_path).wrecked()


def test_going_back_gives_the_bits_of_the_checkpoint_under_higher_versions(guarded):
    body = guarded.go_back()
    kept = guarded.disk.checkpoint_of(body.checkpoint, body.fragments)
    for at, (number, theta, momentum) in enumerate(guarded.bits()):
        assert number == body.versions[at]
        assert theta == kept.theta[at].tobytes()
        assert momentum == kept.momentum[at].tobytes()
    assert guarded.bank.held_checkpoint == 0
    assert guarded.bank.blob_store.get(body.fragments[0].theta) is not None


def test_a_restart_behind_it_comes_to_the_same_bits(guarded):
    guarded.go_back()
    guarded.merge(1)
    again, recovered = restarted(guarded)
    assert again.bits() == guarded.bits()
    assert recovered.state.summary() == guarded.log.state.summary()
    assert set(recovered.origins) == {f.record_index for f in recovered.state.fragments}


def test_a_restart_needs_no_checkpoint_that_was_pruned_meanwhile(guarded):
    body = guarded.go_back()
    shutil.rmtree(guarded.place(body.checkpoint))
    again, _ = restarted(guarded)
    assert again.bits() == guarded.bits()


@pytest.mark.parametrize("has_other", [True, False])
def test_damaged_weights_to_go_back_to_are_told_and_not_used(guarded, has_other):
    body = guarded.go_back()
    flip(guarded.store.restored_place(body.checkpoint) / "state.safetensors")
    if not has_other:
        shutil.rmtree(guarded.place(body.checkpoint))
    again, recovered = restarted(guarded)
    if has_other:
        assert again.bits() == guarded.bits()
    else:
        assert recovered.held == [NONE] * len(LAYOUT.fragments)


def test_the_kept_weights_go_once_no_recovery_needs_them(guarded):
    body = guarded.go_back()
    place = guarded.store.restored_place(body.checkpoint)
    guarded.checkpoint()
    assert place.is_dir()
    guarded.merge(0)
    guarded.checkpoint()
    assert not place.exists()
    again, _ = restarted(guarded)
    assert again.bits() == guarded.bits()


def test_weights_of_other_digests_are_no_version(guarded):
    body = guarded.go_back()
    theta = [values + 1 for values in guarded.disk.checkpoint_of(*guarded.best).theta]
    with pytest.raises(CorruptState, match="are others"):
        guarded.bank.restore(body, theta, theta)


def test_a_fragment_that_is_further_already_stays(guarded):
    body = guarded.go_back()
    kept = guarded.disk.checkpoint_of(*guarded.best)
    guarded.merge(0)
    guarded.bank.restore(body, kept.theta, kept.momentum)
    assert guarded.bank.current(0).number == body.versions[0] + 1


def test_weights_held_for_others_are_offered_until_they_are_let_go(guarded):
    checkpoint, states = guarded.best
    kept = guarded.disk.checkpoint_of(checkpoint, states)
    name = states[2].theta
    guarded.merge(2)
    assert guarded.bank.blob_store.get(name) is None
    guarded.bank.hold_checkpoint(checkpoint, kept.theta, kept.momentum)
    assert guarded.bank.blob_store.get(name) is not None
    assert guarded.bank.held_checkpoint == checkpoint
    guarded.bank.let_checkpoint_go()
    assert guarded.bank.held_checkpoint == 0
