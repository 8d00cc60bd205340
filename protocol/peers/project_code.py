"""The code of a project: four words by which two people see that they mean the same one.

The words say 40 bits of a slow hash of the project's id. Somebody who wants a project of his own
with the code of another must try a trillion ids, and each try takes as long as `scrypt` does.
"""

from __future__ import annotations

import hashlib
from difflib import get_close_matches
from functools import lru_cache
from typing import Final

from protocol.errors import UserError
from protocol.peers.code_words import CODE_WORDS

WORDS_IN_CODE: Final = 4
_BITS: Final = 10
_COST: Final = {"n": 1 << 13, "r": 8, "p": 1}
"""About 20 ms and 8 MiB. Part of what a code means: never to be changed."""

_SALT: Final = b"shoal 1 project code"
_CODE_CHARS_MAX: Final = 200


@lru_cache(maxsize=256)
def code_of(project: bytes) -> str:
    """The code of a project's id, as `otter-lamp-river-stone`."""
    drawn = hashlib.scrypt(project, salt=_SALT, dklen=WORDS_IN_CODE * _BITS // 8, **_COST)
    number = int.from_bytes(drawn)
    places = ((number >> _BITS * at) % len(CODE_WORDS) for at in reversed(range(WORDS_IN_CODE)))
    return "-".join(CODE_WORDS[place] for place in places)


def nearby_command(project: bytes) -> str:
    """What somebody on the same network types to join."""
    return f"shoal join --nearby {code_of(project)}"


def is_code(text: str) -> str | None:
    """The code that this text is, as `code_of` gives it; None where it is none."""
    try:
        return read_code(text)
    except UserError:
        return None


def read_code(text: str) -> str:
    """A code as people type it, in the form that `code_of` gives.

    UserError where it is none; it names the word that is wrong and those that are near.
    """
    if len(text) > _CODE_CHARS_MAX:
        raise UserError(f"A code has four words; this text has {len(text)} characters.")
    words = text.lower().replace("-", " ").replace("_", " ").replace(",", " ").split()
    for word in words:
        if word not in CODE_WORDS:
            near = get_close_matches(word, CODE_WORDS, n=3)
            hint = f" Perhaps {' or '.join(near)}?" if near else ""
            raise UserError(f"{word!r} is not a word of any code.{hint}")
    if len(words) != WORDS_IN_CODE:
        raise UserError(
            f"A code has four words, such as otter-lamp-river-stone; this has {len(words)}."
        )
    return "-".join(words)
