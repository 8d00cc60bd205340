"""`shoal sim compare` as people meet it: rows, going on after an interruption, clear errors."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import msgspec
import pytest

from host.files.home import Home
from protocol.errors import UserError
from shoal.__main__ import main
from shoal.project.template import create_text
from shoal.sim import trial_project
from shoal.sim.run_progress import TELL_EVERY_S, Lines
from simulator.compare.algorithms import ALGORITHMS, Algorithm, chosen
from simulator.compare.results import RUNS_FILE, Folder, Run, rows_of, summaries
from simulator.compare.setting import Setting
from simulator.compare.tasks import TASKS
from tests.support.tiny_project import write_text

COLUMNS = {
    "algorithm",
    "seed",
    "eval_loss",
    "ratio_to_dp",
    "tokens",
    "bytes",
    "virtual_wall_s",
    "goodput",
    "tuned",
    "parameters",
    "batch_tokens",
    "learners",
    "steps",
    "local_steps",
    "recipe",
    *TASKS,
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project file of a tiny model on invented text."""
    changes = {
        "model.fragments": 2,
        "model.config.hidden_size": 32,
        "model.config.intermediate_size": 64,
        "model.config.num_hidden_layers": 1,
        "model.config.num_attention_heads": 2,
        "model.config.num_key_value_heads": 2,
        "data.source": "file",
        "data.location": str(write_text(tmp_path / "text.txt", chars=30_000)),
        "data.sequence_tokens": 16,
        "data.heldout_frac": 0.3,
        "rounds.local_steps": 2,
        "rounds.overlap_steps": 1,
        "training.batch_sequences": 2,
        "limits.heldout_sequences": 4,
    }
    path = tmp_path / "tiny.toml"
    path.write_text(create_text("tiny", changes=changes))
    return path


def compare(tmp_path: Path, *arguments: str) -> int:
    where = ["--home", str(tmp_path / "home"), "sim", "compare"]
    folder = ["--results", str(tmp_path / "runs")]
    return main([*where, *arguments, *folder, "--steps", "4", "--learners", "2"])


def run_of(name: str, seed: int, loss: float) -> Run:
    return Run(
        algorithm=name,
        seed=seed,
        fingerprint=f"{name} {seed}",
        eval_loss=loss,
        tokens=10,
        bytes=20,
        virtual_wall_s=30.0,
        goodput=0.5,
        seconds=1.0,
    )


def test_rows_table_and_files(tmp_path, project, capsys):
    out, sheet = tmp_path / "rows.json", tmp_path / "rows.csv"
    wanted = ("decoupled", "dp", "--project", str(project), "--seeds", "2", "--tasks")
    assert compare(tmp_path, *wanted, "--json", str(out), "--csv", str(sheet)) == 0
    rows = json.loads(out.read_text())
    assert [(row["algorithm"], row["seed"]) for row in rows] == [
        ("decoupled", 1),
        ("dp", 1),
        ("decoupled", 2),
        ("dp", 2),
    ]
    assert all(set(row) == COLUMNS for row in rows)
    assert {row["tokens"] for row in rows} == {2 * 4 * 2 * 16}
    assert rows[0]["ratio_to_dp"] == rows[0]["eval_loss"] / rows[1]["eval_loss"]
    assert rows[1]["ratio_to_dp"] == rows[3]["ratio_to_dp"] == 1.0
    with sheet.open() as handle:
        assert [row["algorithm"] for row in csv.DictReader(handle)] == 2 * ["decoupled", "dp"]
    told = capsys.readouterr().out
    assert "held-out loss" in told
    assert "Right answers, %" in told.partition("held-out loss")[2]
    # A model of four local steps adds no better than a guess; brackets its text has none.
    assert all(row["brackets"] is None and row["arithmetic"] < 0.4 for row in rows)


def test_a_second_call_does_only_what_is_missing(tmp_path, project, capsys, monkeypatch):
    wanted = ("--project", str(project), "--seeds", "1")
    assert compare(tmp_path, "dp", *wanted) == 0
    done = []
    train = Algorithm.run

    def counted(self, *rest):
        done.append(self.name)
        return train(self, *rest)

    monkeypatch.setattr(Algorithm, "run", counted)
    assert compare(tmp_path, "dp", "fedavg", *wanted) == 0
    assert done == ["fedavg"]
    assert "1 of 2 runs are in" in capsys.readouterr().out
    # Other rounds are no concern of data parallelism; another network is another run.
    assert compare(tmp_path, "dp", *wanted, "--link-mbps", "10") == 0
    assert done == ["fedavg", "dp"]
    assert compare(tmp_path, "dp", *wanted) == 0
    assert done == ["fedavg", "dp"]


