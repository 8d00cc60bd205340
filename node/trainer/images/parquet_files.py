"""Images in rows of .parquet files, as data sets of images are published: unpacked into files.

A row has the file of a picture, as bytes or as `{bytes, path}`, in a column `image`, and its class
in a column `label`: a name, or a number. What numbers mean may stand in the table's own notes, as
`datasets` writes them there; otherwise a number is its own name.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from protocol.errors import UserError

SUFFIX: Final = ".parquet"
IMAGE_COLUMNS: Final = ("image", "img")
LABEL_COLUMNS: Final = ("label", "labels")
ROWS_AT_ONCE: Final = 64
NOTES: Final = b"huggingface"
"""Key under which `datasets` describes the columns of a table."""


def tables_at(root: Path) -> list[Path]:
    """The .parquet files there, sorted; none if that is no file of them and no folder of them."""
    if root.is_file():
        return [root] if root.suffix == SUFFIX else []
    return sorted(root.rglob(f"*{SUFFIX}"))


def count(tables: Sequence[Path]) -> int:
    """Rows of these files. UserError if one cannot be read."""
    return sum(_opened(path).metadata.num_rows for path in tables)


def class_names(tables: Sequence[Path]) -> tuple[str, ...]:
    """Names of the classes: in the order of the notes, or sorted. UserError if there are none."""
    noted = {_noted(path) for path in tables}
    if len(noted) == 1 and (names := noted.pop()):
        return names
    labels = {label for path in tables for label in _labels(path)}
    numbers = sorted(one for one in labels if isinstance(one, int))
    return (*map(str, numbers), *sorted(one for one in labels if isinstance(one, str)))


def unpacked(
    tables: Sequence[Path], classes: Sequence[str], folder: Path
) -> Iterator[tuple[Path, int]]:
    """Writes each picture into a file of `folder`; the file and its class.

    UserError for a row without a picture, or of a class that is not one of these.
    """
    number = 0
    for path in tables:
        noted = _noted(path)
        for place, picture, label in _rows(path):
            name = _name(label, noted, place)
            if name not in classes:
                raise UserError(
                    f"{place} has the class {name!r}, which is no class of this project: it has"
                    f" {', '.join(classes[:20])}{' and others' if len(classes) > 20 else ''}."
                )
            target = folder / f"{number} of {place}"
            target.write_bytes(picture)
            number += 1
            yield target, classes.index(name)


def _opened(path: Path) -> Any:
    from pyarrow import parquet

    try:
        return parquet.ParquetFile(path)
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}).") from error


def _columns(path: Path) -> tuple[str, str]:
    """Names of the columns with pictures and with classes. UserError if one is missing."""
    known = _opened(path).schema_arrow.names
    found = [
        next((one for one in wanted if one in known), None)
        for wanted in (IMAGE_COLUMNS, LABEL_COLUMNS)
    ]
    for one, wanted, what in zip(
        found, (IMAGE_COLUMNS, LABEL_COLUMNS), ("picture", "class"), strict=True
    ):
        if one is None:
            raise UserError(
                f"{path.name} has no column {' or '.join(wanted)} with the {what} of each row; its"
                f" columns are {', '.join(sorted(known))}."
            )
    return str(found[0]), str(found[1])


def _noted(path: Path) -> tuple[str, ...]:
    """What the numbers of classes mean, by the table's notes; empty if they do not say."""
    notes = (_opened(path).schema_arrow.metadata or {}).get(NOTES)
    try:
        names = json.loads(notes or b"{}")["info"]["features"][_columns(path)[1]]["names"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return ()  # Notes are a convenience; without them a number is its own name.
    return tuple(map(str, names)) if isinstance(names, list) else ()


def _labels(path: Path) -> set[int | str]:
    column = _columns(path)[1]
    table = _opened(path).read(columns=[column])
    found = set(table.column(column).to_pylist())
    odd = [one for one in found if not isinstance(one, int | str)]
    if odd:
        raise UserError(
            f"{path.name} has {odd[0]!r} as a class in the column {column!r}, where a name or a"
            " number is wanted."
        )
    return found


def _rows(path: Path) -> Iterator[tuple[str, bytes, object]]:
    """Place, content of the picture's file, and class."""
    image, label = _columns(path)
    number = 0
    for batch in _opened(path).iter_batches(batch_size=ROWS_AT_ONCE, columns=[image, label]):
        for row in batch.to_pylist():
            number += 1
            place, held = f"{path.name} row {number}", row[image]
            picture = held.get("bytes") if isinstance(held, dict) else held
            if not isinstance(picture, bytes):
                raise UserError(
                    f"{place} has no picture in the column {image!r}: its file is wanted there, as"
                    " bytes."
                )
            yield place, picture, row[label]


def _name(label: object, noted: tuple[str, ...], place: str) -> str:
    if noted and isinstance(label, int):
        if 0 <= label < len(noted):
            return noted[label]
        raise UserError(f"{place} has the class {label}; they are numbered 0 to {len(noted) - 1}.")
    return str(label)
