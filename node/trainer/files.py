"""Genesis, charter and weight files, and what a trainer remembers: read, and written whole."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from host.runtime.atomic_files import replacing
from protocol import decoders
from protocol.errors import UserError
from protocol.fragments import Layout
from protocol.project import Charter, Genesis

Floats = NDArray[np.float32]
D = TypeVar("D", Genesis, Charter)


def read_document(path: Path, kind: type[D]) -> D:
    """The genesis or charter in a file. UserError if it cannot be read or is another thing."""
    try:
        return decoders.msgpack_decoder(kind).decode(path.read_bytes())
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        raise UserError(
            f"{path} is not a readable {kind.__name__.lower()} file ({error}). Check the path."
        ) from error


def write_fragments(fragments: Sequence[Floats], path: Path) -> None:
    """Writes `fragment.0000`, `fragment.0001`, ... as flat f32 safetensors, all or nothing.

    UserError if the file cannot be written.
    """
    named = {_name(index): values for index, values in enumerate(fragments)}
    with _replacing(path) as partial:  # Straight from the arrays: their bytes are not copied.
        save_file(named, partial, metadata={"format": "shoal-fragments-1"})


def read_fragments(path: Path, layout: Layout) -> list[Floats]:
    """What `write_fragments` wrote. UserError if the file is not of this layout."""
    try:
        named = load_file(path)
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path} is not a readable weight file ({error}).") from error
    fragments = [named.get(_name(fragment.index)) for fragment in layout.fragments]
    complete = [values for values in fragments if values is not None]
    sizes = [(fragment.numel,) for fragment in layout.fragments]
    if [values.shape for values in complete] != sizes or len(named) != len(sizes):
        raise UserError(f"{path} holds other fragments than this project's model has.")
    return [np.asarray(values, dtype=np.float32) for values in complete]


def write_atomically(path: Path, content: bytes) -> None:
    """Replaces `path` by `content` on disk, or leaves it as it was. UserError if it cannot."""
    with _replacing(path) as partial:
        partial.write_bytes(content)


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """A file to write, which then replaces `path` on disk."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as partial:
            yield partial
    except (OSError, SafetensorError) as error:
        raise UserError(
            f"{path} cannot be written ({error}). Free disk space or move it."
        ) from error


def _name(index: int) -> str:
    return f"fragment.{index:04d}"
