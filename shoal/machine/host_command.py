"""`shoal host`: from text of one's own to a swarm that friends can join, in one command.

It writes the project file that `shoal project create` writes, signs it, and runs its syncer. All
that it chose is in the file; who runs it again goes on with what is there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final

from cyclopts import Parameter

from host.files.home import Home
from node.trainer.text.chats import CHAT_SUFFIXES, KEYS
from node.trainer.text.sources import TEXT_SUFFIXES
from node.trainer.text.table_files import JSON_SUFFIXES, PARQUET, first_fields
from protocol.errors import UserError
from shoal.common import choices
from shoal.common.choices import option, switch
from shoal.common.writing import write_new
from shoal.machine.voter_commands import VoterNetwork, run_syncer
from shoal.project import file_commands, project_file
from shoal.project.template import Value

TEXT_FIELDS: Final = ("text", "content")
"""Where a table's text is looked for."""

HELDOUT_SEQUENCES: Final = 16
"""So many are enough to see a held-out loss fall."""


def host(
    text: Annotated[Path, option("Your text or chats: a folder, or a file.")],
    *,
    name: Annotated[str, option("What the project is called.")],
    base: Annotated[
        str | None,
        Parameter(
            name="--from",
            help="Start from a published model, and train an adapter beside it: a folder with its "
            "safetensors, or hub:OWNER/NAME@REVISION.",
        ),
    ] = None,
    whole: Annotated[bool, switch("Train all of that model in place of an adapter.")] = False,
    about: Annotated[
        str, option("What it is for, in your words: the first thing on the project's page.")
    ] = "",
    private: Annotated[
        bool,
        switch("Send the text to nobody: each learner then needs a copy of its own."),
    ] = False,
    port: choices.Port = 4100,
    address: Annotated[
        tuple[str, ...],
        Parameter(
            name="--host-address",
            help="Address at which others reach this machine, such as "
            "/dns4/example.org/tcp/4100; repeatable.",
            negative="",
        ),
    ] = (),
    page: choices.PagePlace = None,
    home: choices.HomeHere,
) -> int:
    """Make a project of your own text, and host it until Ctrl-C."""
    place = _one_text(text.expanduser().absolute())
    path = Path(f"{_file_name(name)}.toml")
    if path.exists():
        _require_same(path, place)
        if about:
            print(f"--about is not read: change page.about in {path}, and run this again")
    else:
        asked: dict[str, Value] = {"data.publish": not private, "page.about": about}
        for line in _made(path, place, name, base, asked, is_whole=whole, home=home):
            print(line, flush=True)
    print(f"signing {path}: reads all of the text once", flush=True)
    for line in file_commands.sign(path, home=home):
        if line.startswith(NOTEWORTHY):
            print(line, flush=True)
    return run_syncer(path, port=port, network=VoterNetwork(announce=address), page=page, home=home)


NOTEWORTHY: Final = ("parameters", "adapter", "frozen", "tokens", "chats", "texts")
"""Lines of what signing says that a host reads once; the rest is in the file."""


def _file_name(name: str) -> str:
    """A name as part of a path."""
    found = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40]
    if not found:
        raise UserError(f"{name!r} has no letter or digit that a file could be called by.")
    return found


def _require_same(path: Path, place: Path) -> None:
    """UserError if the project there is one on other data."""
    known = project_file.read_file(path)
    if Path(known.data.location).expanduser().absolute() != place:
        raise UserError(
            f"{path} is a project on other data ({known.data.location}). Choose another name, or"
            f" host that one with: shoal syncer run {path}"
        )
    print(f"goes on with {path}", flush=True)


