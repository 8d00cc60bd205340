"""QR codes: each way of drawing one has the very modules of the code."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import subprocess
import sys

import pytest
import segno
from hypothesis import given
from hypothesis import strategies as st

from host import qr_code
from tests.support.daemon_double import LINK

TEXTS = st.text("ABCabc012-_:", min_size=1, max_size=600)


def modules(text: str, border: int) -> list[list[int]]:
    code = segno.make_qr(text, error="l", boost_error=False)
    return [[int(one) for one in row] for row in code.matrix_iter(border=border)]


@given(TEXTS)
def test_a_terminal_shows_every_module(text):
    wanted = modules(text, qr_code.BORDER)
    lines = qr_code.terminal_lines(text, 1000)
    rows = []
    for line in lines:
        plain = re.sub("\x1b\\[[0-9;]*m", "", line)
        rows.append([int(char in "▄ ") for char in plain])
        rows.append([int(char in "▀ ") for char in plain])
    assert rows[: len(wanted)] == wanted
    assert all(not any(row) for row in rows[len(wanted) :])


@given(TEXTS)
def test_an_svg_draws_every_module(text):
    wanted = modules(text, 4)
    drawn = qr_code.svg(text)
    (path,) = re.findall(r'stroke="#111" d="([^"]+)"', drawn)
    rows = [[0] * len(wanted) for _ in wanted]
    x = y = 0.0
    for kind, numbers in re.findall(r"([MmhH])([-\d. ]+)", path):
        values = [float(one) for one in re.findall(r"-?\d*\.?\d+", numbers)]
        if kind in "Mm":
            x, y = (values[0], values[1]) if kind == "M" else (x + values[0], y + values[1])
        else:
            for at in range(int(x), int(x + values[0])):
                rows[int(y)][at] = 1
            x += values[0]
    assert rows == wanted


def test_a_code_that_is_wider_than_the_terminal_is_left_out():
    lines = qr_code.terminal_lines(LINK, 80)
    assert lines
    assert {len(re.sub("\x1b\\[[0-9;]*m", "", line)) for line in lines} == {53}
    assert qr_code.terminal_lines(LINK, 52) == []


@pytest.mark.parametrize(("columns", "lines"), [("80", 27), ("40", 0)])
def test_it_is_printed_on_a_terminal_that_is_wide_enough(columns, lines):
    reader, writer = pty.openpty()
    program = f"from host import qr_code; print(qr_code.beside({LINK!r}))"
    environ = {**os.environ, "COLUMNS": columns}
    subprocess.run([sys.executable, "-c", program], stdout=writer, env=environ, check=True)
    os.close(writer)
    said = b""
    with contextlib.suppress(OSError):  # How the end of a terminal is told.
        while part := os.read(reader, 65536):
            said += part
    os.close(reader)
    assert said.decode().count("\x1b[97;40m") == lines


def test_in_a_pipe_there_is_none():
    program = f"from host import qr_code; print(qr_code.beside({LINK!r}), end='')"
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, check=True)
    assert done.stdout == b""


def test_an_svg_brings_no_style_and_no_script():
    drawn = qr_code.svg(LINK)
    assert drawn.startswith('<svg role="img" ')
    assert "style" not in drawn
    assert "script" not in drawn
    assert "<title>QR code of the join link</title>" in drawn


@pytest.mark.parametrize("chars", [1, 200, 2000])
def test_any_link_has_a_code(chars):
    assert qr_code.svg("shoal:" + "x" * chars)
