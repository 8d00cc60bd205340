"""Chats for tests: what people keep in files, and templates that write them."""

from __future__ import annotations

import json
import random
from pathlib import Path

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

ANSWER = "At noon."
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
    chats = [turns(f"{number}: {draw.choice(QUESTIONS)}", ANSWER) for number in range(count)]
    for at, name in enumerate(("ada.jsonl", "bob.jsonl")):
        lines = [json.dumps({"messages": one}) for one in chats[at::2]]
        (folder / name).write_text("\n".join(lines) + "\n")
    return folder
