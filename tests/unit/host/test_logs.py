"""What a daemon says on the terminal, and what only its file has."""

from __future__ import annotations

import io

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
