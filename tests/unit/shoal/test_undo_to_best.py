"""`shoal project undo` without a time: back to the best checkpoint on this disk, if it is whole."""

from __future__ import annotations

import numpy as np
import pytest

from host.files.home import Home
from host.files.signed_project import read_signed
from protocol.log.records import (
    CharterAdopted,
    CheckpointEvaluated,
    CheckpointMarked,
    SeatTaken,
    WeightsInitialised,
)
from protocol.numerics.versions import state_manifests
from protocol.project import Origin
from shoal.__main__ import main
from shoal.project import file_commands
from syncer_node.storage.store import Checkpoint, Store
from tests.support.builders import ONE, SYNCER, TWO, Log, merged
from tests.support.owned_project import owned_project


class Run:
    """A log on a syncer's disk, with the checkpoints that it marks."""

    def __init__(self, home, path):
        project = read_signed(path)
        self.store = Store(home.syncer_store(project.id))
        self.store.voter.boot()
        self.log = Log()
        self.commit(SeatTaken(SYNCER.key))
        self.commit(CharterAdopted(project.envelope))
        self.values = [np.full(128, at, np.float32) for at in range(4)]
        self.commit(WeightsInitialised(tuple(self.states())))

    def states(self):
        return [state_manifests(values, values).digests for values in self.values]

    def commit(self, body):
        entry = self.log.add(body)
        self.store.voter.append(self.log.state.index - 1, [entry.record])

    def merge(self):
        state = self.log.state
        self.values[0] = self.values[0] + 1
        version = state.fragments[0].version + 1
        step = state.global_step + 1
        self.commit(merged(round=step, global_step=step, version=version, state=self.states()[0]))

    def measure(self, loss):
        """A checkpoint on the disk, of which two say that."""
        self.commit(CheckpointMarked(self.log.state.global_step, ONE.key, TWO.key))
        index, summary = self.log.state.index, self.log.state.summary()
        versions = [fragment.version for fragment in self.log.state.fragments]
        self.store.write_checkpoint(Checkpoint(index, self.values, self.values, versions, summary))
        for who in (ONE, TWO):
            step = self.log.state.global_step
            self.commit(CheckpointEvaluated(index, step, self.log.state.tokens, who.key, loss))
        return index


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("SHOAL_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return Home()


@pytest.fixture
def run(home, tmp_path):
    path = owned_project(home, tmp_path, guard="pause")
    file_commands.keep_copy(path, home)
    return Run(home, path)


def undo(*words: str) -> int:
    return main(["project", "undo", "tiny.shoal", *words])


def origin():
    return read_signed(
        file_commands.signed_beside(Home().root.parent / "tiny.shoal")
    ).charter.origin


def wrecked(run, *losses):
    """The index of the best of these checkpoints, behind which the model was wrecked."""
    indices = {}
    for loss in losses:
        indices[loss] = run.measure(loss)
        run.merge()
    run.measure(9.7)
    run.store.close()
    return indices[min(losses)]


def test_it_goes_back_to_what_the_guard_compared_with(run, capsys):
    best = wrecked(run, 5.0, 2.0, 2.1)
    assert run.log.state.pause is not None
    assert undo("--yes") == 0
    assert origin() == Origin(best, run.log.records[best].previous)
    out = capsys.readouterr().out
    assert "global step 1, " in out
    assert "held-out loss 2.00 (measured by" in out
    assert "lost: 2 global steps and 128 tokens, merged since" in out
    assert "epoch 1 begins at the best checkpoint" in out


def test_it_is_only_explained_without_a_confirmation(run, capsys):
    wrecked(run, 5.0, 2.0)
    assert undo() == 0
    out, _ = capsys.readouterr()
    assert "This begins epoch 1 of tiny" in out
    assert "learners begin there with fresh optimizer state" in out
    assert "Nothing was changed. To do it, repeat the command with --yes." in out
    assert origin() is None


def test_also_where_nothing_is_paused(run):
    best = run.measure(3.0)
    run.merge()
    run.store.close()
    assert undo("--yes") == 0
    assert origin().index == best


def test_without_a_measured_one_it_says_what_else_there_is(run, capsys):
    run.merge()
    run.store.close()
    assert undo("--yes") == 2
    assert "No checkpoint counts as best yet" in capsys.readouterr().err


def test_a_checkpoint_that_is_damaged_or_gone_is_not_gone_back_to(run, capsys):
    best = wrecked(run, 5.0, 2.0)
    place = run.store.place(best)
    other = run.store.place(best - 4) / "state.safetensors"
    (place / "state.safetensors").write_bytes(other.read_bytes())
    assert undo("--yes") == 2
    assert f"checkpoint {best} is damaged" in capsys.readouterr().err
    run.store.set_aside(best)
    assert undo("--yes") == 2
    assert f"checkpoint {best} is not in" in capsys.readouterr().err
    assert origin() is None


def test_on_a_host_without_a_log_it_says_where_to_run_it(home, tmp_path, capsys):
    owned_project(home, tmp_path)
    assert undo("--yes") == 2
    assert "Run this on the host of a syncer" in capsys.readouterr().err
