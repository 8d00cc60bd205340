"""A repository of the Hugging Face hub, over HTTP on loopback: served from a folder, or filled.

Its files are served as those of a model and of a data set alike.

What is uploaded goes the way of plain HTTP: set HF_HUB_DISABLE_XET, for another protocol of the hub
needs a storage service of its own.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

from host.runtime.python_path import python_path

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class _Handler(BaseHTTPRequestHandler):
    server: HubStandIn

    def do_HEAD(self) -> None:
        self._answer(is_head=True)

    def do_GET(self) -> None:
        self._answer(is_head=False)

    def do_POST(self) -> None:
        path = unquote(urlsplit(self.path).path).strip("/")
        body = self._body()
        self.server.asked.append(path)
        self.server.tokens.add(self.headers.get("Authorization", ""))
        status, answer = self.server.take(path, body)
        self._send(status, json.dumps(answer).encode())

    def do_PUT(self) -> None:
        oid = unquote(urlsplit(self.path).path).rpartition("/")[2]
        content = self._body()
        is_it = hashlib.sha256(content).hexdigest() == oid
        if is_it:
            self.server.stored[oid] = content
        self._send(200 if is_it else 400, b"")

    def _body(self) -> bytes:
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length", "0")))

    def _send(self, status: int, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(content)

    def _answer(self, *, is_head: bool) -> None:
        path = unquote(urlsplit(self.path).path).strip("/")
        self.server.asked.append(path)
        content = self.server.content_of(path)
        self.send_response(200 if content is not None else 404)
        content = content if content is not None else b"{}"
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Content-Type", "application/json")
        self.send_header("ETag", f'"{hashlib.sha1(content).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        if content == b"{}":
            self.send_header("X-Error-Code", "EntryNotFound")
        self.end_headers()
        if not is_head:
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Nothing: a test reads what was asked for."""


class HubStandIn(ThreadingHTTPServer):
    """Knows one model or data set, at one commit, under one branch."""

    daemon_threads = True

    def __init__(self, name: str, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.name, self.folder = name, folder
        self.asked: list[str] = []
        self.tags: list[str] = []
        """Other names of the commit."""
        self.tokens: set[str] = set()
        self.stored: dict[str, bytes] = {}
        """Large files by their digest, before a commit names them."""
        self.commits: list[dict[str, object]] = []
        """Of each: its summary and what it did, without contents."""
        self.is_forbidden = False
        """Whether nobody may create a repository or change one."""

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def take(self, path: str, body: bytes) -> tuple[int, object]:
        """What is answered to a POST: status, and what becomes JSON."""
        prefix = f"api/models/{self.name}"
        if self.is_forbidden:
            return 403, {"error": "You may not write here."}
        if path == "api/repos/create":
            return 200, {"url": f"{self.endpoint}/{self.name}"}
        if path == "api/validate-yaml":
            is_card = json.loads(body)["content"].startswith("---\n")
            return (200, {}) if is_card else (400, {"errors": [{"message": "no metadata"}]})
        if path == f"{prefix}/preupload/main":
            return 200, {"files": [_mode(one) for one in json.loads(body)["files"]]}
        if path == f"{self.name}.git/info/lfs/objects/batch":
            objects = [self._upload(one) for one in json.loads(body)["objects"]]
            return 200, {"transfer": "basic", "objects": objects}
        if path == f"{prefix}/commit/main":
            self._commit([json.loads(line) for line in body.splitlines()])
            url = f"{self.endpoint}/{self.name}/commit/{COMMIT}"
            return 200, {"commitUrl": url, "commitOid": COMMIT, "success": True}
        return 404, {"error": f"nothing answers {path}"}

    def _upload(self, wanted: dict[str, object]) -> dict[str, object]:
        href = f"{self.endpoint}/lfs/{wanted['oid']}"
        return {**wanted, "actions": {"upload": {"href": href, "header": {}}}}

    def _commit(self, lines: list[dict[str, dict[str, str]]]) -> None:
        for line in lines:
            value = line["value"]
            if line["key"] == "file":
                (self.folder / value["path"]).write_bytes(base64.b64decode(value["content"]))
            elif line["key"] == "lfsFile":
                (self.folder / value["path"]).write_bytes(self.stored[value["oid"]])
        did = [f"{one['key']} {one['value']['path']}" for one in lines[1:]]
        self.commits.append({"summary": lines[0]["value"]["summary"], "did": did})

    def content_of(self, path: str) -> bytes | None:
        files = sorted(one for one in self.folder.iterdir() if one.is_file())
        path = path.removeprefix("datasets/").replace("api/datasets/", "api/models/", 1)
        for revision in ("main", COMMIT, *self.tags):
            if path == f"api/models/{self.name}/revision/{revision}":
                siblings = [{"rfilename": one.name} for one in files]
                return json.dumps(
                    {"id": self.name, "modelId": self.name, "sha": COMMIT, "siblings": siblings}
                ).encode()
            if path == f"api/models/{self.name}/tree/{revision}":
                return json.dumps([_entry(one) for one in files]).encode()
            for one in files:
                if path == f"{self.name}/resolve/{revision}/{one.name}":
                    return one.read_bytes()
        return None


def _mode(file: dict[str, str]) -> dict[str, object]:
    """Weights and pictures are large files, all others are plain ones."""
    is_large = file["path"].endswith((".safetensors", ".png"))
    mode = "lfs" if is_large else "regular"
    return {"path": file["path"], "uploadMode": mode, "shouldIgnore": False, "oid": None}


def _entry(path: Path) -> dict[str, object]:
    return {
        "type": "file",
        "path": path.name,
        "size": path.stat().st_size,
        "oid": hashlib.sha1(path.read_bytes()).hexdigest(),
    }


def python_at(endpoint: str, place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Python in `place`, for which that hub is the only one; to its end, whatever that is.

    The hub's address is read when its library is imported, so it needs a process.
    """
    known = {"HF_ENDPOINT": endpoint, "HF_HOME": str(place / "hf"), "PYTHONPATH": python_path()}
    return subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        check=False,
        cwd=place,
        env={**os.environ, **known, "HF_HUB_DISABLE_TELEMETRY": "1"},
        timeout=250,
    )


def shoal_at(endpoint: str, place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A verb of the command there, with a home of its own."""
    return python_at(endpoint, place, "-m", "shoal", "--home", str(place / "home"), *words)


@contextmanager
def hub(name: str, folder: Path) -> Iterator[HubStandIn]:
    """Serves the folder as this repository while the block runs."""
    server = HubStandIn(name, folder)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