def test_every_algorithm_is_tuned_by_as_many_trials_on_seeds_that_are_not_reported(
    tmp_path, project, capsys
):
    wanted = ("dp", "decoupled", "--project", str(project), "--seeds", "1", "--tune", "3")
    out = tmp_path / "rows.json"
    assert compare(tmp_path, *wanted, "--json", str(out)) == 0
    runs = Folder(tmp_path / "runs").runs.values()
    trials = [run for run in runs if run.is_trial]
    assert sorted(run.algorithm for run in trials) == ["decoupled"] * 3 + ["dp"] * 3
    assert {run.seed for run in trials} == {1001}
    rows = {row["algorithm"]: row for row in json.loads(out.read_text())}
    said = " ".join(capsys.readouterr().out.split())
    for name, count in (("dp", 3), ("decoupled", 5)):
        own = [run for run in trials if run.algorithm == name]
        best = min(own, key=lambda run: run.eval_loss)
        assert all(len(run.settings) == count for run in own)
        assert own[0].settings["inner.beta1"] == 0.7, "as the project has it"
        assert f"{name}: {rows[name]['tuned']} is the best of 3 trials" in said
        (final,) = (run for run in runs if run.algorithm == name and not run.is_trial)
        assert (final.settings, final.seed) == (best.settings, 1)
    before = len(runs)
    assert compare(tmp_path, *wanted) == 0
    assert len(Folder(tmp_path / "runs").runs) == before


def test_a_torn_last_line_is_done_again_and_a_strange_one_is_named(tmp_path):
    file = tmp_path / RUNS_FILE
    lines = [msgspec.json.encode(run_of("dp", seed, 2.0)) for seed in (1, 2)]
    file.write_bytes(lines[0] + b"\n" + lines[1][:20])
    assert [run.seed for run in Folder(tmp_path).runs.values()] == [1]
    assert file.read_bytes() == lines[0] + b"\n"
    file.write_bytes(lines[0] + b"\n{}\n")
    with pytest.raises(UserError, match=r"runs.jsonl, line 2, is no run"):
        Folder(tmp_path)


def test_ratios_are_of_paired_seeds():
    runs = [run_of("dp", 1, 2.0), run_of("decoupled", 1, 2.1), run_of("decoupled", 2, 9.0)]
    rows = rows_of(runs)
    assert [row.ratio_to_dp for row in rows] == [1.0, 1.05, None]
    summary = summaries(rows)[1]
    assert (summary.seeds, summary.ratio_to_dp) == (2, 1.05)
    assert summary.eval_loss == pytest.approx(5.55)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nope"], "There is no algorithm 'nope'. Choose from: dp, "),
        (["dp", "--seeds", "0"], "--seeds"),
        (["dp", "--link-mbps", "0"], "--link-mbps"),
        (["dp", "--set", "rounds.local_steps"], "--set rounds.local_steps=8"),
        (["dp", "--set", "rounds.steps=3"], "a key of the project file"),
        (["dp", "--set", "rounds.local_steps=0"], "rounds.local_steps"),
        (["dp", "--project", "absent.toml"], "There is no file absent.toml"),
        (["dp", "--json", "/nowhere/at/all.json"], "its folder does not exist"),
    ],
)
def test_bad_flags_get_one_clear_line(tmp_path, capsys, arguments, words):
    assert compare(tmp_path, *arguments) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1


def test_no_names_are_all_algorithms():
    assert [one.name for one in chosen(())] == list(ALGORITHMS)
    assert [one.name for one in chosen(["fedavg", "dp", "fedavg"])] == ["fedavg", "dp"]


CHANGED = {
    "training.learning_rate": "0.0123",
    "training.optimizer": "muon",
    "outer.momentum": "0.3",
    "outer.learning_rate": "0.123",
    "rounds.local_steps": "5",
    "rounds.apply": "rebase",
    "rounds.up_codec": "int8",
    "model.fragments": "3",
    "model.strategy": "balanced",
    "model.merge.matrices": "mean",
}


