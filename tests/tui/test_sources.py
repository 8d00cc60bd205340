"""Recordings on disk, and daemons that come, hang, die and come back."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from protocol.errors import TransientError, UserError
from protocol.status import SwarmSeen
from tests.support import recordings
from tui import once
from tui.frames.frame import Frame
from tui.frames.history import History
from tui.frames.scene import Scene
from tui.frames.verdict import judge
from tui.sources.live import Endpoint, LiveSource
from tui.sources.playback import PlaybackSource
from tui.sources.recording import Recording, RecordingSource, RecordingWriter
from tui.views import peers

SYNCER = Endpoint("syncer", "default", Path("syncer.sock"))
LEARNER = Endpoint("learner", "heron", Path("learner.sock"))


def test_a_recording_gives_back_what_was_written(tmp_path):
    frames = recordings.leader_silent()
    recording = Recording(recordings.write(tmp_path / "recording", frames))
    assert [recording.frame(i) for i in range(len(recording))] == frames


def test_a_recording_is_written_once_a_second_and_loses_no_event(tmp_path):
    path = tmp_path / "recording"
    with contextlib.closing(RecordingWriter(path)) as writer:
        for number, frame in enumerate(recordings.healthy(10)):
            frame.at_s = recordings.START_S + number / 2
            writer.write(frame)
    recording = Recording(path)
    assert len(recording) == 5
    events = [event.number for i in range(5) for event in recording.frame(i).events]
    assert events == list(range(1, 10))


@pytest.mark.parametrize("cut", [1, 8, 11, 12, 13, 500])
def test_a_torn_end_is_cut_and_the_recording_goes_on(tmp_path, cut):
    path = recordings.write(tmp_path / "recording", recordings.healthy(3))
    whole = path.read_bytes()
    last = Recording(path).offsets[-2]
    path.write_bytes(whole[: last + cut])
    assert len(Recording(path)) == 2
    with contextlib.closing(RecordingWriter(path)) as writer:
        writer.write(recordings.frame(7))
    recording = Recording(path)
    assert [recording.frame(i).at_s - recordings.START_S for i in range(len(recording))] == [
        0,
        1,
        7,
    ]


def test_damage_inside_is_refused_with_its_offset(tmp_path):
    path = recordings.write(tmp_path / "recording", recordings.healthy(3))
    start = Recording(path).offsets[1]
    content = bytearray(path.read_bytes())
    content[start + 52] ^= 1
    path.write_bytes(content)
    recording = Recording(path)
    recording.frame(0)
    with pytest.raises(UserError, match=rf"recording is damaged at offset {start}"):
        recording.frame(1)
    recording.frame(2)


@pytest.mark.parametrize("head", [b"\xff\xff\xff\xff", b"\x00\x00\x00\x09"])
def test_a_damaged_length_is_refused_with_its_offset(tmp_path, head):
    path = recordings.write(tmp_path / "recording", recordings.healthy(3))
    start = Recording(path).offsets[1]
    content = bytearray(path.read_bytes())
    content[start : start + 4] = head
    path.write_bytes(content)
    if head[0]:
        assert len(Recording(path)) == 1, "what goes beyond the end looks torn"
    else:
        with pytest.raises(UserError, match=rf"recording is damaged at offset {start}\."):
            Recording(path)


def test_a_damaged_frame_is_told_and_the_recording_plays_on(tmp_path):
    path = recordings.write(tmp_path / "recording", recordings.healthy(4))
    start = Recording(path).offsets[1]
    content = bytearray(path.read_bytes())
    content[start + 52] ^= 1
    path.write_bytes(content)

    async def run() -> list[Frame]:
        source = PlaybackSource(path)
        source.playback.is_playing = False
        seen = []
        frames = source.frames()
        async for frame in frames:
            seen.append(frame)
            if len(seen) == 3:
                await frames.aclose()
                break
            source.playback.step(1)
        return seen

    first, damaged, after = asyncio.run(run())
    assert "is damaged at offset" in damaged.notice
    assert damaged.statuses == first.statuses
    assert (after.notice, after.at_s) == ("", recordings.START_S + 2)


def test_opening_a_long_recording_decodes_nothing_and_faults_are_searched_meanwhile(
    tmp_path, monkeypatch
):
    frames = recordings.healthy(300)
    for place in (7, 250):
        frames[place].events += (recordings.told(9, 1.0, "SessionClosed", "lost", is_fault=True),)
    path = recordings.write(tmp_path / "recording", frames)
    monkeypatch.setattr("tui.sources.playback.SCAN_FIRST_S", 0.0)
    decoded = []
    decode = Recording.decode

    def counted(recording, number, wanted):
        decoded.append(wanted)
        return decode(recording, number, wanted)

    monkeypatch.setattr(Recording, "decode", counted)
    source = PlaybackSource(path)
    assert decoded == []
    assert source.playback.length_s == 299.0
    source.playback.seek(299)

    async def run() -> None:
        frames = source.frames()
        async for _ in frames:
            if source.playback.is_searched:
                await frames.aclose()
                return

    asyncio.run(run())
    assert source.playback.faults == [7, 250]
    assert decoded.count(Frame) == 2, "the last one, once more when the search was over"
    assert len(source.playback.history().events) == 302


def test_a_jump_reads_no_more_of_the_past_than_is_quick(tmp_path, monkeypatch):
    path = recordings.write(tmp_path / "recording", recordings.healthy(200))
    source = PlaybackSource(path)
    size = Recording(path).size(199)
    monkeypatch.setattr("tui.sources.playback.HISTORY_BYTES_MAX", size * 50)
    source.playback.seek(199)
    first = source.playback.history()
    assert 45 <= len(first.readings(recordings.key("syncer"))) <= 55
    source.playback.seek(198)
    assert len(source.playback.history().readings(recordings.key("syncer"))) > 60, (
        "what is kept helps"
    )


@pytest.mark.parametrize("content", [b"", b"x", b"# a text file\n" * 50, bytes(100)])
def test_a_file_that_is_no_recording_is_refused(tmp_path, content):
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"notes\.txt is no recording .*offset 0"):
        PlaybackSource(path)
    if content:
        with pytest.raises(UserError, match="is no recording"):
            RecordingWriter(path)
        assert path.read_bytes() == content


def test_a_recording_that_is_missing_or_empty_is_told(tmp_path):
    with pytest.raises(UserError, match="cannot be read"):
        PlaybackSource(tmp_path / "nowhere")
    RecordingWriter(tmp_path / "recording").close()
    with pytest.raises(UserError, match="no frame yet"):
        PlaybackSource(tmp_path / "recording")


class Machine:
    """Stand-in for the daemons of a machine."""

    def __init__(self) -> None:
        self.endpoints: list[Endpoint] = [SYNCER, LEARNER]
        self.silent: set[str] = set()
        self.hanging = threading.Event()
        self.pid = 4242
        self.told = 3
        self.swarm: dict[str, Any] = {}
        """What the learner has heard of its swarm."""
        self.calls: list[tuple[str, str, dict[str, Any]]] = []
        self.connected: list[str] = []

    def connect(self, path: Path) -> MachineConnection:
        self.connected.append(path.name)
        return MachineConnection(self, path)

    def answer(self, path: Path, verb: str, fields: dict[str, Any]) -> dict[str, Any]:
        self.calls.append((path.name, verb, fields))
        if path.name in self.silent:
            raise TransientError(f"No daemon answers at {path}.")
        if path == LEARNER.socket and self.hanging.is_set():
            self.hanging.clear()
            threading.Event().wait(3.0)
            raise TransientError("did not answer")
        if verb == "swarm":
            if not self.swarm:
                raise TransientError("not told yet")
            return self.swarm | {"status": None} if fields["seen"] == 1 else self.swarm
        if verb == "status":
            status = recordings.frame(5).statuses[path == LEARNER.socket]
            if path == SYNCER.socket:
                status.pid = self.pid
            return {"status": msgspec.to_builtins(status)}
        if verb == "events":
            if path == LEARNER.socket:
                raise UserError("there is no verb events")
            numbers = range(fields["since"] + 1, self.told + 1)
            events = [recordings.told(i, 1.0 * i, "Kind", f"{self.pid}:{i}") for i in numbers]
            rows = [{k: v for k, v in msgspec.to_builtins(e).items() if k != "daemon"}
                    for e in events]  # fmt: skip
            return {"events": rows, "last": self.told}
        return {}


class MachineConnection:
    """A connection to one of them, as `tui.sources.live` wants it."""

    def __init__(self, machine: Machine, path: Path) -> None:
        self.machine, self.path = machine, path

    def ask(self, verb: str, wanted: Any, timeout_s: float = 2.0, **fields: Any) -> Any:
        return msgspec.convert(self.machine.answer(self.path, verb, fields), wanted)

    def close(self) -> None:
        pass


def watch(machine: Machine, steps: list[Any], frames_max: int = 400) -> list[Frame]:
    """Follows the machine; each step is a condition to wait for and what happens then."""

    async def run() -> list[Frame]:
        source = LiveSource(lambda: machine.endpoints, machine.connect)
        seen: list[Frame] = []
        left = list(steps)
        frames = source.frames()
        async for frame in frames:
            seen.append(frame)
            if left and left[0][0](frame):
                left.pop(0)[1]()
            if not left:
                await frames.aclose()
                return seen
            assert len(seen) < frames_max, frame
        return seen

    return asyncio.run(run())


@pytest.fixture(autouse=True)
def _fast(monkeypatch):
    monkeypatch.setattr("tui.sources.live.PERIOD_S", 0.02)


def nothing() -> None:
    """The step was only waited for."""


def is_answered(frame: Frame) -> bool:
    return len(frame.daemons) == 2 and all(one.answered_s for one in frame.daemons)


def test_daemons_are_found_and_asked():
    frames = watch(Machine(), [(is_answered, nothing)])
    last = frames[-1]
    assert [one.label for one in last.daemons] == ["syncer default", "learner heron"]
    assert [status.name for status in last.statuses] == ["default", "heron"]
    texts = [event.text for frame in frames for event in frame.events]
    assert texts == ["4242:1", "4242:2", "4242:3"]
    assert {event.daemon for frame in frames for event in frame.events} == {"syncer default"}


def test_each_daemon_is_asked_over_one_connection():
    machine = Machine()

    def is_asked_often(frame):
        return sum(verb == "status" for _, verb, _ in machine.calls) > 10

    watch(machine, [(is_answered, nothing), (is_asked_often, nothing)])
    assert sorted(machine.connected) == ["learner.sock", "syncer.sock"]


def test_a_daemon_that_dies_keeps_its_last_status_and_is_tried_again():
    machine = Machine()

    def is_down(frame):
        return frame.daemons[0].trouble != ""

    frames = watch(
        machine,
        [
            (is_answered, lambda: machine.silent.add("syncer.sock")),
            (is_down, machine.silent.clear),
            (lambda frame: not frame.daemons[0].trouble, nothing),
        ],
    )
    down = next(
        frame for frame in frames if frame.daemons and is_answered(frame) and is_down(frame)
    )
    assert "No daemon answers at syncer.sock" in down.daemons[0].trouble
    assert down.statuses[0].key == recordings.key("syncer")
    assert down.daemons[0].silent_s(down.at_s) is not None
    assert frames[-1].daemons[0].silent_s(frames[-1].at_s) is None


def test_a_daemon_that_ends_in_good_order_is_said_to_have_ended():
    machine = Machine()

    def end():
        machine.silent.add("learner.sock")
        machine.endpoints.remove(LEARNER)

    frames = watch(machine, [(is_answered, end), (lambda f: f.daemons[1].has_ended, nothing)])
    scene = Scene(frame=frames[-1], history=History())
    assert "The learner heron ended 0 s ago." in judge(scene).sentence
    assert judge(scene).level == "WELL"


def test_events_of_a_restarted_daemon_begin_anew():
    machine = Machine()

    def restart():
        machine.pid, machine.told = 5000, 2

    frames = watch(
        machine,
        [
            (is_answered, restart),
            (lambda frame: any("5000:2" in event.text for event in frame.events), nothing),
        ],
    )
    texts = [event.text for frame in frames for event in frame.events]
    assert texts == ["4242:1", "4242:2", "4242:3", "5000:1", "5000:2"]


def test_a_daemon_that_hangs_does_not_hold_up_the_others():
    machine = Machine()

    def is_asked_on(frame):
        return len([call for call in machine.calls if call[0] == "syncer.sock"]) >= 12

    frames = watch(machine, [(is_answered, machine.hanging.set), (is_asked_on, nothing)])
    learner_calls = [call for call in machine.calls if call[0] == "learner.sock"]
    assert len(learner_calls) < 8
    assert frames[-1].daemons[0].trouble == ""


def test_no_daemon_is_told_and_looked_for():
    machine = Machine()
    machine.endpoints = []
    frames = watch(
        machine,
        [
            (lambda frame: "No daemon runs" in frame.trouble,
             lambda: machine.endpoints.append(SYNCER)),
            (lambda frame: bool(frame.statuses), nothing),
        ],
    )  # fmt: skip
    assert frames[-1].trouble == ""


def test_commands_go_to_the_daemon_that_is_named():
    machine = Machine()

    async def run() -> list[str]:
        source = LiveSource(lambda: machine.endpoints, machine.connect)
        async for frame in source.frames():
            if is_answered(frame):
                break
        said = await source.command("pause", "learner heron", seconds=900.0)
        with pytest.raises(UserError, match="No daemon called"):
            await source.command("pause", "learner wren")
        with pytest.raises(UserError, match="no command dance"):
            await source.command("dance", "learner heron")
        return [said]

    assert asyncio.run(run()) == ["learner heron pauses"]
    assert ("learner.sock", "pause", {"seconds": 900.0}) in machine.calls


def test_what_is_seen_is_recorded(tmp_path):
    machine = Machine()

    async def run() -> None:
        live = LiveSource(lambda: machine.endpoints, machine.connect)
        source = RecordingSource(live, tmp_path / "recording")
        async for frame in source.frames():
            if is_answered(frame):
                return

    asyncio.run(run())
    recording = Recording(tmp_path / "recording")
    assert len(recording) >= 1


def alone() -> Machine:
    """A volunteer's machine: a learner, which was told of the swarm a second ago."""
    machine = Machine()
    machine.endpoints = [LEARNER]
    led = recordings.frame(5).statuses[0]
    machine.swarm = msgspec.to_builtins(
        SwarmSeen(number=1, age_s=1.0, period_s=2.0, status=msgspec.structs.replace(led, pid=0))
    )
    return machine


