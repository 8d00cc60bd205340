"""What others wrote, as a page may show it."""

from __future__ import annotations

import ipaddress
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.page import words

ANY = st.text(max_size=400)
ADDRESSES = st.ip_addresses().map(str)


@given(ANY, st.integers(1, 64))
def test_a_line_is_one_and_short_and_all_of_it_can_be_seen(text, most):
    shown = words.line(text, most)
    assert len(shown) <= most
    hidden = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
    assert [char for char in shown if unicodedata.category(char) in hidden] == []
    assert words.line(shown, most) == shown


@given(ANY)
def test_paragraphs_hold_what_a_line_would_and_none_is_empty(text):
    found = words.paragraphs(text, 400)
    assert all(one and one == words.line(one, 400) for one in found)


def test_marks_that_turn_text_around_and_colours_of_a_terminal_are_gone():
    assert words.line("abc\u202edef\x1b[31mred\u200b", 64) == "abcdef[31mred"
    assert words.lines("one\u2028\n\ttwo", 64) == "one\n    two"


@given(ADDRESSES, st.sampled_from(["{}", "from {}.", "at {}, now", "({})", "[{}]", "{}/24 too"]))
def test_no_address_is_left_in_a_sentence(address, around):
    shown = words.public(around.format(address), 600)
    assert address not in shown
    assert words.ADDRESS in shown


@given(ADDRESSES, st.integers(1, 65535))
def test_nor_one_of_the_network_library(address, port):
    kind = "ip6" if ":" in address else "ip4"
    shown = words.public(f"dialling /{kind}/{address}/tcp/{port} failed", 600)
    assert shown == f"dialling {words.PATH} failed"
    assert not any(ipaddress.ip_address(address) == one for one in _addresses(shown))


def _addresses(text: str) -> list[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    found = []
    for word in text.split():
        try:
            found.append(ipaddress.ip_address(word))
        except ValueError:
            continue
    return found


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("Full disk: /home/ada/.local/share/shoal/log.", "Full disk: (path withheld)."),
        ("Cannot write '~/shoal/x': no space", "Cannot write '(path withheld)': no space"),
        ("5 of 8 learners come from 203.0.113.0/24.", "5 of 8 learners come from "
         "(address withheld)."),
        ("All is well. 4,100 tokens/s since 14:03:59.", "All is well. 4,100 tokens/s since "
         "14:03:59."),
        ("2/3 voters of north/ada", "2/3 voters of north/ada"),
    ],
)  # fmt: skip
def test_a_sentence_tells_nothing_of_a_machine(said, shown):
    assert words.public(said, 600) == shown
