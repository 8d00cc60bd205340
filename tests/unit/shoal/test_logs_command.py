"""What daemons write, and `shoal logs`: order, rotation, following, levels."""

from __future__ import annotations

import json
import logging
import os
import threading

import pytest

from host.files.home import Home
from host.runtime import logs
from host.runtime.log_lines import LogLine, parse
from protocol.errors import TransientError
from shoal.machine import logs_command
from shoal.machine.logs_command import LogTail, LogView


@pytest.fixture
def home(tmp_path) -> Home:
    return Home(tmp_path / "home")


@pytest.fixture
def shoal_log():
    """Shoal's logger, with whatever handlers the test gives it, taken off again."""
    logger = logging.getLogger("shoal")
    former, level = list(logger.handlers), logger.level
    logger.handlers = []
    yield logger
    for handler in logger.handlers:
        handler.close()
    logger.handlers, logger.propagate = former, True
    logger.setLevel(level)


def line(at: float, text: str, level: str = "info") -> bytes:
    return json.dumps({"at": at, "level": level, "from": "x", "text": text}).encode() + b"\n"


def show(home, **changes) -> int:
    return logs_command.show(home=home, **{"json": False, **changes})


def texts(capsys) -> list[str]:
    """What was printed, without clock and dates."""
    printed = capsys.readouterr().out.splitlines()
    return [one.split("  ", 1)[1] for one in printed if not one.startswith("--")]


def test_stderr_gets_json_where_it_is_no_terminal(home, shoal_log, capsys):
    logs.set_up(home.log("learner"), is_json=None)
    shoal_log.info("hello")
    said = parse(capsys.readouterr().err.encode())
    assert said is not None
    assert said.text == "hello"


def test_the_file_is_json_whatever_stderr_gets(home, shoal_log, capsys):
    logs.set_up(home.log("learner"), is_json=False)
    shoal_log.warning("careful")
    assert capsys.readouterr().err.endswith("  warning: careful\n")
    kept = parse(home.log("learner").read_bytes())
    assert kept is not None
    assert (kept.level, kept.text) == ("warning", "careful")


def test_a_trace_survives_the_way_through_the_file(home, shoal_log, capsys):
    logs.set_up(home.log("learner"), is_json=False)
    try:
        raise ValueError("boom")
    except ValueError:
        shoal_log.exception("it failed")
    show(home)
    assert "ValueError: boom" in capsys.readouterr().out


def test_what_strangers_say_moves_no_cursor_in_log_terminal_or_command(home, shoal_log, capsys):
    evil = "\x1b[2J\x1b]0;owned\x07 \x9b31m \u202egood\r\n12:00:00  all is well"
    logs.set_up(home.log("learner"), is_json=False)
    shoal_log.warning("learner %s left: %s", evil, evil)
    shoal_log.handlers[0].flush()
    kept = home.log("learner").read_text()
    home.log("learner", "older").write_bytes(line(1.0, evil))
    show(home)
    shown = capsys.readouterr()
    for text in (kept, shown.err, shown.out):
        assert all(char.isprintable() or char == "\n" for char in text)
        assert "owned" in text
        assert "\n12:00:00" not in text


def test_several_daemons_are_shown_in_order_of_time(home, capsys):
    home.log("learner").write_bytes(line(1.0, "first") + line(3.0, "third"))
    home.log("syncer").write_bytes(line(2.0, "second"))
    show(home)
    assert texts(capsys) == [
        "learner default  first",
        "syncer default  second",
        "learner default  third",
    ]


def test_one_daemon_alone_is_not_named(home, capsys):
    home.log("learner").write_bytes(line(1.0, "first"))
    home.log("syncer").write_bytes(line(2.0, "second"))
    show(home, role="syncer")
    assert texts(capsys) == ["second"]


def test_the_newest_lines_reach_back_into_older_files(home, capsys):
    place = home.log("learner")
    place.with_name(place.name + ".2").write_bytes(line(1.0, "oldest") + line(2.0, "older"))
    place.with_name(place.name + ".1").write_bytes(line(3.0, "old"))
    place.write_bytes(line(4.0, "new"))
    show(home, lines=3)
    assert texts(capsys) == ["older", "old", "new"]


