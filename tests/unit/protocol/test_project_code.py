"""The code of a project: four words that say the same on both sides."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.errors import UserError
from protocol.peers.code_words import CODE_WORDS
from protocol.peers.project_code import code_of, nearby_command, read_code

projects = st.binary(min_size=32, max_size=32)


def test_every_word_stands_for_ten_bits():
    assert len(CODE_WORDS) == len(set(CODE_WORDS)) == 1 << 10
    assert list(CODE_WORDS) == sorted(CODE_WORDS)
    assert all(word.isascii() and word.isalpha() and word.islower() for word in CODE_WORDS)
    assert all(3 <= len(word) <= 10 for word in CODE_WORDS)


def test_what_a_code_means_never_changes():
    """Hosts of different versions show the same words."""
    assert code_of(bytes(32)) == "freckle-castle-shrimp-curtain"
    assert code_of(bytes(range(32))) == "plate-frog-stadium-reindeer"


@settings(max_examples=20, deadline=None)
@given(projects, projects)
def test_codes_are_read_as_they_are_shown_and_tell_projects_apart(one, other):
    code = code_of(one)
    assert read_code(code) == code
    assert (code_of(other) == code) == (one == other)


@pytest.mark.parametrize(
    "typed",
    ["Otter-Lamp-River-Stone", " otter lamp  river stone\n", "otter_lamp_river_stone",
     "otter, lamp, river, stone"],
)  # fmt: skip
def test_people_type_codes_in_their_own_way(typed):
    assert read_code(typed) == "otter-lamp-river-stone"


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("otter-lamp-rivver-stone", "'rivver' is not a word of any code. Perhaps river"),
        ("otter-lamp-river", "this has 3"),
        ("otter-lamp-river-stone-otter", "this has 5"),
        ("", "this has 0"),
        ("shoal:abc", "'shoal:abc' is not a word of any code."),
        ("otter " * 100, "this text has 600 characters"),
    ],
)
def test_what_is_no_code_is_told_in_one_line(typed, words):
    with pytest.raises(UserError) as caught:
        read_code(typed)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_command_is_what_somebody_types():
    assert nearby_command(bytes(32)) == f"shoal join --nearby {code_of(bytes(32))}"
