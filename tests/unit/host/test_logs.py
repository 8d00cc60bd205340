"""What a daemon says on the terminal, and what only its file has."""

from __future__ import annotations

import io
import logging
import shutil
from pathlib import Path

import msgspec
import pytest

from host.runtime import logs
from node.machine.syncer_link import Link
from protocol.trace import LinkChanged

CYCLE = [
    LinkChanged(Link.SEEKING.value, ""),
    LinkChanged(Link.CONNECTING.value, "ae64fe47"),
    LinkChanged(Link.GREETING.value, ""),
    LinkChanged(Link.WAITING.value, "the syncer is creating the first weights"),
]


@pytest.fixture
def told(tmp_path, monkeypatch):
    path, screen = tmp_path / "daemon.log", io.StringIO()
    monkeypatch.setattr("sys.stderr", screen)
    logs.set_up(path, is_json=False)

    def lines(*facts):
        screen.truncate(0)
        screen.seek(0)
        for fact in facts:
            logs.tell(fact)
        return [line[10:] for line in screen.getvalue().splitlines()]

    lines.path = path
    return lines


def test_a_link_that_is_tried_again_and_again_says_each_thing_once(told):
    assert len(told(*CYCLE)) == 4
    assert told(*CYCLE, *CYCLE) == []
    gone = LinkChanged(Link.WAITING.value, "nobody answers")
    assert told(*CYCLE[:2], gone, gone) == ["waiting to try again: nobody answers"]
    assert told(LinkChanged(Link.FOLLOWING.value, "")) == ["following the log"]
    assert len(told(*CYCLE)) == 4, "the link stood in between"


def test_the_file_has_all_of_it(told):
    told(*CYCLE, *CYCLE)
    kept = [msgspec.json.decode(line) for line in told.path.read_bytes().splitlines()]
    assert [line["fact"] for line in kept] == ["LinkChanged"] * 8


def kept(path):
    return [msgspec.json.decode(line)["text"] for line in path.read_bytes().splitlines()]


@pytest.mark.parametrize("remove", [Path.unlink, lambda path: shutil.rmtree(path.parent)])
def test_a_file_that_somebody_removed_is_made_again(told, remove):
    told(CYCLE[0])
    remove(told.path)
    assert told(CYCLE[1], CYCLE[2])
    assert kept(told.path) == [CYCLE[1].text, CYCLE[2].text]


def test_the_file_is_rotated_when_it_is_long(told, monkeypatch):
    monkeypatch.setattr(logging.getLogger("shoal").handlers[0], "maxBytes", 300)
    told(*CYCLE, *CYCLE)
    assert len(kept(told.path)) < 8
    assert len(kept(told.path)) + len(kept(told.path.with_name("daemon.log.1"))) >= 4


def test_a_full_disk_costs_the_files_lines_and_says_nothing_on_the_terminal(told):
    told.path.unlink()
    told.path.symlink_to("/dev/full")
    assert told(CYCLE[0]) == ["looking for the syncer"]
    told.path.unlink()
    told(CYCLE[1])
    assert kept(told.path) == [CYCLE[1].text]
