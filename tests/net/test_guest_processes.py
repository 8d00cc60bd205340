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

from tests.net.swarms import TinySwarm, is_gone

pytestmark = [pytest.mark.net, pytest.mark.bare, pytest.mark.timeout(1200)]

MODEL = {
    "model__config__hidden_size": 64,
    "model__config__intermediate_size": 256,
    "model__config__num_hidden_layers": 2,
    "training__batch_sequences": 8,
    "rounds__quorum": 1,
}


class Owner:
    """The person at this machine."""

    def __init__(self, swarm):
        self.swarm = swarm
        self.settings = swarm.folder / "settings.toml"

    def decide(self, text=""):
        """Writes the settings file, whole at any moment."""
        new = self.settings.with_suffix(".new")
        new.write_text(text)
        os.replace(new, self.settings)

    def look(self):
        return self.swarm.learner()

    def until(self, is_so, what):
        return self.swarm.until(lambda: (now := self.look()) and is_so(now) and now, what)

    @property
    def pids(self):
        """The learner's processes: daemon, trainer, engine."""
        daemon = psutil.Process(self.swarm.running["learner"].pid)
        return [daemon, *daemon.children(recursive=True)]

    def cpu_s(self):
        total = 0.0
        for process in self.pids:
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                total += times.user + times.system
        return total

    def used_frac(self, seconds):
        """Processor time of the next seconds, as a share of all cores."""
        begun_s, begun_cpu_s = time.monotonic(), self.cpu_s()
        time.sleep(seconds)
        passed_s = time.monotonic() - begun_s
        return (self.cpu_s() - begun_cpu_s) / passed_s / os.cpu_count()

    def trains(self):
        """A status in which local steps go on."""
        first = self.until(lambda now: now.state == "training" and now.local_step, "training")
        return self.until(lambda now: now.local_step > first.local_step, "another local step")


@pytest.fixture(scope="module")
def owner(tmp_path_factory):
    with TinySwarm(tmp_path_factory.mktemp("guest")) as swarm:
        swarm.prepare(chars=400_000, **MODEL)
        one = Owner(swarm)
        one.decide()
        swarm.processes.environment["SHOAL_CONFIG"] = str(one.settings)
        swarm.begin()
        swarm.start_learner(threads=None)
        yield one


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


def test_processor_time_settles_below_its_ceiling_as_the_system_counts_it(owner):
    owner.trains()
    free = owner.used_frac(10.0)
    # A share of what it gets here: where others want the processor that is little to begin with.
    ceiling = max(0.03, 0.4 * free)
    owner.decide(f"[limits]\ncpu_percent = {100.0 * ceiling:.1f}\n")
    owner.until(lambda now: now.guest.duty_frac < 1.0, "a duty")
    # What others take changes, and the throttle follows the mean of the last ten seconds.
    owner.swarm.until(lambda: owner.used_frac(10.0) < 1.2 * ceiling, "as little processor time")
    assert owner.used_frac(5.0) > 0.1 * ceiling
    owner.decide()


def memory_bytes(owner):
    """Resident memory of the learner's processes, what they share counted once."""
    total = 0
    for process in owner.pids:
        with contextlib.suppress(psutil.Error):
            total += process.memory_full_info().pss
    return total


def test_a_pause_frees_the_trainers_memory_and_loses_nothing(owner):
    before = owner.trains()
    taken = memory_bytes(owner)
    owner.swarm.tell("learner", "pause")
    owner.swarm.until(lambda: is_gone(before.trainer_pid), "the trainer's end")
    paused = owner.until(lambda now: now.guest.is_suspended, "a suspended trainer")
    assert paused.trainer_pid is None
    assert paused.state == "paused"
    assert memory_bytes(owner) < 0.6 * taken
    time.sleep(3.0)
    later = owner.look()
    assert later.local_step == paused.local_step >= before.local_step
    assert later.lag == 0 or later.swarm.global_step > paused.swarm.global_step
    owner.swarm.tell("learner", "resume")
    back = owner.until(lambda now: now.local_step > paused.local_step, "the next local step")
    assert back.trainer_pid not in (None, before.trainer_pid)
    assert (back.lost_steps, back.trainer_restarts) == (0, 0)
    assert back.tokens > paused.tokens > 0
    assert back.loss < before.loss + 0.5


def test_a_memory_ceiling_that_is_too_low_stops_the_trainer_without_a_loss_and_says_so(owner):
    owner.trains()

    def measured(now):
        """Shared pages are counted again only every ten seconds, so its figure settles by then."""
        used = now.guest.limits[1].used
        return now.local_step and used == pytest.approx(memory_bytes(owner), rel=0.15)

    before = owner.until(measured, "a figure of memory that is the system's")
    taken = before.guest.limits[1].used
    owner.decide(f"[limits]\nram_bytes_max = {int(0.5 * taken)}\n")
    told = owner.until(lambda now: "limits.ram_bytes_max leaves it" in now.sentence, "a reason")
    assert told.local_step >= before.local_step
    assert told.lost_steps == 0
    owner.decide()
    after = owner.until(lambda now: now.local_step > told.local_step, "the next local step")
    assert (after.lost_steps, after.trainer_restarts) == (0, 0)
