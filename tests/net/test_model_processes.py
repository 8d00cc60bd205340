"""Real processes on loopback: what comes out of a swarm that trains a published model."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import sys
import time

import pytest
import torch
import transformers

from tests.net.swarms import TinySwarm, shoal
from tests.support.base_folder import CHAT, SAMPLING, base_folder
from tests.support.hub_stand_in import hub
from tests.support.own_tasks import own_tasks

pytestmark = [pytest.mark.net, pytest.mark.timeout(900)]

NAME = "friends/ours"

WAIT_S = 600.0
"""Loading takes seconds of one core; a machine that does much else has given a hundredth of one."""


def best_step(swarm):
    """Global step of the measured checkpoint with the lowest loss; 0 without any."""
    now = swarm.syncer()
    curve = now.swarm.curve if now is not None else ()
    return min(curve, key=lambda point: point[2])[0] if curve else 0


def measured_step(swarm):
    """Global step of the newest measured checkpoint; 0 without any."""
    now = swarm.syncer()
    return now.swarm.curve[-1][0] if now is not None and now.swarm.curve else 0


@pytest.fixture(scope="module")
def swarm(tmp_path_factory):
    """A syncer and a learner in one home, with a measured checkpoint, and training on."""
    folder = tmp_path_factory.mktemp("model")
    base_folder(folder / "model")
    with TinySwarm(folder) as swarm:
        swarm.prepare(
            base=str(folder / "model"),
            data__tokenizer="base",
            training__learning_rate=0.001,
            outer__ema=0.9,
            guard__rule="off",  # It would pause for the noise of four held-out sequences.
        )
        swarm.begin()
        swarm.processes.environment |= {
            "SHOAL_LEARNER_SAMPLE_EVERY_S": "10",
            "SHOAL_LEARNER_SAMPLE_PROMPT": "the quiet",
        }
        swarm.start_learner("ada", "--duty", "0.3")  # The others have the cores.
        swarm.until(lambda: best_step(swarm), "a trained checkpoint that counts as best")
        yield swarm


def test_status_shows_what_the_model_writes_on_a_schedule(swarm):
    first = swarm.until(lambda: (now := swarm.learner("ada")) and now.sample, "a sample")
    later = swarm.until(
        lambda: (now := swarm.learner("ada")) and now.sample.at_s > first.at_s and now.sample,
        "a later sample",
    )
    assert later.prompt == "the quiet"
    assert later.global_step > first.global_step
    assert later.at_s - first.at_s >= 10.0
    # Of 272 tokens it draws the few that its text has, nearly always.
    known = sum(one in " \n" or "a" <= one <= "z" for one in later.text)
    assert known > 0.6 * len(later.text) > 0, later.text
    assert "“the quiet” → “" in " ".join(swarm.run("status").split())


def test_a_model_is_exported_described_and_published(swarm, tmp_path, monkeypatch):
    there = tmp_path / "there"
    there.mkdir()
    (there / "NOTES.md").write_text("mine")
    with hub(NAME, there) as served:
        monkeypatch.setenv("HF_ENDPOINT", served.endpoint)
        monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
        monkeypatch.setenv("HF_TOKEN", "hf_secret")
        out = tmp_path / "out"
        done = shoal(swarm.home, "export", "--to", str(out), "--push", NAME)
        assert done.returncode == 0, done.stderr
        assert done.stdout.endswith(f"published at {served.endpoint}/{NAME}\n")
    assert "weights as bf16" in done.stdout
    assert "measured by ada (" in done.stdout
    card = (out / "README.md").read_text()
    assert "| ada | `" in card
    assert swarm.project_id.hex() in card
    assert (out / "run.png").read_bytes().startswith(b"\x89PNG")
    assert {one.name for one in there.iterdir()} == {
        *(one.name for one in out.iterdir()),
        "NOTES.md",
    }
    model = transformers.AutoModelForCausalLM.from_pretrained(there)
    assert model.dtype == torch.bfloat16
    assert model.generation_config.temperature == SAMPLING["temperature"]
    assert transformers.AutoTokenizer.from_pretrained(there).chat_template == CHAT


def test_a_step_that_is_not_here_is_answered_with_those_that_are(swarm, tmp_path):
    swarm.run("project", "pause", str(swarm.project))  # Each merge may drop a checkpoint.

    def rests():
        now = swarm.syncer()
        return now and now.swarm.owner_paused_at_s is not None and not now.rounds

    swarm.until(rests, "a run that its owner paused")
    refused = shoal(swarm.home, "export", "--to", str(tmp_path / "none"), "--step", "999999")
    assert refused.returncode == 2
    assert "There is no checkpoint of global step 999,999" in refused.stderr
    steps = refused.stderr.rpartition("Choose one of: ")[2].strip().rstrip(".").split(", ")
    step = steps[len(steps) // 2].replace(",", "")
    out = tmp_path / "out"
    done = shoal(swarm.home, "export", "--to", str(out), "--step", step, "--dtype", "f16")
    swarm.run("project", "resume", str(swarm.project))
    assert done.returncode == 0, done.stderr
    assert f"it is of global step {int(step):,}," in done.stdout
    assert json.loads((out / "config.json").read_text())["dtype"] == "float16"


@pytest.mark.parametrize(("instance", "role"), [("default", "syncer"), ("ada", "learner")])
def test_one_prompt_is_continued_by_the_newest_weights_of_a_daemon(swarm, instance, role):
    before = swarm.syncer().swarm.global_step
    asked = ("--instance", instance, "--prompt", "the quiet ", "--tokens", "30")
    done = shoal(swarm.home, "try", "--text", *asked, "--temperature", "0")
    assert done.returncode == 0, done.stderr
    said, told = done.stdout, done.stderr.splitlines()[0]
    assert told.startswith("tiny, global step ")
    assert told.endswith(f"from the running {role}")
    assert int(told.split()[3].replace(",", "")) >= before
    # Of 272 tokens it learned to write the letters of the text, and nothing else.
    assert 0 < len(said) <= 31
    assert all(one in " \n" or "a" <= one <= "z" for one in said), said


def test_the_moving_average_is_exported_and_outlives_the_syncer(swarm, tmp_path):
    swarm.kill("syncer")
    swarm.start_syncer()
    step = swarm.until(swarm.syncer, "the syncer again").swarm.global_step
    swarm.until(lambda: measured_step(swarm) > step, "a newer checkpoint")
    for name, options in (("average", ("--ema",)), ("plain", ())):
        command = ("export", "--to", str(tmp_path / name), "--dtype", "f32")
        done = shoal(swarm.home, *command, "--checkpoint", "latest", *options)
        assert done.returncode == 0, done.stderr
        assert ("it is the moving average until there" in done.stdout) == (name == "average")
    average, plain, published = (
        transformers.AutoModelForCausalLM.from_pretrained(place, dtype=torch.float32)
        for place in (tmp_path / "average", tmp_path / "plain", swarm.folder / "model")
    )
    ids = torch.tensor([[257, *b"the quiet harbour at noon and herring drifts past the shoal"]])
    with torch.no_grad():
        losses = [
            float(model(input_ids=ids, labels=ids).loss) for model in (average, plain, published)
        ]
    assert losses[0] != losses[1]
    assert losses[0] < losses[2] - 1.0, "the average forgot the first weights"
    assert "the moving average of the versions" in (tmp_path / "average/README.md").read_text()


def test_a_checkpoint_is_scored_on_tasks_of_its_owner(swarm, tmp_path):
    pytest.importorskip("lm_eval")
    tasks, scores = own_tasks(tmp_path / "tasks"), tmp_path / "scores.json"
    done = shoal(swarm.home, "eval", "--tasks", str(tasks), "--json", str(scores))
    assert done.returncode == 0, done.stderr
    assert "measured by ada (" in done.stdout
    # It was trained on text of these words, and the others are none.
    assert json.loads(scores.read_text())["results"]["own_words"]["acc,none"] == 1.0


class Terminal:
    """`shoal try` in a pseudo terminal, as somebody sits at it."""

    def __init__(self, swarm, *options):
        self._own, other = pty.openpty()
        command = [sys.executable, "-m", "shoal", "--home", str(swarm.home.root), "try", *options]
        self.process = subprocess.Popen(command, stdin=other, stdout=other, stderr=other)
        os.close(other)
        self.began_s = time.monotonic()
        self.seen = ""

    def until(self, wanted, what):
        """What was printed up to and with `wanted`; everything behind it is still to come."""
        ends_s = time.monotonic() + WAIT_S
        while wanted not in self.seen:
            ready, _, _ = select.select([self._own], [], [], 1.0)
            try:
                piece = os.read(self._own, 4096).decode(errors="replace") if ready else ""
            except OSError:
                piece = ""  # The other side has closed it: it has ended.
            self.seen += piece
            code = self.process.poll()
            is_over = code is not None and not piece
            if is_over or time.monotonic() > ends_s:
                waited_s = time.monotonic() - self.began_s
                why = f"it ended with {code}" if is_over else f"{waited_s:.0f} s after its start"
                load = ", ".join(f"{one:.1f}" for one in os.getloadavg())
                pytest.fail(
                    f"no {what}: {why}, at a load of {load} on {os.cpu_count()} cores; it had "
                    f"printed: {self.seen!r}"
                )
        found, _, self.seen = self.seen.partition(wanted)
        return found + wanted

    def write(self, text):
        os.write(self._own, text.encode())

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._own)


def test_somebody_chats_in_a_terminal_and_takes_newer_weights(swarm):
    terminal = Terminal(swarm, "--tokens", "8", "--seed", "1")
    try:
        first = terminal.until("> ", "prompt")
        assert "It answers what you write." in first
        step = int(first.partition("global step ")[2].split()[0].replace(",", ""))
        swarm.until(lambda: swarm.syncer().swarm.global_step > step, "a newer version")
        terminal.write("hello\n")
        terminal.until("\n> ", "answer and prompt")
        terminal.write("/new\n")
        again = terminal.until("\n> ", "newer weights and prompt")
        assert int(again.partition("global step ")[2].split()[0].replace(",", "")) > step
        terminal.write("/quit\n")
        assert terminal.process.wait(WAIT_S) == 0
    finally:
        terminal.close()
    assert "Traceback" not in terminal.seen


def test_without_a_daemon_the_newest_checkpoint_on_the_disk_is_taken(swarm):
    swarm.tell("syncer", "stop")
    assert swarm.ended("syncer") == 0
    asked = ("--instance", "default", "--prompt", "the", "--tokens", "4", "--text")
    done = shoal(swarm.home, "try", *asked)
    assert done.returncode == 0, done.stderr
    assert "from a checkpoint on this disk" in done.stderr