@pytest.mark.parametrize("key", CHANGED)
def test_a_row_reads_a_setting_exactly_if_it_changes_the_row(key: str, tmp_path: Path) -> None:
    setting, home = Setting(seed=1), Home(tmp_path)
    given = [
        trial_project.sign(trial_project.read(None, changes), setting, home)
        for changes in ((), (f"{key}={CHANGED[key]}",))
    ]
    for one in ALGORITHMS.values():
        former, changed = (
            (one.genesis(genesis), msgspec.structs.replace(one.charter(charter), project=b""))
            for genesis, charter in given
        )
        has_changed = former != changed
        assert (
            one.reads(key) == has_changed
            if one.kind == "decoupled"
            else (not one.reads(key) or has_changed)
        )


def test_what_a_change_does_not_reach_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = write_text(tmp_path / "text.txt", chars=30_000)
    sets = ["data.source=file", f"data.location={text}", "outer.momentum=0.5", "training.beta1=0.8"]
    sets += ["limits.heldout_sequences=4", "data.heldout_frac=0.3"]
    given = [part for one in sets for part in ("--set", one)]
    assert compare(tmp_path, "dp", "decoupled-mean", "decoupled", "--seeds", "1", *given) == 0
    said = capsys.readouterr().out
    assert "--set outer.momentum changes nothing in: dp, decoupled-mean" in said
    assert "training.beta1" not in said


def test_the_trend_is_of_what_was_run(tmp_path, project, capsys):
    sizes = ("--project", str(project), "--seeds", "2")
    assert compare(tmp_path, "dp", "fedavg", "decoupled", *sizes) == 0
    out, plot = tmp_path / "trend.json", tmp_path / "trend.svg"
    capsys.readouterr()
    where = ["sim", "trend", str(tmp_path / "runs")]
    assert main([*where, "--only", "decoupled", "--json", str(out), "--plot", str(plot)]) == 0
    dp, decoupled = json.loads(out.read_text())
    assert (dp["algorithm"], decoupled["algorithm"]) == ("dp", "decoupled")
    assert (decoupled["steps"], decoupled["learners"], decoupled["seeds"]) == (4, 2, 2)
    assert decoupled["tokens"] == 2 * 4 * 2 * 16
    assert decoupled["parameters"] > 1000
    assert f"{100 * (decoupled['ratio_to_dp'] - 1):+.1f} ±" in capsys.readouterr().out
    assert "tokens per parameter" in plot.read_text()
    assert decoupled["merges"] == 4 / decoupled["local_steps"]
    assert main([*where, "--over", "merges", "--plot", str(plot)]) == 0
    assert "merges of each fragment" in plot.read_text()
    assert main(["sim", "trend", str(tmp_path)]) == 2
    assert "no folder of results" in capsys.readouterr().err


def test_rows_that_were_kept_as_csv_make_the_same_trend(tmp_path, project, capsys):
    """Trials, which the folder has too, are in neither."""
    sizes = ("--project", str(project), "--seeds", "1", "--tune", "2")
    rows = tmp_path / "rows.csv"
    assert compare(tmp_path, "dp", "decoupled", *sizes, "--csv", str(rows)) == 0
    capsys.readouterr()
    told = []
    for place in (tmp_path / "runs", rows):
        assert main(["sim", "trend", str(place)]) == 0
        told.append(capsys.readouterr().out)
    assert told[0] == told[1]
    assert "decoupled" in told[0]
    rows.write_text(rows.read_text().replace("decoupled,1,", "decoupled,one,"))
    assert main(["sim", "trend", str(rows)]) == 2
    assert "is no file that `shoal sim compare --csv` wrote" in capsys.readouterr().err


def test_a_run_that_takes_long_says_now_and_then_how_far_it_is():
    said: list[str] = []
    now_s = 0.0
    lines = Lines(2, clock=lambda: now_s, say=said.append)
    tell = lines.announce("dp, seed 1")
    tell(0.0)
    now_s = TELL_EVERY_S - 1.0
    tell(0.2)
    assert said == ["run 1 of 2: dp, seed 1"]
    now_s = TELL_EVERY_S
    tell(0.25)
    now_s += 1.0
    tell(0.26)
    assert said[1:] == ["  25 % after 10 min, about 30 min to go"]
    lines.announce("decoupled, seed 1")(0.5)
    assert said[2:] == ["run 2 of 2: decoupled, seed 1"]
