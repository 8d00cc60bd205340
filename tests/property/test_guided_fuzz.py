"""A short run of the fuzzer that coverage guides, over all that is decoded of what others send."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.remote_input import DECODERS

pytest.importorskip("atheris", reason="atheris has no wheel for this machine")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def run(folder, *words):
    return subprocess.run(
        [sys.executable, "-m", "tests.support.guided_fuzz", "--found", str(folder), *words],
        capture_output=True,
        text=True,
    )


def test_inputs_that_reach_new_code_are_decoded_or_refused(tmp_path):
    done = run(tmp_path, "--seconds", "2", "--runs", "3000")
    assert done.returncode == 0, done.stdout + done.stderr[-8000:]
    assert done.stdout.splitlines() == [f"{name}: sound" for name in DECODERS]
    assert not list(tmp_path.iterdir())


def test_a_decoder_that_fails_is_named_and_the_bytes_are_kept(tmp_path):
    done = run(tmp_path, "--seconds", "60", "--plant", "link")
    assert done.returncode == 1, done.stdout + done.stderr[-8000:]
    assert "planted" in done.stdout
    assert done.stdout.splitlines()[-1] == "link: FAILED"
    (found,) = tmp_path.iterdir()
    assert found.read_bytes()[:3] == b"sho"