def _made(
    path: Path,
    place: Path,
    name: str,
    base: str | None,
    asked: dict[str, Value],
    *,
    is_whole: bool,
    home: Home,
) -> Iterator[str]:
    """Writes the project file; what there is to say of it. asked: values by dotted key."""
    _require_text(place)
    source = source_of(place)
    if source == "chats" and base is None:
        raise UserError(
            f"{place} holds chats, which a model answers that was trained before. Name one:"
            " --from FOLDER, or --from hub:OWNER/NAME@REVISION"
        )
    changes: dict[str, Value] = {
        "data.source": source,
        "data.location": str(place),
        "data.text_field": _text_field(place),
        **asked,
    }
    if base is not None:
        changes["data.tokenizer"] = "base"
    adapter = base is not None and not is_whole
    text, facts = file_commands.drafted(name, base=base, adapter=adapter, changes=changes)
    yield f"reads {place}"
    frac = _heldout_frac(project_file.parse(text, path), home)
    if frac is not None:
        changes["data.heldout_frac"] = frac
        text, facts = file_commands.drafted(name, base=base, adapter=adapter, changes=changes)
        yield f"{frac:.0%} of the texts are held out to measure progress, for there are few"
    write_new(path, text.encode())
    yield from (f"wrote {path}, with every setting explained", *facts)


def _require_text(place: Path) -> None:
    """UserError for a path that no project file can name, as that is text in UTF-8."""
    try:
        str(place).encode()
    except UnicodeEncodeError as error:
        raise UserError(
            f"The name {str(place)!r} has bytes that are no text in UTF-8. Rename it, or give a "
            "link to it: ln -s"
        ) from error


def source_of(place: Path) -> str:
    """What `data.source` is to be. UserError if nothing is there."""
    table = _table_at(place)
    if table is None:
        return "file" if place.is_file() else "folder"
    if set(_fields(table)) & set(KEYS):
        return "chats"
    if table.suffix != PARQUET and any(one.suffix in TEXT_SUFFIXES for one in place.rglob("*")):
        return "folder"  # Of programs, say, with their settings beside them.
    return "parquet" if table.suffix == PARQUET else "jsonl"


def _one_text(place: Path) -> Path:
    """The file itself, where a folder holds one text only: of one file a part is held out, and of
    one document all or nothing."""
    if not place.is_dir() or _table_at(place) is not None:
        return place
    texts = [one for one in place.rglob("*") if one.is_file() and one.suffix in TEXT_SUFFIXES]
    return texts[0] if len(texts) == 1 else place


def _table_at(place: Path) -> Path | None:
    """A file with rows there, if that is what it holds. UserError if nothing is there."""
    if place.is_file():
        return place if place.suffix in CHAT_SUFFIXES else None
    if not place.is_dir():
        raise UserError(f"There is neither a file nor a folder {place}. Correct the path.")
    found = sorted(one for one in place.rglob("*") if one.is_file())
    tables = [one for one in found if one.suffix == PARQUET]
    if not tables and not {one.suffix for one in found} & {".txt", ".md"}:
        tables = [one for one in found if one.suffix in JSON_SUFFIXES]
    return tables[0] if tables else None


def _fields(table: Path) -> tuple[str, ...]:
    """Of its first row; none if that cannot be told. UserError if it cannot be read."""
    try:
        return first_fields(table)
    except (OSError, ValueError) as error:
        raise UserError(f"{table} cannot be read ({error}).") from error


def _text_field(place: Path) -> str:
    """Where the text of a table is, as far as its first row says."""
    table = _table_at(place)
    known = _fields(table) if table is not None else ()
    return next((one for one in TEXT_FIELDS if one in known), TEXT_FIELDS[0])


def _heldout_frac(file: project_file.ProjectFile, home: Home) -> float | None:
    """What must be held out of few texts; None where the usual share will do."""
    from node.trainer.text.corpus import heldout_frac_for
    from node.trainer.text.tokenizer_files import pin_tokenizer
    from shoal.project import starting_point

    cache = home.data_cache()
    folder = starting_point.of(file.base).folder if file.base else None
    tokenizer = pin_tokenizer(file.data.tokenizer, folder, cache)
    return heldout_frac_for(
        file.data,
        HELDOUT_SEQUENCES,
        cache=cache,
        tokenizer=tokenizer,
        documents=file.documents,
    )
