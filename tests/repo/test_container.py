"""The image's recipe says what the documents promise of it, and can be built of what is here."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from shoal.__main__ import PACKAGES
from shoal.common.choices import MONITOR_VARIABLE

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "deploy" / "Dockerfile"


def instructions():
    """Each instruction with what stands behind it, continued lines joined, by stage."""
    lines = [line for line in RECIPE.read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    stages = []
    for line in filter(str.strip, joined.splitlines()):
        word, _, rest = line.strip().partition(" ")
        if word == "FROM":
            stages.append([])
        if stages:
            stages[-1].append((word, rest.strip()))
    return stages


def of(stage, word):
    return [rest for name, rest in stage if name == word]


FINAL = instructions()[-1]


def variables():
    return dict(word.split("=", 1) for rest in of(FINAL, "ENV") for word in shlex.split(rest))


def test_it_runs_as_nobody_that_matters_by_number():
    (user,) = of(FINAL, "USER")
    assert re.fullmatch(r"[1-9]\d+:[1-9]\d+", user)
    names = [word for word, _ in FINAL]
    assert names.index("USER") < names.index("ENTRYPOINT")
    assert all(name not in ("RUN", "COPY", "ADD") for name in names[names.index("USER") :])


def test_what_it_keeps_is_in_a_volume():
    assert of(FINAL, "VOLUME") == [variables()["SHOAL_HOME"]]


def test_everything_that_it_copies_is_here_and_nothing_of_ours_is_missing():
    copied = {
        source
        for stage in instructions()
        for rest in of(stage, "COPY")
        if not rest.startswith("--from=")
        for source in rest.split()[:-1]
    }
    assert all((ROOT / source).exists() for source in copied)
    assert set(PACKAGES) <= copied
    sent = (ROOT / ".dockerignore").read_text().split()
    assert sent[0] == "*", "nothing but what is named goes into the build"
    assert {f"!{source}" for source in copied} <= set(sent)


def test_it_brings_the_cpu_build_of_torch_unless_told_otherwise():
    text = RECIPE.read_text()
    assert re.search(r"^ARG TORCH_INDEX=https://download\.pytorch\.org/whl/cpu$", text, re.M)
    (bound,) = re.findall(r"'(torch>=[^']+)'", text)
    assert f'"{bound}"' in (ROOT / "pyproject.toml").read_text()


def test_nothing_is_fetched_past_a_package_manager():
    for stage in instructions():
        assert not of(stage, "ADD")
        assert not [rest for rest in of(stage, "RUN") if re.search(r"\b(curl|wget)\b", rest)]


class Healthy(BaseHTTPRequestHandler):
    code = 200

    def do_GET(self):
        self.send_response(self.code if self.path == "/healthz" else 404)
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.mark.parametrize(("code", "status", "ended"), [(200, 1, 0), (503, 1, 1), (503, 0, 0)])
def test_its_health_is_that_of_the_health_address_else_of_the_status(code, status, ended, tmp_path):
    (check,) = of(FINAL, "HEALTHCHECK")
    command = json.loads(check.partition("CMD ")[2])
    port = variables()[MONITOR_VARIABLE]
    assert f"127.0.0.1:{port}/" in command[2]
    handler = type("Handler", (Healthy,), {"code": code})
    server = HTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    (tmp_path / "shoal").write_text(f"#!/bin/sh\nexit {status}\n")
    (tmp_path / "python3").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    for name in ("shoal", "python3"):
        (tmp_path / name).chmod(0o755)
    command[2] = command[2].replace(f":{port}/", f":{server.server_port}/")
    try:
        environment = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
        done = subprocess.run(command, env=environment, check=False, timeout=60)
    finally:
        server.shutdown()
    assert done.returncode == ended