def knows_leader(frame: Frame) -> bool:
    return Scene(frame=frame, history=History()).leader is not None


def test_a_volunteers_machine_shows_the_whole_swarm():
    machine = alone()
    asked = ("learner.sock", "swarm", {"seen": 1})
    frame = watch(machine, [(lambda _: asked in machine.calls, nothing), (knows_leader, nothing)])[
        -1
    ]
    assert [one.label for one in frame.daemons] == ["learner heron", "leading syncer"]
    now = Scene(frame=frame, history=History())
    assert now.node == now.told, "its own learner is what is looked at first"
    assert [line.peer.name for line in peers.peer_lines(now)] == list(recordings.NAMES)
    assert peers.empty_note(now) == ""
    assert judge(now).level == "WELL"
    assert "8 training" in once.text(frame, 120)


def test_old_news_of_the_swarm_are_marked_and_are_no_alarm_of_their_own():
    machine = alone()
    machine.swarm["age_s"] = 9.0
    frame = watch(machine, [(knows_leader, nothing)])[-1]
    now = Scene(frame=frame, history=History())
    assert now.stale(now.leader) == "From 9 s ago: leading syncer does not answer."
    assert judge(now).level == "WELL", "the learner itself hears its leader"


def test_beside_the_leader_a_learner_is_not_asked_for_the_swarm():
    machine = alone()
    machine.endpoints = [SYNCER, LEARNER]
    frames = watch(machine, [(is_answered, machine.calls.clear), (is_answered, nothing)])
    assert len(frames[-1].statuses) == 2
    assert "swarm" not in {verb for _, verb, _ in machine.calls}


def test_once_the_syncer_of_this_machine_is_silent_its_learner_is_asked():
    machine = alone()
    machine.endpoints = [SYNCER, LEARNER]
    other = msgspec.structs.replace(recordings.frame(5).statuses[0], key="ab" * 32, pid=0)
    machine.swarm["status"] = msgspec.to_builtins(other)
    frames = watch(
        machine,
        [
            (is_answered, lambda: machine.silent.add("syncer.sock")),
            (lambda frame: len(frame.daemons) == 3, nothing),
        ],
    )
    assert frames[-1].daemons[2].key == "ab" * 32


def test_one_screen_waits_for_what_a_learner_hears():
    machine = alone()
    swarm, machine.swarm = machine.swarm, {}
    source = LiveSource(lambda: machine.endpoints, machine.connect)
    threading.Timer(0.2, lambda: setattr(machine, "swarm", swarm)).start()
    assert knows_leader(once.frame_of(source))
