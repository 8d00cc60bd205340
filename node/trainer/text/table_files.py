"""Rows of files, each with its place for people: .jsonl, .json and .parquet.

A .jsonl file has a row on each line, a .json file is one row or a list of them, and a .parquet file
is read a thousand rows at a time. Light: it imports no model and no tokenizer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

FILE_BYTES_MAX: Final = 1 << 28
"""Of a .json file, which is read as a whole, and of a line of a .jsonl file."""
ROWS_AT_ONCE: Final = 1000
"""Of a .parquet file."""

JSON_SUFFIXES: Final = frozenset({".jsonl", ".json"})
PARQUET: Final = ".parquet"

Reader = Callable[[], Any]


def rows(path: Path, wanted: Collection[str]) -> Iterator[tuple[str, Reader]]:
    """Place of each row, and what gives its value, or raises ValueError or RecursionError for a row
    that is no JSON.

    wanted: columns that are read of a .parquet file, those of them that it has. OSError or
    ValueError if the file cannot be read.
    """
    if path.suffix == PARQUET:
        yield from _of_parquet(path, wanted)
    elif path.suffix == ".json":
        yield from _of_json(path)
    else:
        yield from _of_lines(path)


def columns(path: Path) -> tuple[str, ...]:
    """Names of the columns of a .parquet file. OSError or ValueError if it cannot be read."""
    from pyarrow import parquet

    with parquet.ParquetFile(path) as file:
        return tuple(file.schema_arrow.names)


def first_fields(path: Path) -> tuple[str, ...]:
    """Names of the fields of a file's first row; none if it has none, or is no table.

    OSError or ValueError if the file cannot be read.
    """
    if path.suffix == PARQUET:
        return columns(path)
    none: tuple[str, Reader] = ("", dict)
    _, read = next(rows(path, ()), none)
    try:
        row = read()
    except (ValueError, RecursionError):
        return ()
    return tuple(map(str, row)) if isinstance(row, dict) else ()


def _of_parquet(path: Path, wanted: Collection[str]) -> Iterator[tuple[str, Reader]]:
    from pyarrow import parquet

    with parquet.ParquetFile(path) as file:
        names = [one for one in file.schema_arrow.names if one in wanted]
        number = 0
        for batch in file.iter_batches(batch_size=ROWS_AT_ONCE, columns=names):
            for row in batch.to_pylist():
                number += 1
                yield f"{path.name} row {number}", partial(_given, row)


def _of_lines(path: Path) -> Iterator[tuple[str, Reader]]:
    with path.open("rb") as handle:
        number = 0
        while line := handle.readline(FILE_BYTES_MAX):
            number += 1
            if line.strip():
                yield f"{path.name} line {number}", partial(json.loads, line)


def _of_json(path: Path) -> Iterator[tuple[str, Reader]]:
    if path.stat().st_size > FILE_BYTES_MAX:
        raise OSError(f"{path} is larger than {FILE_BYTES_MAX:,} bytes; write it as .jsonl")
    try:
        said = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        yield path.name, partial(_raise, error)
        return
    if not isinstance(said, list):
        yield path.name, partial(_given, said)
        return
    for number, one in enumerate(said, 1):
        yield f"{path.name} entry {number}", partial(_given, one)


def _given(value: object) -> object:
    return value


def _raise(error: Exception) -> None:
    raise error
