"""The `plot` verb: from which log, to which file, with what in it."""

from __future__ import annotations

import json
import warnings
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from host.files.home import Home
from protocol.errors import UserError
from protocol.log.accounts import ChosenName
from protocol.log.records import AccountsNoted, CheckpointEvaluated, CheckpointMarked, SeatTaken
from shoal.machine import plot_command, run_plot
from tests.support.builders import ONE, SYNCER, TWO, contribution, merged, weights
from tests.support.hosted_logs import Hosted, hosted_log

pytest.importorskip("matplotlib")

BEGAN_S = 1.7e9


@pytest.fixture
def hosted(tmp_path) -> Hosted:
    both = (contribution(), contribution(learner=TWO.key))
    bodies = [
        SeatTaken(SYNCER.key),
        weights(),
        merged(contributions=both),
        AccountsNoted((ChosenName(ONE.key, "_$ada$"),), ()),
        merged(version=2, global_step=2, contributions=both),
        CheckpointMarked(2, ONE.key),
        CheckpointEvaluated(6, 2, 512, ONE.key, 2.25),
        SeatTaken(SYNCER.key),
    ]
    return hosted_log(tmp_path, [(BEGAN_S + at, body) for at, body in enumerate(bodies)])


def plot(hosted: Hosted, path: Path, **options) -> int:
    return plot_command.plot(to=path, home=hosted.home, **options)


def test_a_picture_of_the_run_names_loss_learners_and_project(hosted, tmp_path, capsys):
    place = tmp_path / "run.svg"
    assert plot(hosted, place, json=tmp_path / "run.json") == 0
    assert capsys.readouterr().out == f"wrote {place}: 1 measurement, 2 merges, up to record 8\n"
    drawn = place.read_text()
    for words in ("Held-out loss", "best: 2.2500 at step 2", "$ada$", "a leader was elected"):
        assert f"<!-- {words} -->" in drawn
    numbers = json.loads((tmp_path / "run.json").read_text())
    assert [one["merges"] for one in numbers["samples"]] == [1, 2]
    assert numbers["measured"] == [
        {"global_step": 2, "tokens": 512, "loss": 2.25, "is_agreed": False}
    ]


def test_runs_of_any_length_have_marks_and_no_warning():
    began = datetime(2026, 11, 24, 17, 3, 11, tzinfo=UTC)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for power in range(700):
            lasts = timedelta(seconds=1.03**power)
            assert len(run_plot.time_marks().tick_values(began, began + lasts)) > 0


def test_a_png_is_one_and_what_is_neither_is_refused(hosted, tmp_path):
    plot(hosted, tmp_path / "run.PNG")
    assert (tmp_path / "run.PNG").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(UserError, match="neither a"):
        plot(hosted, tmp_path / "run.pdf")


def test_the_project_is_found_by_its_name_or_id(hosted, tmp_path):
    genesis = hosted.opened.genesis
    for wanted in (genesis.name, hosted.opened.id.hex()[:8]):
        assert plot(hosted, tmp_path / "run.svg", project=wanted) == 0
    with pytest.raises(UserError, match="No daemon of this home knows the project 'other'"):
        plot(hosted, tmp_path / "run.svg", project="other")


def test_a_home_without_daemons_says_what_to_do(tmp_path):
    with pytest.raises(UserError, match="shoal join"):
        plot_command.plot(to=tmp_path / "run.svg", home=Home(tmp_path / "empty"))


def test_a_folder_that_is_not_there_is_named(hosted, tmp_path):
    with pytest.raises(UserError, match=r"run\.svg cannot be written"):
        plot(hosted, tmp_path / "absent" / "run.svg")
