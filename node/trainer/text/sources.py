"""Documents of a project: texts from files of several kinds or from the hub, or chats.

- `python-stdlib`: the .py files of the running interpreter's standard library, sorted by path,
  without installed packages and without its test suites (made of deliberately broken files).
- `file`: one text file, cut at line ends into documents of about `PIECE_CHARS`, or else the whole
  file would fall on one side of the split.
- `folder`: every file below it with one of `TEXT_SUFFIXES`, sorted by path.
- `jsonl`, `parquet`: a file or a folder of them; the text is in the field or column `text_field`.
  Rows without a text are left out and counted; anything else in its place is refused.
- `hub`: a data set of the Hugging Face hub (`protocol.project.hub_data`), split `train`; never
  anything local. Data sets that need code of their own are refused by `datasets` itself.
- `chats`: a file or a folder of conversations (`node.trainer.text.chats`), written by the chat
  template of the project's tokenizer. Answers are learned, all else is context, whose ids are read
  as -1 - id.

Everything is read as a stream, so a text larger than memory is fine. `datasets` and `pyarrow` are
imported only where they are read from.
"""

from __future__ import annotations

import glob
import os
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from node.trainer.text.chats import CHAT_SUFFIXES, Chat, Tally, chats_of, read_chats
from node.trainer.text.table_files import JSON_SUFFIXES, PARQUET, columns, rows
from protocol.errors import UserError
from protocol.project import DataSpec, HubData, hub_data, on_hub

TEXT_SUFFIXES: Final = frozenset({".txt", ".md", ".rst", ".py", ".c", ".h", ".rs", ".js", ".ts"})
SKIPPED_FOLDERS: Final = frozenset(
    {"site-packages", "dist-packages", "test", "tests", "idle_test", "lib2to3", "__pycache__"}
)
PIECE_CHARS: Final = 4096

CHATS: Final = "chats"
"""Source of conversations."""
JSONL: Final = "jsonl"
TABLE_SUFFIXES: Final = {
    JSONL: JSON_SUFFIXES,
    "parquet": frozenset({PARQUET}),
    CHATS: CHAT_SUFFIXES,
}
"""Sources that may be one file or a folder of them."""

_KINDS: Final = {bool: "true or false", int: "a number", float: "a number", list: "a list"}
FIELDS_SHOWN: Final = 20


def listing(spec: DataSpec) -> list[Path]:
    """The local files of a source, sorted; empty for the hub. UserError if there are none."""
    if on_hub(spec.source, spec.location) is not None:
        return []
    if spec.source == "python-stdlib":
        return _files_below(Path(sysconfig.get_path("stdlib")), frozenset({".py"}), SKIPPED_FOLDERS)
    root = Path(spec.location).expanduser().resolve()
    suffixes = TABLE_SUFFIXES.get(spec.source, TEXT_SUFFIXES)
    if spec.source == "file" or (spec.source in TABLE_SUFFIXES and root.is_file()):
        if not root.is_file():
            raise UserError(f"There is no file {root}. Correct `location` in the project file.")
        if spec.source == "parquet" and root.suffix != PARQUET:
            raise UserError(f"{root} does not end in {PARQUET}. Correct `location` or `source`.")
        return [root]
    return _files_below(root, suffixes, frozenset())


OWN_ALONE: Final = (CHATS, "own")
"""Sources of which each learner has data of its own, in place of a copy of the project's."""


@contextmanager
def read_as_a_copy(data: DataSpec, location: str | None) -> Iterator[None]:
    """A UserError says what is wrong with a learner's copy of the text, without what only the
    project's owner could do about it.

    location: where the learner has it; None, "" and the project's own place are the owner's.
    """
    try:
        yield
    except UserError as error:
        if location in (None, "", data.location) or data.source in OWN_ALONE:
            raise
        what, dot, _ = str(error).partition(". ")
        said = f"{what}{dot.strip()} So {location} is no copy of the project's text."
        raise UserError(said) from error


