"""Charters in the log: which are kept, and that they are told whole however long they are."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol import limits, wire
from protocol.log.batching import index_parts
from protocol.log.records import CharterAdopted
from protocol.messages import IndexPart
from tests.support.builders import FRAGMENTS, digest_of, founded, merged, sealed_charter, weights

bans = st.integers(0, 40)
merges = st.builds(lambda fragment: ("merge", fragment), st.integers(0, FRAGMENTS - 1))
revisions = st.builds(lambda banned: ("charter", banned), bans)
histories = st.lists(st.one_of(merges, revisions), max_size=16)


def written(history):
    """The log of these merges and revisions, and every charter in it by its index."""
    log = founded(weights())
    adopted = {record.index: record.body.charter for record in log.records if is_charter(record)}
    for what, number in history:
        if what == "merge":
            version = log.state.fragments[number].version + 1
            step = log.state.global_step + 1
            log.add(merged(fragment=number, version=version, global_step=step))
            continue
        banned = tuple(digest_of(f"stranger {at}") for at in range(number))
        charter = msgspec.structs.replace(
            log.tiny.charter, revision=2 + len(log.records), banned=banned
        )
        log.add(CharterAdopted(sealed_charter(charter, log.tiny)))
        adopted[log.state.index] = log.records[-1].body.charter
    return log, adopted


def is_charter(record):
    return isinstance(record.body, CharterAdopted)


@given(histories)
def test_those_are_kept_under_which_a_newest_version_was_made_and_the_one_in_force(history):
    log, adopted = written(history)
    made = [
        max(index for index in adopted if index < fragment.record_index)
        for fragment in log.state.fragments
    ]
    kept = sorted({*made, max(adopted)})
    assert [(one.index, one.charter) for one in log.state.charters] == [
        (index, adopted[index]) for index in kept
    ]


@given(histories, st.integers(600, 4000), st.integers(1, 3))
def test_who_asks_for_the_rest_is_told_everything_once(history, bytes_max, at_once):
    """In messages that are short, but for one that is a single charter or record."""
    log, _ = written(history)
    told, after = [], 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "ENTRIES_BYTES_MAX", bytes_max)
        while True:
            origins = [one for one in log.origins() if one.certificate.index > after]
            charters = [one for one in log.state.charters if one.index > after]
            parts = list(index_parts(origins, charters))[:at_once]
            if not parts:
                break
            for part in parts:
                sent = wire.decode_message(wire.encode(part))
                assert isinstance(sent, IndexPart)
                count = len(sent.entries) + len(sent.charters)
                assert count == 1 or len(wire.encode(sent)) <= bytes_max
                told.append(sent)
            last = [one.certificate.index for one in told[-1].entries]
            after = max(last + [one.index for one in told[-1].charters])
    assert [one for part in told for one in part.charters] == log.state.charters
    assert tuple(one for part in told for one in part.entries) == log.origins()
