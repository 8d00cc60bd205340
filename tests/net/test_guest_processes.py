"""A learner of real processes on a machine whose owner changes their mind, looked at from outside.

A syncer and one learner train a Llama of 160 000 parameters; the test is the owner: it writes the
settings file, pauses and resumes, and measures with the system's own counters.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time

import psutil
import pytest

from host.control import client
from host.files.home import Home
from shoal.project import file_commands
from shoal.project.template import create_text
from tests.net.test_swarm_processes import (
    CHANGES,
    Processes,
    free_port,
    is_gone,
    start_syncer,
    status,
    until,
)
from tests.support.tiny_project import write_text

pytestmark = [pytest.mark.net, pytest.mark.timeout(400)]

MODEL = {
    **CHANGES,
    "model.config.hidden_size": 64,
    "model.config.intermediate_size": 256,
    "model.config.num_hidden_layers": 2,
    "training.batch_sequences": 8,
    "rounds.quorum": 1,
}


class Owner:
    """The person at this machine."""

    def __init__(self, folder, home, processes):
        self.folder, self.home, self.processes = folder, home, processes
        self.settings = folder / "settings.toml"

    def decide(self, text=""):
        """Writes the settings file, whole at any moment."""
        new = self.settings.with_suffix(".new")
        new.write_text(text)
        os.replace(new, self.settings)

    def look(self):
        self.processes.check("syncer", "learner")
        return status(self.home, "learner")

    def until(self, is_so, what, timeout_s=120.0):
        return until(
            lambda: (now := self.look()) and is_so(now) and now, timeout_s=timeout_s, what=what
        )

    @property
    def pids(self):
        """The learner's processes: daemon, trainer, engine."""
        daemon = psutil.Process(self.processes.running["learner"].pid)
        return [daemon, *daemon.children(recursive=True)]

    def cpu_s(self):
        total = 0.0
        for process in self.pids:
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                total += times.user + times.system
        return total

    def trains(self):
        """A status in which local steps go on."""
        first = self.until(lambda now: now.state == "training" and now.local_step, "training")
        return self.until(lambda now: now.local_step > first.local_step, "another local step")


@pytest.fixture(scope="module")
def owner(tmp_path_factory):
    folder = tmp_path_factory.mktemp("guest")
    home = Home(folder / "home")
    write_text(folder / "text.txt", chars=400_000)
    changes = {**MODEL, "data.location": str(folder / "text.txt"), "limits.tokens": 10**9}
    path = folder / "tiny.toml"
    path.write_text(create_text("tiny", changes=changes))
    file_commands.sign(path, home, instance="default")
    processes = Processes(folder, home)
    one = Owner(folder, home, processes)
    one.decide()
    kept, os.environ["SHOAL_CONFIG"] = os.environ["SHOAL_CONFIG"], str(one.settings)
    try:
        start_syncer(processes, path, free_port())
        ready = until(
            lambda: (s := status(home, "syncer")) and s.phase == "training" and s.join_link and s,
            timeout_s=60,
            what="a syncer with weights",
        )
        processes.start(
            "learner",
            *("join", ready.join_link, "--listen", "127.0.0.1", "--device", "cpu"),
        )
        yield one
    finally:
        os.environ["SHOAL_CONFIG"] = kept
        processes.clean_up()


def test_hours_pause_and_open_without_a_restart(owner):
    owner.trains()
    day = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")[(time.localtime().tm_wday + 2) % 7]
    owner.decide(f"[when]\nhours = ['{day}']\n")
    paused = owner.until(lambda now: now.state == "paused", "a pause outside the hours")
    assert "Paused because it is outside its hours, until" in paused.sentence
    assert paused.guest.is_held
    assert paused.guest.hours == [day]
    owner.decide()
    owner.trains()


def test_a_program_of_its_owner_pauses_it(owner):
    owner.trains()
    owner.decide("[when]\nbusy_programs = ['sleep']\n")
    program = subprocess.Popen(["sleep", "600"])
    try:
        paused = owner.until(lambda now: now.state == "paused", "a pause for the program")
        assert "Paused because sleep runs" in paused.sentence
    finally:
        program.kill()
        program.wait()
        owner.decide()
    owner.trains()


def test_settings_that_cannot_be_read_leave_the_former_in_force(owner):
    owner.decide("[when]\nmode = 'sometimes'\n")
    seen = owner.until(lambda now: any("sometimes" in one for one in now.notices), "a notice")
    assert seen.guest.because == ""
    owner.decide()
    owner.trains()


def test_processor_time_stays_below_its_ceiling_as_the_system_counts_it(owner):
    owner.trains()
    cores = os.cpu_count()
    percent = 20.0
    owner.decide(f"[limits]\ncpu_percent = {percent}\n")
    owner.until(lambda now: now.guest.duty_frac < 1.0, "a duty")
    time.sleep(12.0)
    begun_s, begun_cpu_s = time.monotonic(), owner.cpu_s()
    time.sleep(15.0)
    used = (owner.cpu_s() - begun_cpu_s) / (time.monotonic() - begun_s) / cores
    owner.decide()
    assert 0.3 * percent < 100.0 * used < 1.2 * percent


def memory_bytes(owner):
    """Resident memory of the learner's processes, what they share counted once."""
    total = 0
    for process in owner.pids:
        with contextlib.suppress(psutil.Error):
            total += process.memory_full_info().pss
    return total


def test_a_pause_frees_the_trainers_memory_within_two_seconds_and_loses_nothing(owner):
    before = owner.trains()
    taken = memory_bytes(owner)
    asked_s = time.monotonic()
    client.call(owner.home.socket("learner"), "pause")
    until(lambda: is_gone(before.trainer_pid), timeout_s=5.0, what="the trainer's end")
    suspended_s = time.monotonic() - asked_s
    assert suspended_s < 2.0
    paused = owner.until(lambda now: now.guest.is_suspended, "a suspended trainer")
    assert paused.trainer_pid is None
    assert paused.state == "paused"
    assert memory_bytes(owner) < 0.6 * taken
    time.sleep(3.0)
    later = owner.look()
    assert later.local_step == paused.local_step >= before.local_step
    assert later.lag == 0 or later.swarm.global_step > paused.swarm.global_step
    client.call(owner.home.socket("learner"), "resume")
    back = owner.until(lambda now: now.local_step > paused.local_step, "the next local step")
    assert back.trainer_pid not in (None, before.trainer_pid)
    assert (back.lost_steps, back.trainer_restarts) == (0, 0)
    assert back.tokens > paused.tokens > 0
    assert back.loss < before.loss + 0.5


def test_a_memory_ceiling_that_is_too_low_stops_the_trainer_without_a_loss_and_says_so(owner):
    owner.trains()
    time.sleep(5.0)  # It takes what it takes only after some steps.
    before = owner.trains()
    taken = before.guest.limits[1].used
    assert taken == pytest.approx(memory_bytes(owner), rel=0.15)
    owner.decide(f"[limits]\nram_bytes_max = {int(0.5 * taken)}\n")
    told = owner.until(
        lambda now: "limits.ram_bytes_max leaves it" in now.sentence, "a reason", timeout_s=90.0
    )
    assert told.local_step >= before.local_step
    assert told.lost_steps == 0
    owner.decide()
    after = owner.until(
        lambda now: now.local_step > told.local_step, "the next local step", timeout_s=120.0
    )
    assert (after.lost_steps, after.trainer_restarts) == (0, 0)
