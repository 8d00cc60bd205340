"""What `shoal tui --serve` starts for a browser: the screen, though its output is no terminal."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

from tests.tui import recordings


def test_the_screen_runs_for_a_browser(tmp_path):
    recording = recordings.write(tmp_path / "recording", recordings.healthy(3))
    command = [sys.executable, "-m", "shoal", "tui", "--readonly", "--replay", str(recording)]
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={
            **os.environ,
            "SHOAL_HOME": str(tmp_path / "home"),
            "TEXTUAL_DRIVER": "textual.drivers.web_driver:WebDriver",
            "COLUMNS": "80",
            "ROWS": "24",
        },
    )
    limit = threading.Timer(30.0, process.kill)
    limit.start()
    try:
        assert process.stdout is not None
        told = b""
        while b"python-stdlib-8m" not in told:
            part = process.stdout.read1(65536)
            assert part, told
            told += part
        assert told.startswith(b"__GANGLION__\n"), "the server waits for this word"
    finally:
        limit.cancel()
        process.kill()
        process.communicate()
