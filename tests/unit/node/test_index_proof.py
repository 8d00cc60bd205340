"""What a joiner believes of an index, and under whose votes."""

from __future__ import annotations

import msgspec
import pytest

from node.machine.index_proof import prove_index, read_charter
from protocol import wire
from protocol.errors import BadSignature, MalformedMessage, UnexpectedMessage, WrongProject
from protocol.log.records import SeatTaken
from protocol.project import Voter, encode
from protocol.signing import seal
from simulator.stand_ins.tiny import SimSigner, sim_verify
from tests.support.builders import (
    FRAGMENTS,
    STRANGER,
    SYNCER,
    Log,
    certified,
    digest_of,
    merged,
    project,
    sealed_charter,
    weights,
)

A, B, C = (SimSigner(name) for name in "abc")


def charter_of(*signers, revision=2):
    voters = tuple(Voter(signer.key, "syncer", 50) for signer in signers)
    return msgspec.structs.replace(project().charter, voters=voters, revision=revision)


SOLE, TRIO, LATER = project().charter, charter_of(A, B, C), charter_of(C, revision=3)


@pytest.fixture
def log():
    """Weights and one merge."""
    return Log(SeatTaken(SYNCER.key), weights(), merged())


def origins(log, *voters_of_each):
    """The origins of all fragments, each certified by these signers."""
    indices = sorted({fragment.record_index for fragment in log.state.fragments})
    return [
        certified(log.records[index - 1], *signers)
        for index, signers in zip(indices, voters_of_each, strict=True)
    ]


def prove(log, entries, *charters, **changes):
    return prove_index(
        msgspec.structs.replace(log.index(), **changes),
        entries,
        adopted=log.state.charters,
        charters=list(charters),
        fragments=FRAGMENTS,
        block_sequences=log.state.block_sequences,
        verify=sim_verify,
    )


def assert_believed(log, state):
    """The log's state, but for the accounts, which an index leaves out."""
    assert state.summary() == log.state.summary(with_accounts=False)


def test_an_index_under_the_charter_of_now_is_believed(log):
    assert_believed(log, prove(log, list(log.origins()), SOLE))


def test_origins_certified_under_a_former_charter_are_believed_with_that_charter(log):
    entries = origins(log, (SYNCER,), (A, B))
    assert_believed(log, prove(log, entries, TRIO, SOLE))
    assert_believed(log, prove(log, entries, LATER, SOLE, TRIO))


def test_former_voters_prove_nothing_where_their_charter_is_not_shown(log):
    entries = origins(log, (SYNCER,), (A, B))
    with pytest.raises(BadSignature, match="0 valid votes of 3 voters"):
        prove(log, entries, TRIO)


def test_votes_of_several_charters_do_not_add_up(log):
    entries = origins(log, (SYNCER,), (A, STRANGER))
    with pytest.raises(BadSignature):
        prove(log, entries, charter_of(B, C, STRANGER), SOLE, TRIO)


def test_an_origin_that_is_missing_ends_it(log):
    with pytest.raises(BadSignature, match="no certificate for fragment 0"):
        prove(log, list(log.origins())[:1], SOLE)


def test_origins_that_nobody_needs_do_no_harm(log):
    entries = [certified(log.records[0]), *log.origins()]
    assert_believed(log, prove(log, entries, SOLE))


def test_a_summary_that_is_of_another_place_is_refused(log):
    with pytest.raises(UnexpectedMessage):
        prove(log, list(log.origins()), SOLE, head=digest_of("other"))
    with pytest.raises(UnexpectedMessage):
        prove(log, list(log.origins()), SOLE, log_index=99)


def test_a_summary_that_does_not_decode_is_refused(log):
    with pytest.raises(MalformedMessage):
        prove(log, list(log.origins()), SOLE, summary=b"\xc1")


def test_a_version_that_the_origin_does_not_name_is_refused(log):
    summary = log.state.summary(with_accounts=False)
    first, *others = summary.fragments
    lied = (msgspec.structs.replace(first, version=2), *others)
    encoded = wire.encode(msgspec.structs.replace(summary, fragments=lied))
    with pytest.raises(BadSignature, match="fragment 0"):
        prove(log, list(log.origins()), SOLE, summary=encoded)


# Charters


def read(envelope):
    tiny = project()
    return read_charter(envelope, project=tiny.project, owner=tiny.genesis.owner, verify=sim_verify)


def test_a_charter_of_the_owner_is_read():
    assert read(sealed_charter(TRIO)) == TRIO


def test_a_charter_of_a_voter_is_not_the_owners():
    forged = seal("charter", project().project, encode(TRIO), SYNCER)
    with pytest.raises(BadSignature):
        read(forged)


def test_a_charter_for_another_project_is_refused():
    other = msgspec.structs.replace(TRIO, project=digest_of("other"))
    with pytest.raises(WrongProject):
        read(sealed_charter(other))