def test_quiet_lines_are_left_out_unless_asked_for(home, capsys):
    home.log("learner").write_bytes(line(1.0, "hum", "debug") + line(2.0, "alas", "error"))
    show(home)
    assert texts(capsys) == ["error: alas"]
    show(home, level="debug")
    assert texts(capsys) == ["hum", "error: alas"]


def test_what_is_not_ours_is_passed_over(home, capsys):
    home.log("learner").write_bytes(b"\xff garbage\n" + line(1.0, "sound"))
    show(home)
    assert texts(capsys) == ["sound"]


def test_json_is_passed_on_as_it_was_written(home, capsys):
    home.log("learner").write_bytes(line(1.0, "sound"))
    show(home, json=True)
    assert json.loads(capsys.readouterr().out)["text"] == "sound"


def test_no_log_is_said_with_the_place(home):
    with pytest.raises(TransientError, match="No witness has written a log in"):
        show(home, role="witness")


def test_a_rotated_file_is_read_to_its_end_and_then_the_new_one(home):
    place = home.log("learner")
    place.write_bytes(line(1.0, "one"))
    tail = LogTail("learner default", place)
    assert [one.line.text for one in tail.read()] == ["one"]
    with place.open("ab") as old:
        old.write(line(2.0, "two"))
    place.rename(place.with_name(place.name + ".1"))
    place.write_bytes(line(3.0, "three"))
    assert [one.line.text for one in tail.read()] == ["two", "three"]
    tail.close()


def test_half_a_line_waits_for_its_end(home):
    place = home.log("learner")
    place.write_bytes(line(1.0, "whole")[:-5])
    tail = LogTail("learner default", place)
    assert list(tail.read()) == []
    with place.open("ab") as more:
        more.write(line(1.0, "whole")[-5:])
    assert [one.line.text for one in tail.read()] == ["whole"]
    tail.close()


def test_following_shows_what_comes_and_who_comes(home, capsys, monkeypatch):
    home.log("learner").write_bytes(line(1.0, "before"))
    looks = iter(range(3))

    def pass_time(seconds: float) -> None:
        match next(looks):
            case 0:
                with home.log("learner").open("ab") as more:
                    more.write(line(2.0, "during"))
            case 1:
                home.log("syncer").write_bytes(line(3.0, "a syncer"))
            case _:
                raise KeyboardInterrupt

    monkeypatch.setattr(logs_command.time, "sleep", pass_time)
    assert show(home, follow=True) == 0
    assert texts(capsys) == ["before", "during", "syncer default  a syncer"]


def test_a_new_day_is_said_once(capsys):
    view = LogView()
    found = [
        logs_command.Found(LogLine(at=at, level="info", source="x", text=text), b"", "learner a")
        for at, text in ((1_700_000_000.0, "a"), (1_700_000_001.0, "b"), (1_700_200_000.0, "c"))
    ]
    view.show(found)
    assert sum(one.startswith("-- 20") for one in capsys.readouterr().out.splitlines()) == 2


def test_reading_while_a_daemon_rotates_loses_nothing(home, shoal_log, monkeypatch):
    """The real handler writes and rotates on another thread meanwhile."""
    monkeypatch.setattr(logs, "FILE_BYTES_MAX", 20_000)
    logs.set_up(home.log("learner"), is_json=True)
    shoal_log.removeHandler(shoal_log.handlers[1])
    tail, seen = LogTail("learner default", home.log("learner")), []

    def write() -> None:
        for number in range(600):
            shoal_log.info("%d", number)
            os.sched_yield()

    writer = threading.Thread(target=write)
    writer.start()
    while writer.is_alive():
        seen += [int(one.line.text) for one in tail.read()]
    seen += [int(one.line.text) for one in tail.read()]
    writer.join()
    tail.close()
    assert seen == sorted(seen)
    assert len(seen) > 300