def local_bytes(spec: DataSpec) -> int:
    """Size of the local files of a source; 0 for the hub. UserError if there are none."""
    return sum(path.stat().st_size for path in listing(spec))


def _files_below(root: Path, suffixes: frozenset[str], skipped: frozenset[str]) -> list[Path]:
    if not root.is_dir():
        raise UserError(f"There is no folder {root}. Correct `location` in the project file.")
    found: list[Path] = []
    for folder, inner, names in os.walk(root):
        inner[:] = sorted(name for name in inner if name not in skipped)
        found += [Path(folder, name) for name in sorted(names) if Path(name).suffix in suffixes]
    if not found:
        raise UserError(
            f"{root} holds no file ending in {', '.join(sorted(suffixes))}."
            " Correct `location` in the project file."
        )
    return found


# --------------------------------------------------------------------------------------- chats


def chats(spec: DataSpec, files: list[Path], tally: Tally) -> Iterator[Chat]:
    """Every conversation that can be used; `tally` counts the others. UserError if a file cannot be
    read."""
    named = on_hub(spec.source, spec.location)
    try:
        if named is None:
            yield from read_chats(files, tally)
        else:
            yield from _hub_chats(named, tally)
    except (OSError, ValueError) as error:
        raise UserError(f"The chats in {spec.location} cannot be read ({error}).") from error


def _hub_chats(named: str, tally: Tally) -> Iterator[Chat]:
    """ValueError if they cannot be read."""
    from datasets.exceptions import DatasetsError

    try:
        yield from chats_of(_hub_rows(named), tally)
    except DatasetsError as error:
        raise ValueError(str(error)) from error


def survey_chats(spec: DataSpec) -> Tally:
    """Which chats of a source can be used, as far as can be told without its tokenizer.

    UserError if none can, or if they cannot be read. Light: no model is loaded.
    """
    tally = Tally()
    for _ in chats(spec, listing(spec), tally):
        tally.used += 1
    tally.require_some(spec.location)
    return tally


# --------------------------------------------------------------------------------------- texts


def documents(spec: DataSpec, files: list[Path], tally: Tally) -> Iterator[str]:
    """Every document with text in it; `tally` counts rows without.

    UserError if the source cannot be read, or a row holds something else than a text.
    """
    try:
        if spec.source in (JSONL, "parquet"):
            yield from _of_rows(spec, _rows(spec, files), tally)
        else:
            yield from _by_datasets(spec, files, tally)
    except (OSError, ValueError) as error:
        raise UserError(_unreadable(spec, error)) from error


def _unreadable(spec: DataSpec, error: Exception) -> str:
    return (
        f"The text source {spec.source} {spec.location!r} cannot be read ({error})."
        " Check `location`, your access to it and, for the hub, the network."
    )


def _by_datasets(spec: DataSpec, files: list[Path], tally: Tally) -> Iterator[str]:
    from datasets.exceptions import DatasetsError

    try:
        if spec.source == "hub":
            yield from _of_rows(spec, _hub_rows(spec.location), tally)
        elif spec.source == "file":
            lines = _loaded(files, sample_by="line", keep_linebreaks=True)
            yield from _pieces(row["text"] for row in lines)
        else:
            whole = _loaded(files, sample_by="document")
            yield from (row["text"] for row in whole if row["text"])
    except DatasetsError as error:
        raise UserError(_unreadable(spec, error)) from error


def _loaded(files: list[Path], **options: Any) -> Iterable[dict[str, str]]:
    """Text files as `datasets` reads them."""
    import datasets

    # `datasets` takes names for patterns, so a bracket in one would find nothing.
    names = [glob.escape(str(path)) for path in files]
    options |= {"split": "train", "streaming": True, "encoding_errors": "replace"}
    found: Iterable[dict[str, str]] = datasets.load_dataset("text", data_files=names, **options)
    return found


