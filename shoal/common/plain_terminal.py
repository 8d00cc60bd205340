"""Output where the locale has few characters: the nearest that it has, in place of an error.

Without a locale Python writes UTF-8. Some terminals use Latin-1, though, and some paths have bytes
that are no text in any encoding.
"""

from __future__ import annotations

import codecs
import io
import sys

HANDLER = "shoal-plain"


def use_stand_ins() -> None:
    """From now on whatever this process prints can be printed."""
    codecs.register_error(HANDLER, _nearest)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=HANDLER)


def is_plain() -> bool:
    """Whether this process' output cannot show what screens are drawn with."""
    try:
        "\u2588\u2026".encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return True
    return False


def _nearest(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    from tui.text.plain import plain

    return plain(error.object[error.start : error.end]), error.end
