"""What is printed where the locale has few characters."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

import tui
from shoal.common import plain_terminal
from tui.text.plain import plain

TEXT = "café █░ … 3 · 4 → “x” \udcff\n"


@pytest.fixture
def stream(monkeypatch):
    def made(encoding):
        found = io.TextIOWrapper(io.BytesIO(), encoding=encoding, newline="")
        monkeypatch.setattr(sys, "stdout", found)
        plain_terminal.use_stand_ins()
        return found

    return made


@pytest.mark.parametrize(
    ("encoding", "seen"),
    [
        ("utf-8", "café █░ … 3 · 4 → “x” ?\n"),
        ("latin-1", 'café #. ~ 3 · 4 > "x" ?\n'),
        ("ascii", 'cafe #. ~ 3 - 4 > "x" ?\n'),
        ("cp437", 'café █░ ~ 3 · 4 > "x" ?\n'),
    ],
)
def test_a_character_that_is_not_there_has_the_nearest_one_in_its_place(stream, encoding, seen):
    out = stream(encoding)
    print(TEXT, end="")
    out.flush()
    assert out.buffer.getvalue().decode(encoding) == seen


@pytest.mark.parametrize(("encoding", "is_plain"), [("utf-8", False), ("latin-1", True)])
def test_screens_are_plain_where_their_characters_are_missing(stream, encoding, is_plain):
    stream(encoding)
    assert plain_terminal.is_plain() is is_plain


def test_what_was_read_wrongly_stays_an_error():
    plain_terminal.use_stand_ins()
    with pytest.raises(UnicodeDecodeError):
        b"\xff".decode("utf-8", plain_terminal.HANDLER)


def test_a_command_says_on_a_terminal_of_latin_1_what_is_wrong(tmp_path):
    shoal = [sys.executable, "-m", "shoal", "--home", str(tmp_path)]
    name = "█ …".encode()
    found = subprocess.run(
        [*shoal, "project", "sign", os.fsdecode(name)],
        env={**os.environ, "PYTHONIOENCODING": "latin-1:strict"},
        capture_output=True,
        check=False,
    )
    assert found.returncode == 2
    assert found.stderr.startswith(b"error: ")
    assert b"# ~" in found.stderr


def test_every_character_that_screens_are_drawn_with_has_a_stand_in():
    folder = Path(tui.__file__).parent
    used = {char for path in folder.rglob("*.py") for char in path.read_text()} - {"\u28ff"}
    lost = [char for char in sorted(used) if not char.isascii() and "?" in plain(char)]
    assert lost == []
