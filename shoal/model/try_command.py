"""The `try` verb: write to the newest weights while the swarm trains on.

The model is loaded here, in the command's own process, and draws tokens behind the trainers of this
machine. Loading goes on while somebody types.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import validators

from protocol.errors import ShoalError, UserError
from shoal.common.choices import HomeHere, OnlyInstance, option, switch
from shoal.common.exit_codes import ExitCode
from shoal.model.newest_weights import NewestWeights, Source, has_chat

if TYPE_CHECKING:
    from host.files.home import Home
    from node.trainer.tools.talk import Talk

PROMPT: Final = "> "
NEW: Final = "/new"
QUIT: Final = ("/quit", "/exit")
LINE_CHARS_MAX: Final = 100_000


def try_model(
    project: Annotated[
        str,
        option(
            "Name of the project, or the beginning of its ID; needed where several are.",
            known="projects",
        ),
    ] = "",
    *,
    prompt: Annotated[str | None, option("Write this, print what comes back, and end.")] = None,
    tokens: Annotated[
        int, option("Tokens in one answer at most.", validators.Number(gte=1, lte=100_000))
    ] = 200,
    temperature: Annotated[
        float | None,
        option(
            "0 takes the likeliest token; as the base model says, else 0.8.",
            validators.Number(gte=0, lte=10),
        ),
    ] = None,
    text: Annotated[
        bool, switch("Have it continue a text, also where the tokenizer has a chat template.")
    ] = False,
    seed: Annotated[int | None, option("Same seed and weights, same answer.")] = None,
    instance: OnlyInstance = None,
    home: HomeHere,
) -> int:
    """Answers what is written, until `/quit`. Raises what `Source.newest` raises."""
    source = Source(home, project, instance)
    weights = source.newest()
    if (code := weights.genesis.trainer) is not None:
        raise UserError(
            f"{weights.genesis.name} trains with code of its own, {code.name}, and only that code "
            "knows what to do with its weights. `shoal export` writes them."
        )
    if not weights.genesis.writes:
        from node.trainer.tools.export import require_writing

        require_writing(weights.genesis)
    is_chat = not text and has_chat(weights.genesis, home)
    _tell(weights.words)
    drawing = Drawing(tokens, temperature, time.time_ns() if seed is None else seed)
    with ThreadPoolExecutor(1, thread_name_prefix="load") as loader:
        talk = loader.submit(_load, weights, home, is_chat=is_chat)
        if prompt is not None:
            drawing.answer(talk, prompt)
        else:
            _converse(source, talk, drawing, is_chat=is_chat)
    return ExitCode.DONE


class Drawing:
    """How answers are drawn, one after the other."""

    def __init__(self, tokens: int, temperature: float | None, seed: int) -> None:
        self._tokens, self._temperature, self._seed = tokens, temperature, seed % 2**62
        self._is_first = True

    def answer(self, talk: Future[Talk], text: str) -> None:
        """Prints what follows, as it comes. UserError if the model cannot be loaded or written to.

        Ctrl-C ends the answer and raises KeyboardInterrupt.
        """
        if not talk.done():
            _tell("loading the model ...")
        model = talk.result()
        if self._is_first:
            from node.trainer.tools.talk import give_way

            give_way()
            self._is_first = False
        self._seed += 1
        try:
            model.say(
                text, _write, tokens=self._tokens, temperature=self._temperature, seed=self._seed
            )
        finally:
            _write("\n")


def _load(weights: NewestWeights, home: Home, *, is_chat: bool) -> Talk:
    from node.trainer.tools.talk import Talk

    return Talk(weights.genesis, weights.fragments, home.data_cache(), is_chat=is_chat)


def _converse(source: Source, talk: Future[Talk], drawing: Drawing, *, is_chat: bool) -> None:
    what = "It answers what you write." if is_chat else "It continues what you write."
    _tell(f"{what} {NEW}: begin again, with newer weights. {QUIT[0]}: leave. Ctrl-C: enough.")
    for line in _lines():
        word = line.strip()
        if word in QUIT:
            return
        try:
            if word == NEW:
                _renew(source, talk)
            elif word or not is_chat:
                drawing.answer(talk, line)
        except KeyboardInterrupt:
            _write("\n")
        except UserError as error:
            if not talk.done() or talk.exception() is not None:
                raise
            _tell(str(error))


def _renew(source: Source, talk: Future[Talk]) -> None:
    """Forgets the conversation; takes newer weights if there are any."""
    try:
        weights = source.newest()
    except ShoalError as error:
        talk.result().begin_anew()
        _tell(f"{error} The weights stay as they are.")
        return
    talk.result().begin_anew(weights.fragments)
    _tell(weights.words)


def _lines() -> Iterator[str]:
    """What is typed, until the end of it. Ctrl-C at the prompt ends it too."""
    is_terminal = sys.stdin.isatty()
    if is_terminal:
        import contextlib

        with contextlib.suppress(ImportError):
            import readline  # noqa: F401 - `input` edits lines with it
    while True:
        try:
            line = input(PROMPT if is_terminal else "")
        except (EOFError, KeyboardInterrupt):
            _tell("")
            return
        yield line[:LINE_CHARS_MAX]


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _tell(text: str) -> None:
    """To the person, and not into what a program reads."""
    print(text, file=sys.stderr, flush=True)
