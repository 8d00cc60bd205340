"""Chats for tests: what people keep in files, and templates that write them."""

from __future__ import annotations

import json
import random
from pathlib import Path

import msgspec

from node.trainer.text.corpus import describe_corpus
from protocol.project import DataSpec, Genesis
from tests.support.base_folder import project_from
from tests.support.tiny_project import data_spec

END = "<|im_end|>"

CHATML = (
    "{% for one in messages %}{{ '[' + one['role'] + ']\n' + one['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '[assistant]\n' }}{% endif %}"
)
MARKED = (
    "{% for one in messages %}{{ '[' + one['role'] + ']\n' }}{% if one['role'] == 'assistant' %}"
    "{% generation %}{{ one['content'] + '<|im_end|>\n' }}{% endgeneration %}{% else %}"
    "{{ one['content'] + '<|im_end|>\n' }}{% endif %}{% endfor %}"
)
"""The same text, and it marks the answers."""

ANSWERS = ("At noon.", "No.", "Past it, softly.")
QUESTIONS = ("Where is the harbour?", "Who drifts past?", "When is noon?", "What is quiet?")


def turns(*contents: str, system: str = "") -> list[dict[str, str]]:
    """A chat of a user and an assistant who take turns."""
    said = [
        {"role": ("user", "assistant")[at % 2], "content": one} for at, one in enumerate(contents)
    ]
    return [{"role": "system", "content": system}, *said] if system else said


def write_chats(folder: Path, count: int = 120, *, seed: int = 5) -> Path:
    """Short chats with answers that can be learned, in two files of `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = random.Random(seed)
    chats = [
        turns(f"{number}: {draw.choice(QUESTIONS)}", draw.choice(ANSWERS))
        for number in range(count)
    ]
    for at, name in enumerate(("ada.jsonl", "bob.jsonl")):
        lines = [json.dumps({"messages": one}) for one in chats[at::2]]
        (folder / name).write_text("\n".join(lines) + "\n")
    return folder


def chats_spec(location: Path, **changes: object) -> DataSpec:
    """A source of chats for the tokenizer of a base model, not yet counted."""
    wanted = {"source": "chats", "tokenizer": "base", "sequence_tokens": 64, **changes}
    return data_spec(location, **wanted)


def chat_genesis(place: Path, folder: Path, texts: Path) -> Genesis:
    """A project that starts from the model in `folder` and trains on chats in `texts`."""
    genesis = project_from(place, folder)
    spec = chats_spec(texts)
    counted = describe_corpus(spec, cache=place / "cache", tokenizer=genesis.tokenizer)
    data = msgspec.structs.replace(spec, blocks=counted.blocks, digest=counted.digest)
    return msgspec.structs.replace(genesis, data=data)
