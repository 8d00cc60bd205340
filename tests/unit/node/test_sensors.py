"""Sensors: what devices of each kind tell, what is absent, and when the owner was last there."""

from __future__ import annotations

import contextlib
import math
import os
from types import SimpleNamespace

import psutil
import pytest

from node.governor import sensors
from node.governor.accelerators import Amd, DeviceReading, Nvidia
from node.governor.disk_usage import tree_bytes
from node.governor.owner_input import OwnerInput, look
from node.governor.process_usage import SHARES_EVERY_S, OwnProcesses
from node.governor.sensors import Seldom, Sensors


class NVMLError(Exception):
    pass


class Driver:
    """Two cards, the second of which tells no heat; NVIDIA's names for its own functions."""

    NVML_TEMPERATURE_GPU = 0
    NVMLError = NVMLError

    def nvmlInit(self):
        pass

    def nvmlDeviceGetCount(self):
        return 2

    def nvmlDeviceGetHandleByIndex(self, at):
        return at

    def nvmlDeviceGetMemoryInfo(self, handle):
        return SimpleNamespace(used=(handle + 1) << 30, total=8 << 30)

    def nvmlDeviceGetUtilizationRates(self, handle):
        return SimpleNamespace(gpu=40 + handle)

    def nvmlDeviceGetTemperature(self, handle, which):
        if handle == 1:
            raise NVMLError("Not Supported")
        return 71

    def nvmlDeviceGetName(self, handle):
        return f"Card {handle}".encode()


def test_nvidias_devices_say_what_they_can():
    first, second = Nvidia(Driver(), {}).read()
    assert first == DeviceReading(
        device="cuda:0",
        model="Card 0",
        temperature_c=71.0,
        busy_frac=0.4,
        memory_used_bytes=1 << 30,
        memory_bytes=8 << 30,
    )
    assert second.temperature_c is None
    assert second.busy_frac == 0.41


@pytest.mark.parametrize(
    ("visible", "models"),
    [
        ("1", ["Card 1"]),
        ("1,0", ["Card 1", "Card 0"]),
        ("", []),
        ("GPU-ab12", ["Card 0", "Card 1"]),
    ],
)
def test_cards_are_numbered_as_torch_numbers_them(visible, models):
    found = Nvidia(Driver(), {"CUDA_VISIBLE_DEVICES": visible}).read()
    assert [one.model for one in found] == models
    assert [one.device for one in found] == [f"cuda:{at}" for at in range(len(models))]


def test_a_driver_that_is_missing_is_named():
    class Absent(Driver):
        def nvmlInit(self):
            raise NVMLError("NVML Shared Library Not Found")

    absent = Nvidia(Absent(), {})
    assert (absent.read(), absent.absence) == ([], "NVIDIA: NVML Shared Library Not Found")


def test_amds_devices_are_read_from_the_kernel(tmp_path):
    card = tmp_path / "card1" / "device"
    (card / "hwmon" / "hwmon3").mkdir(parents=True)
    for name, text in (
        ("vendor", "0x1002"),
        ("gpu_busy_percent", "37"),
        ("mem_info_vram_used", "1024"),
        ("mem_info_vram_total", "4096"),
        ("hwmon/hwmon3/temp1_input", "66000"),
        ("hwmon/hwmon3/temp2_input", "81000"),
    ):
        (card / name).write_text(text + "\n")
    other = tmp_path / "card0" / "device"
    other.mkdir(parents=True)
    (other / "vendor").write_text("0x8086\n")
    assert Amd(tmp_path).read() == [
        DeviceReading(
            device="cuda:0",
            model="AMD",
            temperature_c=81.0,
            busy_frac=0.37,
            memory_used_bytes=1024,
            memory_bytes=4096,
        )
    ]
    assert "no device" in Amd(tmp_path / "none").absence


class Desktop:
    """A machine with these programs, sessions and screens."""

    def __init__(self, root, monkeypatch, *, answers=None, terminals=None, screen=""):
        self.root, self.answers = root, answers or {}
        users = []
        for name, ago_s in (terminals or {}).items():
            place = root / "dev" / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.touch()
            os.utime(place, (1000.0 - ago_s, 1000.0))
            users.append(SimpleNamespace(terminal=name))
        users.append(SimpleNamespace(terminal="pts/999"))  # Logged out a moment ago.
        users.append(SimpleNamespace(terminal=None))
        monkeypatch.setattr(psutil, "users", lambda: users)
        if screen:
            place = root / screen
            place.parent.mkdir(parents=True)
            place.touch()

    def look(self, **environ):
        return look(
            environ,
            run=lambda words: self.answers.get(words[0]),
            root=self.root,
            now_s=lambda: 1000.0,
        )


