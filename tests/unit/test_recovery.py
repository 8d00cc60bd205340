from __future__ import annotations

import pytest

from protocol.errors import CorruptState
from protocol.project import Voter
from protocol.records import SeatTaken, open_record
from protocol.state import SwarmState
from simulator.tiny import SimSigner, sim_verify
from syncer_node.recovery import recertify, refold
from tests.builders import STRANGER, SYNCER, Log, merged, project, weights

SOLE = project().charter.voters


@pytest.fixture
def log():
    return Log(SeatTaken(SYNCER.key), weights(), merged(), merged(fragment=1, global_step=2))


def folded(records):
    state, seen = SwarmState(project().genesis.data.block_sequences), []
    refold(state, records, seen.append)
    return state, seen


def test_the_sole_voter_makes_the_identical_certificate_again(log):
    for entry in log.entries:
        assert recertify(entry.record, None, SYNCER, SOLE) == entry


def test_a_kept_certificate_is_taken_as_it_is(log):
    entry = log.entries[0]
    assert recertify(entry.record, entry.certificate, STRANGER, SOLE) == entry


def test_who_is_no_voter_cannot_make_one(log):
    assert recertify(log.encoded[0], None, STRANGER, SOLE) is None


def test_one_of_several_voters_cannot_make_one_alone(log):
    voters = (*SOLE, *(Voter(SimSigner(f"v{n}").key, "witness", 1) for n in range(2)))
    assert recertify(log.encoded[0], None, SYNCER, voters) is None


def test_what_was_made_again_opens_like_any_other(log):
    entry = recertify(log.encoded[2], None, SYNCER, SOLE)
    assert open_record(entry, project().project, SOLE, sim_verify) == log.records[2]


def test_stored_records_fold_to_the_state_and_name_each_merge(log):
    state, seen = folded(log.encoded)
    assert state == log.state
    assert seen == [log.records[2].body, log.records[3].body]


@pytest.mark.parametrize(
    "broken",
    [
        pytest.param(lambda records: records[1:], id="start missing"),
        pytest.param(lambda records: records[:1] + records[2:], id="one missing"),
        pytest.param(lambda records: [records[0], *records], id="one twice"),
        pytest.param(lambda records: [records[0], records[2], records[1]], id="swapped"),
    ],
)
def test_a_broken_chain_is_refused(log, broken):
    with pytest.raises(CorruptState, match="the stored log breaks at record"):
        folded(broken(log.encoded))


def test_a_record_of_another_history_is_refused(log):
    other = Log(SeatTaken(STRANGER.key), weights())
    with pytest.raises(CorruptState):
        folded([log.encoded[0], other.encoded[1]])
