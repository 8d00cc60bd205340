"""A hub that is away is told within seconds, and what is here already is used."""

from __future__ import annotations

import socket
import time

import pytest

from node.trainer import hub
from node.trainer.base_source import fetch
from node.trainer.text.tokenizer import open_tokenizer
from node.trainer.text.tokenizer_files import fetch_tokenizer
from protocol.errors import UserError

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def away(tmp_path, monkeypatch):
    """An address at which nobody answers, and an empty cache."""
    from huggingface_hub import constants

    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{port}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def test_a_hub_that_is_away_is_one_sentence_after_seconds_at_most(away, caplog):
    began_s = time.monotonic()
    with pytest.raises(UserError) as caught:
        open_tokenizer("owner/name")
    assert time.monotonic() - began_s < 10.0  # The library alone tries for more than 30 s.
    assert "127.0.0.1 cannot be reached from here: Connection refused" in str(caught.value)
    assert "it is not in this machine's cache" in str(caught.value)
    assert not caplog.records, "no retries were told"
    with pytest.raises(UserError, match="or use the path of a tokenizer"):
        fetch_tokenizer("owner/name")
    fetch_tokenizer("bytes")
    fetch_tokenizer("/no/such/tokenizer.json")  # Nothing of the hub's.
    with pytest.raises(UserError, match="fetch it elsewhere and name its folder with --from"):
        fetch("hub:owner/name@main")


def test_what_was_fetched_before_is_used_while_the_hub_is_away(away):
    folder = away / "models--owner--name" / "snapshots" / COMMIT
    folder.mkdir(parents=True)
    (folder / "tokenizer.json").write_text("{}")
    (folder.parents[1] / "refs").mkdir()
    (folder.parents[1] / "refs" / "main").write_text(COMMIT)
    assert hub.snapshot("owner/name", ["tokenizer.json"]) == folder


def test_a_proxy_is_asked_in_place_of_the_hub(monkeypatch):
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{listening.getsockname()[1]}")
        assert hub.trouble("https://hub.invalid") == ""


def test_a_name_that_nobody_has_is_told(monkeypatch):
    for name in ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    assert hub.trouble("https://hub.invalid").startswith("hub.invalid cannot be reached from here:")
