"""The wheel as a newcomer installs it, in an empty environment: without extras, then with them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TRAINS_WITHIN_S = 600.0
DEMO_S = 10.0
INSTALL = ("install", "--quiet", "--no-compile")
"""Of all that comes along a test imports a small part, which is compiled when it is imported."""

pytestmark = [pytest.mark.net, pytest.mark.bare, pytest.mark.timeout(3600)]


def run(*command: object) -> str:
    """What the command printed; its failure is the test's, with all that it said."""
    done = subprocess.run([str(one) for one in command], capture_output=True, text=True, cwd="/")
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", folder, ROOT)
    (made,) = folder.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    """The programs of an environment that holds the wheel and what it needs, no extras."""
    place = tmp_path_factory.mktemp("venv")
    run(sys.executable, "-m", "venv", place)
    run(place / "bin" / "pip", *INSTALL, wheel)
    return place / "bin"


def environment() -> dict[str, str]:
    """Ours without what would let the checkout be imported in place of the wheel."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def shoal(programs: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(programs / "shoal"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment(), cwd="/")


def test_a_watcher_needs_no_extra_and_is_told_what_training_needs(installed):
    assert "join" in shoal(installed, "--help").stdout
    assert shoal(installed, "--version").stdout.startswith("shoal 0.1.0, wire protocol ")
    listed = run(installed / "pip", "list", "--format=freeze")
    for absent in ("datasets", "matplotlib", "transformers"):
        assert f"\n{absent}==" not in listed
    refused = shoal(installed, "join", "shoal:anything")
    assert refused.returncode == 2
    assert "pip install 'shoal-train[train]'" in refused.stderr


def test_with_its_extra_the_demo_trains(installed, wheel, tmp_path):
    run(installed / "pip", *INSTALL, f"{wheel}[train]")
    command = [str(installed / "shoal"), "--home", str(tmp_path), "demo"]
    demo = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment(), cwd="/")
    assert demo.stdout is not None
    told = []
    try:
        for line in demo.stdout:
            told.append(line)
            if "merge" in line:
                break
        assert told
        assert "merge" in told[-1], "".join(told)
        with pytest.raises(subprocess.TimeoutExpired):
            demo.wait(DEMO_S)  # It goes on by itself for ten seconds.
    finally:
        demo.send_signal(signal.SIGINT)
        rest, _ = demo.communicate(timeout=TRAINS_WITHIN_S)
    assert demo.returncode == 130, "".join(told) + rest
