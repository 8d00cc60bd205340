"""Getting the tokenizer: from whoever has it, in the end from somebody."""

from __future__ import annotations

import asyncio
import random

import pytest
from blake3 import blake3

from host.files.pinned_files import PinnedFiles
from host.join_link import JoinLink
from node.download import pinned
from node.download.locator import Locator
from node.download.pinned import fetch_pinned
from protocol import limits
from protocol.backoff import Backoff
from protocol.errors import MalformedPayload, NotHeld, UserError
from protocol.project import PinnedFile, TokenizerSpec
from tests.support.builders import ONE, SYNCER, TWO, project

CONTENT = b'{"model": {}}'
FILE = PinnedFile("tokenizer.json", len(CONTENT), blake3(CONTENT).digest())
SPEC = TokenizerSpec((FILE,), "</s>")
LINK = JoinLink(project().project, 1, "tiny", ())


class Swarm:
    """Hosts that are connected, and what each of them does when it is asked."""

    key = SYNCER.key

    def __init__(self, *answers: bytes | Exception) -> None:
        self.answers = list(answers)
        self.asked: list[bytes] = []

    def connected(self) -> set[bytes]:
        return {ONE.key, TWO.key, SYNCER.key}

    async def lookup(self, topic: str) -> dict[bytes, bytes]:
        return {}

    async def fetch(self, peer: bytes, digest: bytes, length: int) -> memoryview:
        assert (digest, length) == (FILE.digest, FILE.bytes)
        self.asked.append(peer)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return memoryview(answer)


def fetched(swarm: Swarm, files: PinnedFiles) -> list[str]:
    """What was told of failed tries."""
    told: list[str] = []
    locator = Locator(swarm, LINK.project, b"", random.Random(1), frozenset())

    async def main() -> None:
        async with asyncio.timeout(60.0):
            await fetch_pinned(swarm, LINK, locator, files, lambda why, _: told.append(why))

    asyncio.run(main())
    return told


@pytest.fixture(autouse=True)
def _at_once(monkeypatch):
    monkeypatch.setattr(pinned, "AGAIN", Backoff((0.0,)))


def test_others_are_asked_until_one_has_it(tmp_path):
    files = PinnedFiles(tmp_path, SPEC)
    swarm = Swarm(NotHeld("no"), MalformedPayload("changed"), NotHeld("no"), CONTENT)
    (said,) = fetched(swarm, files)
    assert "the project's tokenizer.json cannot be fetched yet: changed" in said
    assert set(swarm.asked) == {ONE.key, TWO.key}, "nobody asks itself"
    assert PinnedFiles(tmp_path, SPEC).missing() == []


def test_what_is_here_is_not_asked_for(tmp_path):
    files = PinnedFiles(tmp_path, SPEC)
    files.keep(FILE, CONTENT)
    assert fetched(Swarm(), files) == []


def test_a_tokenizer_that_is_too_large_is_not_fetched(tmp_path):
    half = limits.TOKENIZER_BYTES_MAX // 2 + 1
    files = (
        PinnedFile("tokenizer.json", half, bytes(32)),
        PinnedFile("chat_template.jinja", half, bytes([1]) * 32),
    )
    with pytest.raises(UserError, match="Ask its owner for a smaller one"):
        fetched(Swarm(), PinnedFiles(tmp_path, TokenizerSpec(files, "</s>")))