def _rows(spec: DataSpec, files: list[Path]) -> Iterator[tuple[str, object]]:
    """Place and value of every row. UserError if a .parquet file has no such column."""
    for path in files:
        if path.suffix == PARQUET and spec.text_field not in (known := columns(path)):
            raise UserError(_no_field(spec.text_field, path.name, "columns", known))
        for place, read in rows(path, (spec.text_field,)):
            try:
                yield place, read()
            except (ValueError, RecursionError) as error:
                raise UserError(
                    f"{place} is no JSON ({error}). A line of a .jsonl file is one text:"
                    f' {{"{spec.text_field}": "..."}}'
                ) from error


def _hub_rows(named: str) -> Iterator[tuple[str, object]]:
    """Place and value of every row of a data set of the hub."""
    import datasets

    known = _on_the_hub(named)
    at = {"revision": known.revision} if known.revision else {}
    found = datasets.load_dataset(
        known.name, known.configuration or None, split="train", streaming=True, **at
    )
    for number, row in enumerate(found, 1):
        yield f"row {number:,} of {named}", row


def _on_the_hub(location: str) -> HubData:
    """UserError for anything that would be read locally."""
    known = hub_data(location)
    if known is None:
        raise UserError(
            f"{location!r} does not name a data set of the hub. Write `location` as OWNER/NAME or"
            " OWNER/NAME:CONFIGURATION, with @REVISION behind it to pin what is read, or use"
            " file, folder, jsonl or parquet for your own text."
        )
    if Path(known.name).exists():
        # `datasets` prefers a local folder of that name, which the project must not choose.
        raise UserError(
            f"There is a file or folder {known.name} here, which would be read in place of the data"
            " set of that name on the hub. Start Shoal from another folder."
        )
    return known


def _of_rows(spec: DataSpec, found: Iterable[tuple[str, object]], tally: Tally) -> Iterator[str]:
    for place, row in found:
        text = _text_in(row, spec.text_field, place)
        if not text:
            tally.leave_out(place, f"has no text in the field {spec.text_field!r}")
        else:
            tally.used += 1
            # Half a pair of surrogates, which JSON can say, is no text that could be encoded.
            yield text.encode("utf-8", "replace").decode()
    if not tally.used:
        raise UserError(
            f"No text in {spec.location}: the field {spec.text_field!r} is empty in all of its"
            f" {tally.left_out:,} rows. Set `text_field` under [data]."
        )


def _text_in(row: object, field: str, place: str) -> str | None:
    """UserError if there is no such field, or something else in it."""
    if not isinstance(row, Mapping):
        raise UserError(
            f'{place} is {_kind(row)}, and should be an object with a text: {{"{field}": "..."}}'
        )
    if field not in row:
        raise UserError(_no_field(field, place, "fields", tuple(map(str, row))))
    text = row[field]
    if text is not None and not isinstance(text, str):
        raise UserError(
            f"{place} has {_kind(text)} in the field {field!r}, where a text is wanted. Correct the"
            " data, or set another `text_field` under [data]."
        )
    return text


def _no_field(field: str, place: str, what: str, known: tuple[str, ...]) -> str:
    shown = ", ".join(sorted(known)[:FIELDS_SHOWN]) or "none"
    more = ", and others" if len(known) > FIELDS_SHOWN else ""
    chats_too = (
        ' Chats are read with source = "chats".'
        if {"messages", "conversations"} & set(known)
        else ""
    )
    return (
        f"{place} has no text in the field {field!r}; its {what} are {shown}{more}. Set"
        f" `text_field` under [data].{chats_too}"
    )


def _kind(value: object) -> str:
    """What a value is, for people."""
    return _KINDS.get(type(value), "something other than a text")


def _pieces(lines: Iterable[str]) -> Iterator[str]:
    """Lines joined into documents of at least `PIECE_CHARS`, the last one excepted."""
    held: list[str] = []
    chars = 0
    for line in lines:
        held.append(line)
        chars += len(line)
        if chars >= PIECE_CHARS:
            yield "".join(held)
            held, chars = [], 0
    if chars:
        yield "".join(held)