def test_the_owners_input_by_desktop_terminal_or_not_at_all(tmp_path, monkeypatch):
    def machine(name, **what):
        return Desktop(tmp_path / name, monkeypatch, **what)

    gnome = machine("a", answers={"gdbus": "(uint64 12500,)\n"}, terminals={"pts/1": 90.0})
    assert gnome.look(DBUS_SESSION_BUS_ADDRESS="x") == OwnerInput(12.5, "GNOME")
    x11 = machine("b", answers={"xprintidle": "3000\n"}, terminals={"pts/1": 1.0})
    assert x11.look(DISPLAY=":0") == OwnerInput(1.0, "X11")
    server = machine("c", terminals={"pts/1": 90.0, "tty2": 60.0})
    assert server.look() == OwnerInput(60.0, "terminals")
    assert machine("d").look() == OwnerInput(math.inf, "nobody is logged in")
    hidden = machine("e", terminals={"pts/1": 90.0}, screen="run/user/1000/wayland-0").look()
    assert hidden.idle_s is None
    assert "may not query" in hidden.way
    beside = machine("f", terminals={"pts/1": 0.5}, screen="tmp/.X11-unix/X0").look()
    assert beside == OwnerInput(0.5, "terminals")
    broken = machine("g", answers={"gdbus": "Error"}, screen="tmp/.X11-unix/X0")
    assert broken.look(DBUS_SESSION_BUS_ADDRESS="x").idle_s is None


def test_one_look_puts_everything_together(monkeypatch):
    battery = SimpleNamespace(power_plugged=False)
    chips = {
        "coretemp": [SimpleNamespace(current=50.0), SimpleNamespace(current=64.0)],
        "nvme": [SimpleNamespace(current=99.0)],
    }
    monkeypatch.setattr(psutil, "sensors_battery", lambda: battery, raising=False)
    monkeypatch.setattr(psutil, "sensors_temperatures", lambda: chips, raising=False)
    monkeypatch.setattr(sensors, "_programs", lambda: frozenset({"steam", "bash"}))
    now_s = [5.0]
    one = Sensors(
        nvidia=Nvidia(Driver(), {}),
        amd=Amd(),
        owner=lambda: OwnerInput(7.0, "X11"),
        clock=lambda: now_s[0],
    )
    cool = one.read(apps=["Steam", "zoom"], wants_owner=True, device="cpu").reading
    assert (cool.on_battery, cool.apps, cool.owner_idle_s) == (True, frozenset({"Steam"}), 7.0)
    assert (cool.temperature_c, cool.hottest) == (64.0, "the processor")
    now_s[0] = 7.0
    hot = one.read(wants_owner=True, device="cuda")
    assert (hot.reading.temperature_c, hot.reading.hottest) == (71.0, "cuda:0")
    assert hot.reading.owner_idle_s == 9.0  # Asked two seconds ago.
    assert not any("battery" in words for words in hot.absent)
    unasked = one.read()
    assert unasked.reading.owner_idle_s is None
    assert any("not asked" in words for words in unasked.absent)


def test_what_a_bare_machine_lacks_is_named(monkeypatch):
    monkeypatch.setattr(psutil, "sensors_battery", lambda: None, raising=False)
    monkeypatch.setattr(psutil, "sensors_temperatures", dict, raising=False)
    absent = " | ".join(Sensors(amd=Amd(), owner=lambda: OwnerInput(None, "no")).read().absent)
    for words in ("processor temperature", "battery", "owner's input"):
        assert words in absent


def test_processor_time_of_own_processes_only_grows():
    own = OwnProcesses()
    first = own.look(None)
    sum(range(2_000_000))
    second = own.look(None)
    assert second.cpu_s > first.cpu_s == 0.0
    assert second.memory_bytes > 1 << 20


def test_costly_questions_are_asked_seldom():
    asked, now_s = [], [0.0]
    seldom = Seldom(lambda: asked.append(1) or len(asked), 3.0, lambda: now_s[0])
    answers = []
    for at in (0.0, 2.9, 3.0, 5.0):
        now_s[0] = at
        answers.append(seldom.get())
    assert answers == [(1, 0.0), (1, 2.9), (2, 0.0), (2, 2.0)]


def test_files_below_folders_are_counted(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "file").write_bytes(b"x" * 10_000)
    (tmp_path / "a" / "loop").symlink_to(tmp_path / "a")
    counted = tree_bytes([tmp_path / "a", tmp_path / "none"])
    assert 8_192 <= counted <= 40_960


class Measured:
    """A process without children that takes what it is told."""

    pid, rss, asked = 1, 1000, 0

    def oneshot(self):
        return contextlib.nullcontext()

    def create_time(self):
        return 0.0

    def cpu_times(self):
        return SimpleNamespace(user=0.0, system=0.0)

    def children(self, recursive):
        return []

    def memory_info(self):
        return SimpleNamespace(rss=self.rss)

    def memory_full_info(self):
        self.asked += 1
        return SimpleNamespace(pss=600)


def test_memory_follows_what_a_process_takes_between_two_looks_at_shared_pages(monkeypatch):
    process, now_s = Measured(), [0.0]
    monkeypatch.setattr(psutil, "Process", lambda: process)
    own = OwnProcesses(lambda: now_s[0])
    assert own.look(None).memory_bytes == 600
    process.rss, now_s[0] = 1500, 1.0
    assert own.look(None).memory_bytes == 1100
    process.rss, now_s[0] = 300, 2.0  # It gave back more than was counted for it.
    assert own.look(None).memory_bytes == 0
    assert process.asked == 1
    now_s[0] = SHARES_EVERY_S
    assert own.look(None).memory_bytes == 600
    assert process.asked == 2
