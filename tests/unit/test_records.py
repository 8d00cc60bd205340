from __future__ import annotations

import msgspec
import pytest

from protocol import wire
from protocol.errors import BadSignature, MalformedMessage, WrongProject
from protocol.messages import CertifiedRecord
from protocol.project import Voter
from protocol.records import NO_RECORD, certify, majority, open_record, record_hash, sign_record
from simulator.tiny import SimSigner, sim_verify
from tests.builders import STRANGER, SYNCER, certified, digest_of, project, record

OTHERS = [SimSigner(f"voter {number}") for number in range(2)]
SOLE = (Voter(SYNCER.key, "syncer", 50),)
THREE_VOTERS = (*SOLE, *(Voter(other.key, "witness", 10) for other in OTHERS))


def opened(entry, voters=SOLE):
    return open_record(entry, project().project, voters, sim_verify)


def with_certificate(entry, **changes):
    certificate = msgspec.structs.replace(entry.certificate, **changes)
    return CertifiedRecord(entry.record, certificate)


def test_a_certified_record_opens():
    assert opened(certified(record())) == record()


def test_a_certificate_for_another_record_is_refused():
    one, other = certified(record()), certified(record(at_s=1.0))
    with pytest.raises(BadSignature, match="another record"):
        opened(CertifiedRecord(one.record, other.certificate))


def test_a_vote_of_somebody_who_is_no_voter_does_not_count():
    with pytest.raises(BadSignature, match="0 valid votes, 1 needed"):
        opened(certified(record(), STRANGER))


def test_too_few_votes_are_refused():
    with pytest.raises(BadSignature, match="1 valid votes, 2 needed"):
        opened(certified(record()), THREE_VOTERS)


def test_a_majority_is_enough():
    assert opened(certified(record(), SYNCER, OTHERS[1]), THREE_VOTERS) == record()


def test_a_vote_that_is_there_twice_counts_once():
    entry = certified(record())
    twice = with_certificate(entry, votes=entry.certificate.votes * 2)
    with pytest.raises(BadSignature, match="1 valid votes, 2 needed"):
        opened(twice, THREE_VOTERS)


def test_a_vote_with_a_wrong_signature_does_not_count():
    entry = certified(record(), SYNCER, OTHERS[0])
    first, second = entry.certificate.votes
    swapped = (
        msgspec.structs.replace(first, signature=second.signature),
        msgspec.structs.replace(second, signature=first.signature),
    )
    with pytest.raises(BadSignature, match="0 valid votes"):
        opened(with_certificate(entry, votes=swapped), THREE_VOTERS)


def test_surplus_votes_of_strangers_do_no_harm():
    assert opened(certified(record(), STRANGER, SYNCER)) == record()


@pytest.mark.parametrize("field", ["epoch", "term", "index"])
def test_a_certificate_that_states_another_place_is_refused(field):
    entry = certified(record())
    moved = with_certificate(entry, **{field: 7})
    with pytest.raises(BadSignature):
        opened(moved)


@pytest.mark.parametrize("field", ["epoch", "term", "index"])
def test_votes_for_another_place_do_not_carry_a_record(field):
    # The voters did sign these bytes, but under another epoch, term or index than they state.
    inside = record()
    encoded = wire.encode(inside)
    stated = msgspec.structs.replace(inside, **{field: 7})
    vote = sign_record(stated, record_hash(encoded), SYNCER)
    entry = CertifiedRecord(encoded, certify(stated, record_hash(encoded), [vote]))
    with pytest.raises(MalformedMessage, match="disagree"):
        opened(entry)


def test_a_record_of_another_project_is_refused_even_with_votes():
    foreign = record(project=digest_of("another project"))
    encoded = wire.encode(foreign)
    digest = record_hash(encoded)
    # Signed as if it were ours: the signature is sound, the content is not.
    vote = sign_record(record(), digest, SYNCER)
    entry = CertifiedRecord(encoded, certify(record(), digest, [vote]))
    with pytest.raises(WrongProject):
        opened(entry)


def test_votes_of_another_project_do_not_count():
    with pytest.raises(BadSignature):
        opened(certified(record(project=digest_of("another project"))))


def test_bytes_that_are_no_record_are_malformed_even_with_votes():
    encoded = wire.encode(record()) + b"\x00"
    digest = record_hash(encoded)
    vote = sign_record(record(), digest, SYNCER)
    with pytest.raises(MalformedMessage):
        opened(CertifiedRecord(encoded, certify(record(), digest, [vote])))


def test_a_certificate_has_one_encoding_whatever_the_order_of_votes():
    digest = record_hash(wire.encode(record()))
    votes = [sign_record(record(), digest, signer) for signer in (SYNCER, *OTHERS)]
    assert certify(record(), digest, votes) == certify(record(), digest, reversed(votes))


def test_any_two_majorities_share_a_voter():
    assert [majority(voters) for voters in range(1, 8)] == [1, 2, 2, 3, 3, 4, 4]
    assert all(2 * majority(voters) > voters for voters in range(1, 16))


def test_the_hash_of_a_record_depends_on_every_field():
    changes = [
        {},
        {"project": digest_of(1)},
        {"epoch": 1},
        {"term": 2},
        {"index": 2},
        {"previous": digest_of(2)},
        {"at_s": 1.0},
    ]
    hashes = {record_hash(wire.encode(record(**change))) for change in changes}
    assert len(hashes) == len(changes)
    assert NO_RECORD not in hashes
