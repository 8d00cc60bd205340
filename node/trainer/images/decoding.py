"""One picture as pixels of a fixed size, whoever wrote its file: bounded before it is unpacked."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from protocol.errors import UserError

FILE_BYTES_MAX: Final = 64 << 20
PIXELS_MAX: Final = 1 << 26
"""Of one picture as its file has it; a small file may claim to hold any number of them."""

FORMATS: Final = ("PNG", "JPEG")
"""The only decoders that are tried, whatever a file is called or claims to be."""

Pixels = NDArray[np.uint8]

_BROKEN: Final = (OSError, ValueError, SyntaxError, EOFError, ArithmeticError, LookupError)
"""What Pillow raises for bytes that are no picture of these formats."""


def read_file(path: Path) -> bytes:
    """The content of a picture's file. UserError if it cannot be read or is too large."""
    try:
        with path.open("rb") as handle:
            content = handle.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}).") from error
    if len(content) > FILE_BYTES_MAX:
        raise UserError(
            f"{path} is larger than {FILE_BYTES_MAX >> 20} MiB, the most that a picture may have."
            " Make it smaller, or take it out of the folder."
        )
    return content


def decode(content: bytes, name: str, *, height: int, width: int, channels: int) -> Pixels:
    """The picture, scaled to this size: u8 [channels, height, width].

    channels: 1 for grey, 3 for red, green and blue; a transparent part counts as its colour. name:
    of the file, for the error. UserError if it is no PNG or JPEG, is damaged, or has too many
    pixels. Memory: 4 bytes for each pixel in the file.
    """
    try:
        with Image.open(io.BytesIO(content), formats=FORMATS) as picture:
            if picture.width * picture.height > PIXELS_MAX:
                raise UserError(
                    f"{name} has {picture.width} x {picture.height} pixels, more than"
                    f" {PIXELS_MAX:,}. Make it smaller, or take it out of the folder."
                )
            if picture.mode[0] in "IF":
                raise ValueError("it has more than 8 bits in a channel")
            # Pillow can skip what scaling would throw away; it never goes below the size asked for.
            picture.draft(None, (width, height))
            plain = picture.convert("L" if channels == 1 else "RGB")
    except (*_BROKEN, Image.DecompressionBombError) as error:
        raise UserError(
            f"{name} is no PNG or JPEG that can be read ({error}). Replace it, or take it out of"
            " the folder."
        ) from error
    if plain.size != (width, height):
        plain = plain.resize((width, height), Image.Resampling.BILINEAR)
    pixels = np.asarray(plain, dtype=np.uint8)
    return pixels[None] if channels == 1 else np.ascontiguousarray(pixels.transpose(2, 0, 1))
