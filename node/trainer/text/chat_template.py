"""What a project's pinned files say of chats. Light: it imports no torch and runs no template."""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple

from host.files.pinned_files import PinnedFiles

TEMPLATE_FILE: Final = "chat_template.jinja"
SETTINGS_FILE: Final = "tokenizer_config.json"
SPECIAL_FILE: Final = "special_tokens_map.json"
TEMPLATE_CHARS_MAX: Final = 1 << 18
_SPECIAL: Final = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token")


class ChatSettings(NamedTuple):
    """How a tokenizer writes a chat."""

    template: str
    special: dict[str, str]
    """Special tokens that a template may ask for, by their names."""


def chat_settings(files: PinnedFiles) -> ChatSettings | None:
    """What the files say; None where they have no template that can be used."""
    names = (SETTINGS_FILE, SPECIAL_FILE, TEMPLATE_FILE)
    return read_chat(*(_content(files, name) for name in names))


def read_chat(settings: bytes, special: bytes, template: bytes) -> ChatSettings | None:
    """The same of the files' contents; empty where there is no such file."""
    said = {**read_object(special), **read_object(settings)}
    found = template.decode("utf-8", "replace") if template else said.get("chat_template")
    if isinstance(found, list):  # Several, by their names.
        tables = [one for one in found if isinstance(one, dict)]
        found = next((one.get("template") for one in tables if one.get("name") == "default"), None)
    if not isinstance(found, str) or not 0 < len(found) <= TEMPLATE_CHARS_MAX:
        return None
    tokens = {key: text for key in _SPECIAL if (text := _token(said.get(key))) is not None}
    return ChatSettings(found, tokens)


def pinned_json(files: PinnedFiles, name: str) -> dict[str, Any]:
    """The JSON object in a pinned file; empty where there is none."""
    return read_object(_content(files, name))


def read_object(content: bytes) -> dict[str, Any]:
    """A JSON object; empty where it is none: its owner's mistake, and the model still works."""
    try:
        said = json.loads(content) if content else {}
    except (ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}


def _content(files: PinnedFiles, name: str) -> bytes:
    for one in files.spec.files if files.spec is not None else ():
        if one.name == name and (found := files.find(one.digest)) is not None:
            return bytes(found)
    return b""


def _token(said: object) -> str | None:
    if isinstance(said, dict):
        said = said.get("content")
    return said if isinstance(said, str) and said else None
