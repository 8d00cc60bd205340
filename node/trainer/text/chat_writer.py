"""A chat as its tokenizer's template writes it, and which of its characters are answers.

The template comes from a stranger's project. `transformers` renders it in the sandbox of jinja, and
only where a model is trained or talked to; memory and output are bounded here.
"""

from __future__ import annotations

import re
import resource
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
from jinja2 import TemplateError
from numpy.typing import NDArray
from transformers.utils.chat_template_utils import render_jinja_template

from host.runtime.process_status import status_bytes
from node.trainer.text.chat_template import ChatSettings
from node.trainer.text.chats import ANSWERING, LeftOut, Turns
from node.trainer.text.tokenizer import TokenizerVocabulary

FIXED_CHARS_MAX: Final = 1 << 16
"""What a template may write of its own in a chat, such as a system prompt."""
TURN_CHARS_MAX: Final = 1 << 10
"""... and around each message."""
COPIES_MAX: Final = 4
"""How often it may write the messages themselves."""

RENDER_BYTES_MAX: Final = 1 << 30
"""Memory that rendering may come to take: a template can multiply a text before it writes it."""

TEMPLATE_ERRORS: Final = (
    TemplateError,
    ValueError,
    TypeError,
    ArithmeticError,
    LookupError,
    AttributeError,
    RecursionError,
    MemoryError,
)
"""Whatever a template can bring about."""

_MARKED: Final = re.compile(r"\{%-?\s*generation\s*-?%\}")

Spans = list[tuple[int, int]]


class ChatWriter:
    """Writes chats by one template."""

    def __init__(self, settings: ChatSettings) -> None:
        self._settings = settings
        self._marks_answers = _MARKED.search(settings.template) is not None
        self._render: Callable[..., Any] = render_jinja_template

    def write(self, turns: Sequence[dict[str, str]], *, for_answer: bool) -> str:
        """The chat as text; for_answer: up to where the next answer begins.

        LeftOut if the template refuses it or writes too much.
        """
        return self._rendered(turns, add_generation_prompt=for_answer)[0]

    def answers(self, turns: Turns) -> tuple[str, Spans]:
        """The chat as text, and first and last + 1 of the characters of each answer.

        By the marks that the template sets (`{% generation %}`), if it sets any. Otherwise an
        answer is what a chat that ends with it has more than the same chat before it.
        LeftOut if the template refuses the chat, or writes its beginning otherwise than the whole.
        """
        if self._marks_answers:
            return self._rendered(turns, return_assistant_tokens_mask=True)
        whole, spans = self.write(turns, for_answer=False), []
        for at, turn in enumerate(turns):
            if turn["role"] != ANSWERING or not at:
                continue  # Nobody asked for what comes first.
            before = self.write(turns[:at], for_answer=True)
            until = self.write(turns[: at + 1], for_answer=False)
            if not whole.startswith(until) or not until.startswith(before):
                raise LeftOut(
                    "the tokenizer's chat template writes the beginning of this chat otherwise than"
                    " the whole, and does not mark answers with {% generation %}, so nobody can"
                    " tell which tokens are answers"
                )
            spans.append((len(before), len(until)))
        return whole, spans

    def _rendered(self, turns: Sequence[dict[str, str]], **options: bool) -> tuple[str, Spans]:
        try:
            (text,), spans = self._render(
                conversations=[list(turns)],
                chat_template=self._settings.template,
                **options,
                **self._settings.special,
            )
        except TEMPLATE_ERRORS as error:
            words = " ".join(str(error).split())[:200] or type(error).__name__
            raise LeftOut(f"the tokenizer's chat template refuses it ({words})") from error
        said = sum(len(one["content"]) + len(one["role"]) for one in turns)
        most = FIXED_CHARS_MAX + TURN_CHARS_MAX * len(turns) + COPIES_MAX * said
        if len(text) > most:
            raise LeftOut(
                f"the tokenizer's chat template makes {len(text):,} characters of it, more than"
                f" the {most:,} that are allowed"
            )
        return text, [(first, last) for first, last in (spans[0] if spans else [])]


def tokens_of(
    vocabulary: TokenizerVocabulary, written: Sequence[tuple[str, Spans]]
) -> list[NDArray[np.int64]]:
    """The ids of each chat; a token that does not begin within an answer is -1 - id."""
    texts = [text for text, _ in written]
    encodings = vocabulary.tokenizer.encode_batch(texts, add_special_tokens=False)
    found = []
    for encoding, (text, spans) in zip(encodings, written, strict=True):
        is_answer = np.zeros(len(text) + 1, dtype=np.bool_)
        for first, last in spans:
            is_answer[first:last] = True
        ids = np.asarray(encoding.ids, dtype=np.int64)
        begins, ends = np.asarray(encoding.offsets, dtype=np.int64).reshape(-1, 2).T
        found.append(np.where(is_answer[begins] & (begins < ends), ids, ~ids))
    return found


@contextmanager
def bounded_memory() -> Iterator[None]:
    """Inside, this process may grow by `RENDER_BYTES_MAX`; beyond that there is a MemoryError."""
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    held = status_bytes("VmData")
    if held is None:
        yield  # This system keeps no such account.
        return
    most = held + RENDER_BYTES_MAX
    if soft == resource.RLIM_INFINITY or most < soft:
        resource.setrlimit(resource.RLIMIT_DATA, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
