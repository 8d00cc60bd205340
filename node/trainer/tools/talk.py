"""A model that somebody writes to: it continues a text, or answers in a chat, as tokens are drawn.

In a process of its own, on the processor, behind whatever else runs there. Settings and templates
come from a stranger's project: numbers are bounded, the template is rendered in the sandbox of
`transformers`, and what is drawn reaches a terminal without anything that could steer it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch
import transformers
from transformers.generation import BaseStreamer

from host.files.pinned_files import PinnedFiles
from host.runtime.compute_pool import available
from node.trainer import architectures
from node.trainer.adapters.network import network_of
from node.trainer.model import Floats, FragmentView, layout_of
from node.trainer.text.chat_template import chat_settings, pinned_json
from node.trainer.text.chat_writer import ChatWriter, bounded_memory
from node.trainer.text.chats import LeftOut
from node.trainer.text.tokenizer import TokenizerVocabulary, Vocabulary, load_vocabulary
from node.trainer.text.tokenizer_files import GENERATION_FILE
from node.trainer.tools.export import require_writing
from protocol.errors import UserError
from protocol.project import Genesis

NICE: Final = 15
"""A trainer has 10 unless its owner says otherwise: it gets three times as much."""

TEMPERATURE: Final = 0.8
"""Where neither the user nor the base model says."""

COLDEST: Final = 0.01
"""Below it the likeliest token is taken: logits over less might be no numbers."""

_BOUNDS: Final[Mapping[str, tuple[float, float]]] = {
    "temperature": (0.0, 10.0),
    "top_p": (0.01, 1.0),
    "top_k": (0, 1_000_000),
    "repetition_penalty": (0.5, 5.0),
}
"""Settings of a base model that are used, and within what."""

Out = Callable[[str], None]


class Talk:
    """One conversation with a model, and the model."""

    def __init__(
        self, genesis: Genesis, fragments: Sequence[Floats], cache: Path, *, is_chat: bool
    ) -> None:
        """fragments: f32 [numel] each. cache: the home's, with the pinned files. is_chat: False
        continues a text also where the tokenizer has a chat template. UserError if the model
        cannot be built or the tokenizer is not here."""
        torch.set_num_threads(threads())
        transformers.utils.logging.set_verbosity_error()
        require_writing(genesis)
        self._model = network_of(genesis, cache).eval()
        self._view = FragmentView(self._model, layout_of(genesis))
        for index, values in enumerate(fragments):
            self._view.write(index, values)
        self._vocabulary = load_vocabulary(genesis.data.tokenizer, genesis.tokenizer, cache)
        files = PinnedFiles(cache, genesis.tokenizer)
        self._template = _Template(self._vocabulary, files) if is_chat else None
        self._settings = settings_within(pinned_json(files, GENERATION_FILE))
        self._ends = _ends(self._model.config, pinned_json(files, GENERATION_FILE))
        self._ends.add(self._vocabulary.eos)
        positions = architectures.positions_max(self._model.config)
        self._positions = positions or genesis.data.sequence_tokens
        self.ids: list[int] = []
        """The text so far, where it continues one."""
        self.turns: list[dict[str, str]] = []
        """The chat so far."""

    def begin_anew(self, fragments: Sequence[Floats] | None = None) -> None:
        """Forgets what was said. fragments: newer weights, if there are any."""
        self.ids, self.turns = [], []
        for index, values in enumerate(fragments or ()):
            self._view.write(index, values)

    def say(
        self, text: str, out: Out, *, tokens: int, temperature: float | None = None, seed: int = 0
    ) -> None:
        """Draws what follows, `out` gets it piece by piece. temperature: 0 takes the likeliest.

        At most as many tokens as there are positions left; a long past loses its beginning. What
        was drawn until a KeyboardInterrupt is kept. UserError if the template refuses the chat.
        """
        asked = self._asked(text)
        tokens = min(tokens, max(1, self._positions // 2))
        ids = asked[-max(1, self._positions - tokens) :]
        stream = TokenStream(self._vocabulary, self._ends, out)
        try:
            self._draw(ids, stream, tokens, temperature, seed)
        finally:
            self._remember(asked, text, stream)

    def _asked(self, text: str) -> list[int]:
        """Everything said so far, as the model reads it."""
        if self._template is not None:
            return self._template.ids([*self.turns, {"role": "user", "content": text}])
        # As in training: what is before a text is the end of another.
        ids = self.ids or [self._vocabulary.eos]
        return [*ids, *self._vocabulary.encode([text])[0].tolist()] if text else ids

    def _remember(self, asked: list[int], text: str, stream: TokenStream) -> None:
        if self._template is None:
            self.ids = [*asked, *stream.ids][-self._positions :]
        else:
            answer = {"role": "assistant", "content": stream.text}
            self.turns += [{"role": "user", "content": text}, answer]

    def _draw(
        self,
        ids: list[int],
        stream: TokenStream,
        tokens: int,
        temperature: float | None,
        seed: int,
    ) -> None:
        settings = dict(self._settings)
        if temperature is not None:
            settings["temperature"] = temperature
        if settings["temperature"] < COLDEST:
            settings = {"do_sample": False}
        torch.manual_seed(seed)
        given = torch.tensor([ids])
        generate: Callable[..., Any] = self._model.generate
        with torch.no_grad():
            generate(
                given,
                attention_mask=torch.ones_like(given),
                generation_config=transformers.GenerationConfig(
                    max_new_tokens=tokens,
                    eos_token_id=sorted(self._ends),
                    pad_token_id=self._vocabulary.eos,
                    **settings,
                ),
                streamer=stream,
            )


def threads() -> int:
    """Half of the cores that this process may use."""
    return max(1, available() // 2)


def give_way() -> None:
    """The calling thread, and those that it starts from now on, leave the processor to trainers."""
    os.nice(max(0, NICE - os.nice(0)))


def printable(text: str) -> str:
    """Without anything that could move the cursor or colour the screen."""
    return "".join(one if one.isprintable() or one in "\n\t" else "\ufffd" for one in text)


class TokenStream(BaseStreamer):  # type: ignore[misc]
    """Gets tokens one by one and gives text as soon as it is whole."""

    def __init__(self, vocabulary: Vocabulary, ends: set[int], out: Out) -> None:
        self._vocabulary, self._ends, self._out = vocabulary, ends, out
        self._is_prompt = True
        self._shown = 0
        self.ids: list[int] = []
        self.text = ""

    def put(self, value: torch.Tensor) -> None:
        """The prompt first, then each token."""
        if self._is_prompt:
            self._is_prompt = False
            return
        self.ids += value.reshape(-1).tolist()
        self.text = self._vocabulary.decode([one for one in self.ids if one not in self._ends])
        if not self.text.endswith("\ufffd"):  # Else perhaps the first bytes of a character.
            self._show()

    def end(self) -> None:
        """No more tokens: what is left is shown as it is."""
        self._show()

    def _show(self) -> None:
        new, self._shown = self.text[self._shown :], len(self.text)
        if new:
            self._out(printable(new))


class _Template:
    """The tokenizer's own form of a chat."""

    def __init__(self, vocabulary: Vocabulary, files: PinnedFiles) -> None:
        found = chat_settings(files)
        if found is None or not isinstance(vocabulary, TokenizerVocabulary):
            raise UserError(
                "The project's tokenizer has no chat template. Use --text to have the model"
                " continue what you write."
            )
        self._tokenizer = vocabulary.tokenizer
        self._writer = ChatWriter(found)

    def ids(self, turns: Sequence[dict[str, str]]) -> list[int]:
        """The chat as tokens, up to where the answer begins."""
        try:
            with bounded_memory():
                text = self._writer.write(turns, for_answer=True)
        except LeftOut as why:
            raise UserError(
                f"The chat template of the project does not take this chat ({why}). Begin again"
                " with /new, or use --text."
            ) from why
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids


def settings_within(said: Mapping[str, Any]) -> dict[str, Any]:
    """How to draw, from what the base model says as far as it is within bounds."""
    found: dict[str, Any] = {"do_sample": True, "temperature": TEMPERATURE, "top_k": 0}
    for key, (low, high) in _BOUNDS.items():
        value = said.get(key)
        if isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high:
            found[key] = int(value) if key == "top_k" else float(value)
    return found


def _ends(config: transformers.PreTrainedConfig, said: Mapping[str, Any]) -> set[int]:
    """Tokens that end an answer, by the model's configuration and its settings."""
    found: set[int] = set()
    for named in (getattr(config, "eos_token_id", None), said.get("eos_token_id")):
        several = named if isinstance(named, list) else [named]
        found |= {one for one in several if isinstance(one, int) and 0 <= one < config.vocab_size}
    return found
