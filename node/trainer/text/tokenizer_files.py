"""What a project pins of its tokenizer, read where it is signed.

`tokenizer.json` is the tokenizer. The other files say how the model is used once it is trained:
special tokens, the template of a chat, and how to sample from a base model. They are passed on byte
for byte and never run here.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from blake3 import blake3

from host.files.pinned_files import PinnedFiles
from node.trainer import hub
from node.trainer.text.tokenizer import BASE, BYTES, EOS_NAMES, open_tokenizer
from protocol import limits
from protocol.errors import UserError
from protocol.project import PinnedFile, TokenizerFile, TokenizerSpec, hub_name

if TYPE_CHECKING:
    from tokenizers import Tokenizer

TOKENIZER_FILE: Final = "tokenizer.json"
SETTINGS_FILE: Final = "tokenizer_config.json"
SPECIAL_FILE: Final = "special_tokens_map.json"
NAMES: Final[tuple[TokenizerFile, ...]] = (
    TOKENIZER_FILE,
    SETTINGS_FILE,
    SPECIAL_FILE,
    "chat_template.jinja",
)
GENERATION_FILE: Final = "generation_config.json"
MODEL_FILE: Final = "config.json"


def pin_tokenizer(
    name: str, base: Path | None, cache: Path, *, pins_generation: bool = True
) -> TokenizerSpec | None:
    """What the genesis says of the tokenizer `name`, whose files are in `cache` from now on.

    base: folder of the base model, whose generation settings are pinned with its tokenizer.
    pins_generation: False as projects were signed before they were. None for `bytes`. UserError if
    it cannot be read, is too large, or has no token that ends a text.
    """
    if name == BYTES:
        return None
    places = _places(name, base)
    if not pins_generation:
        places.pop(GENERATION_FILE, None)
    contents = {one: _read(path) for one, path in places.items() if path.is_file()}
    if TOKENIZER_FILE not in contents:
        raise UserError(
            f"There is no {places[TOKENIZER_FILE]}, the one form of a tokenizer that Shoal reads."
            " Write one with AutoTokenizer.from_pretrained(...).save_pretrained(...) of"
            " transformers."
        )
    size_bytes = sum(map(len, contents.values()))
    if size_bytes > limits.TOKENIZER_BYTES_MAX:
        raise UserError(
            f"The tokenizer {name!r} has {size_bytes:,} bytes; at most"
            f" {limits.TOKENIZER_BYTES_MAX:,} are allowed."
        )
    said = {
        **_json(contents.get(SPECIAL_FILE, b"{}"), name),
        **_json(contents.get(SETTINGS_FILE, b"{}"), name),
    }
    _json(contents.get(GENERATION_FILE, b"{}"), name)
    if "auto_map" in said:
        raise UserError(
            f"The tokenizer {name!r} needs code of its own (auto_map), which Shoal never runs. Use"
            " one of the `tokenizers` library."
        )
    tokenizer = open_tokenizer(str(places[TOKENIZER_FILE]))
    model = _json(_read(base / MODEL_FILE), name) if name == BASE and base is not None else {}
    end = _end_of_text(tokenizer, said, model, name)
    files = {
        one: PinnedFile(one, len(content), blake3(content).digest())
        for one, content in contents.items()
    }
    spec = TokenizerSpec(tuple(files.values()), end)
    kept = PinnedFiles(cache, spec)
    for one in kept.missing():
        kept.keep(one, contents[one.name])
    return spec


def fetch_tokenizer(name: str) -> None:
    """A tokenizer of the hub is in this machine's cache when this returns; others are left alone.

    UserError if it is neither here nor there.
    """
    if not Path(name).is_absolute() and hub_name(name) is not None:
        _fetched(name)


def _places(name: str, base: Path | None) -> dict[TokenizerFile, Path]:
    """Where each file of a tokenizer may lie."""
    if name == BASE:
        if base is None:
            raise UserError(
                f"The tokenizer {BASE!r} is that of the model that a project starts from, and this"
                " one has no `from` under [model]. Use bytes, a tokenizer.json or OWNER/NAME."
            )
        return {one: base / one for one in (*NAMES, GENERATION_FILE)}
    if Path(name).is_absolute():
        # A file of another name is a tokenizer by itself: what lies beside it may be another's.
        is_whole = Path(name).name == TOKENIZER_FILE
        beside = {one: Path(name).parent / one for one in NAMES if is_whole}
        return {**beside, TOKENIZER_FILE: Path(name)}
    if hub_name(name) is None:
        raise UserError(
            f"There is no tokenizer {name!r}. Use bytes, base, a tokenizer.json or OWNER/NAME."
        )
    folder = _fetched(name)
    return {one: folder / one for one in NAMES}


def _fetched(name: str) -> Path:
    try:
        return hub.snapshot(name, NAMES)
    except UserError as error:
        raise UserError(
            f"The tokenizer {name} cannot be fetched ({error}). Check the name, the network and"
            " your access, or use the path of a tokenizer.json."
        ) from error


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as handle:
            return handle.read(limits.TOKENIZER_BYTES_MAX + 1)
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}).") from error


def _json(content: bytes, name: str) -> dict[str, Any]:
    try:
        said = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise UserError(f"The files of the tokenizer {name!r} are damaged ({error}).") from error
    return said if isinstance(said, dict) else {}


def _end_of_text(
    tokenizer: Tokenizer, said: dict[str, Any], model: dict[str, Any], name: str
) -> str:
    """As its own files say, else as its model does, else a usual name that it has."""
    ids = tokenizer.get_vocab(with_added_tokens=True)
    named = said.get("eos_token")
    if isinstance(named, dict):
        named = named.get("content")
    if isinstance(named, str) and named in ids:
        return named
    number = model.get("eos_token_id")
    if isinstance(number, list):
        number = number[0] if number else None
    if isinstance(number, int) and (token := tokenizer.id_to_token(number)) is not None:
        return str(token)
    for usual in EOS_NAMES:
        if usual in ids:
            return usual
    raise UserError(
        f"The tokenizer {name!r} names no eos_token and has none of the end-of-document tokens"
        f" {', '.join(EOS_NAMES)}. Add one of them to the tokenizer."
    )
