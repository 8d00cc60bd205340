"""The one filter language of all tables: every word must occur; a word after `!` must not."""

from __future__ import annotations


def matches(wanted: str, text: str) -> bool:
    """Whether the text has all words wanted and none of those excluded, whatever the case."""
    lowered = text.casefold()
    for word in wanted.casefold().split():
        if word.startswith("!"):
            if len(word) > 1 and word[1:] in lowered:
                return False
        elif word not in lowered:
            return False
    return True
