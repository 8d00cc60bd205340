from __future__ import annotations

import msgspec
import pytest

from protocol import limits, wire
from protocol.errors import BadSignature, MalformedMessage, WrongProject
from protocol.log.records import (
    NO_RECORD,
    CharterAdopted,
    Electorate,
    certify,
    counted_tokens,
    electorate,
    is_elected,
    majority,
    open_record,
    record_hash,
    seat_statement,
    sign_record,
)
from protocol.messages import CertifiedRecord, Vote
from protocol.project import Origin, Voter
from simulator.stand_ins.tiny import SimSigner, sim_verify
from tests.support.builders import (
    STRANGER,
    SYNCER,
    certified,
    contribution,
    digest_of,
    project,
    record,
    sealed_charter,
)

OTHERS = [SimSigner(f"voter {number}") for number in range(2)]
SOLE = project().charter
THREE_VOTERS = msgspec.structs.replace(
    SOLE, voters=(*SOLE.voters, *(Voter(other.key, "witness", 10) for other in OTHERS))
)


def opened(entry, charter=SOLE):
    return open_record(entry, project().project, charter, sim_verify)


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
    with pytest.raises(BadSignature, match="0 valid votes of 1 voters"):
        opened(certified(record(), STRANGER))


def test_too_few_votes_are_refused():
    with pytest.raises(BadSignature, match="1 valid votes of 3 voters"):
        opened(certified(record()), THREE_VOTERS)


def test_a_majority_is_enough():
    assert opened(certified(record(), SYNCER, OTHERS[1]), THREE_VOTERS) == record()


def test_a_vote_that_is_there_twice_counts_once():
    entry = certified(record())
    twice = with_certificate(entry, votes=entry.certificate.votes * 2)
    with pytest.raises(BadSignature, match="1 valid votes of 3 voters"):
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


# Who decides


A, B, C, D, E = (SimSigner(name) for name in "abcde")


def keys(*signers):
    return {signer.key for signer in signers}


def charter_of(*signers, revision=2, renewed=(), **changes):
    voters = tuple(Voter(one.key, "syncer", 50, int(one in renewed)) for one in signers)
    return msgspec.structs.replace(SOLE, voters=voters, revision=revision, **changes)


def adoption(of):
    return CharterAdopted(sealed_charter(of))


def test_a_majority_of_the_voters_decides_and_strangers_do_not_help():
    three = Electorate.of(charter_of(A, B, C).voters)
    assert three.has_enough(keys(A, B))
    assert not three.has_enough(keys(A))
    assert not three.has_enough(keys(A, D, E))
    assert three.has_enough(keys(A, C, D))


def test_unanimous_means_everybody():
    three = Electorate.unanimous(charter_of(A, B, C).voters)
    assert three.has_enough(keys(A, B, C))
    assert not three.has_enough(keys(A, B))


def test_a_change_of_voters_needs_a_majority_of_each_side():
    change = Electorate.change(charter_of(A, B, C), charter_of(C, D, E))
    assert change.has_enough(keys(A, C, D))
    assert change.has_enough(keys(A, B, D, E))
    assert not change.has_enough(keys(A, B, C))
    assert not change.has_enough(keys(C, D, E))


def test_a_charter_with_the_same_voters_needs_one_majority():
    change = Electorate.change(charter_of(A, B, C), charter_of(A, B, C, revision=3))
    assert change.has_enough(keys(B, C))
    assert not change.has_enough(keys(C))


def test_a_voter_whose_disk_is_renewed_has_no_say_in_that():
    change = Electorate.change(charter_of(A, B, C), charter_of(A, B, C, renewed=(C,)))
    assert change.has_enough(keys(A, B))
    assert not change.has_enough(keys(A, C))
    assert not change.has_enough(keys(B, C))


def test_two_of_three_voters_cannot_be_renewed_at_once():
    change = Electorate.change(charter_of(A, B, C), charter_of(A, B, C, renewed=(B, C)))
    assert not change.has_enough(keys(A, B, C))


def test_with_two_renewed_disks_the_others_still_meet_every_majority():
    """Of five, three may have signed; two of them are lost, so two others might know nothing."""
    five = charter_of(A, B, C, D, E)
    one = Electorate.change(five, charter_of(A, B, C, D, E, renewed=(E,)))
    assert one.has_enough(keys(A, B, C))
    assert not one.has_enough(keys(A, B))
    two = Electorate.change(five, charter_of(A, B, C, D, E, renewed=(D, E)))
    assert two.has_enough(keys(A, B, C))
    assert not two.has_enough(keys(A, B, D, E))


def test_everybody_proves_a_renewal_as_the_voters_do():
    """Half of an even number is enough with one that is renewed, for learners too."""
    former = charter_of(A, B, C, D)
    change = record(adoption(charter_of(A, B, C, D, revision=3, renewed=(D,))))
    assert opened(certified(change, A, B), former) == change
    with pytest.raises(BadSignature, match="2 valid votes of 4 voters, too few"):
        opened(certified(record(), A, B), former)
    with pytest.raises(BadSignature, match="1 valid votes"):
        opened(certified(change, A), former)


def test_a_joint_certificate_of_all_voters_fits():
    names = [SimSigner(f"voter {at}") for at in range(2 * limits.VOTERS_MAX)]
    change = certified(record(), *names)
    assert wire.decode(wire.encode(change), CertifiedRecord) == change


def test_only_a_charter_of_the_same_epoch_is_a_change():
    former = charter_of(A, B, C)
    following = charter_of(A, D, E, revision=3)
    assert electorate(adoption(following), former) == Electorate.change(former, following)
    origin = Origin(3, digest_of("head"))
    later = msgspec.structs.replace(following, epoch=1, origin=origin)
    assert electorate(adoption(later), following) == Electorate.of(following.voters)
    assert electorate(record().body, former) == Electorate.of(former.voters)


def test_the_former_voters_alone_cannot_prove_a_record_under_new_ones():
    former, following = charter_of(A, B, C), charter_of(C, D, E, revision=3)
    by_former = certified(record(), A, B, C)
    assert opened(by_former, former) == record()
    with pytest.raises(BadSignature, match="1 valid votes of 3 voters"):
        opened(by_former, following)
    assert opened(certified(record(), A, C, D), following) == record()


def test_a_change_of_the_charter_is_proven_by_both_sides_only():
    former, following = charter_of(A, B, C), charter_of(C, D, E, revision=3)
    change = record(adoption(following))
    with pytest.raises(BadSignature, match="change of the charter"):
        opened(certified(change, A, B, C), former)
    with pytest.raises(BadSignature, match="1 valid votes of 3 voters"):
        opened(certified(change, C, D, E), former)
    assert opened(certified(change, A, C, D), former) == change


def test_a_renewed_disk_does_not_help_to_prove_its_own_renewal():
    former, following = charter_of(A, B, C), charter_of(A, B, C, revision=3, renewed=(C,))
    change = record(adoption(following))
    with pytest.raises(BadSignature, match="change of the charter"):
        opened(certified(change, A, C), former)
    assert opened(certified(change, A, B), former) == change


# The seat


def votes_for(candidate, *signers, epoch=0, term=3):
    message = seat_statement(SOLE.project, epoch, term, candidate.key)
    return [Vote(signer.key, signer.sign(message)) for signer in signers]


def elected(candidate, votes, charter, *, epoch=0, term=3):
    return is_elected(
        candidate.key, epoch=epoch, term=term, votes=votes, charter=charter, verify=sim_verify
    )


def test_a_majority_of_signed_votes_proves_the_seat():
    three = charter_of(A, B, C)
    assert elected(A, votes_for(A, A, B), three)
    assert not elected(A, votes_for(A, A), three)
    assert not elected(A, votes_for(A, A, A, A), three)
    assert not elected(A, votes_for(A, A, D, E), three)
    assert not elected(A, [], three)


@pytest.mark.parametrize("place", [{"epoch": 1}, {"term": 4}])
def test_votes_of_another_term_or_epoch_prove_nothing(place):
    assert not elected(A, votes_for(A, A, B, **place), charter_of(A, B, C))
    assert not elected(A, votes_for(A, A, B), charter_of(A, B, C), **place)


def test_votes_for_somebody_else_or_forged_ones_prove_nothing():
    three = charter_of(A, B, C)
    assert not elected(A, votes_for(B, A, B), three)
    first, second = votes_for(A, A, B)
    assert not elected(A, [first, Vote(B.key, first.signature)], three)
    assert not elected(A, [Vote(A.key, second.signature), second], three)


def test_neither_a_witness_nor_a_former_voter_can_hold_the_seat():
    three = charter_of(A, B, C)
    witness = msgspec.structs.replace(three.voters[0], role="witness")
    with_witness = msgspec.structs.replace(three, voters=(witness, *three.voters[1:]))
    assert not elected(A, votes_for(A, A, B, C), with_witness)
    assert elected(B, votes_for(B, A, B), with_witness)
    assert not elected(D, votes_for(D, A, B, C), three)


def test_a_vote_for_the_seat_is_no_vote_for_a_record():
    message = seat_statement(SOLE.project, 0, 1, SYNCER.key)
    vote = Vote(SYNCER.key, SYNCER.sign(message))
    entry = certified(record())
    with pytest.raises(BadSignature):
        opened(with_certificate(entry, votes=(vote,)))


# Tokens that count.


def parts(*tokens, shares, trusts=None):
    """Pushes of one merge, each weighed by its tokens."""
    return [
        contribution(tokens=own, weight=float(own), share=share, trust=trust)
        for own, share, trust in zip(tokens, shares, trusts or [1.0] * len(tokens), strict=True)
    ]


def test_tokens_count_as_said_where_no_share_was_lessened():
    assert counted_tokens(parts(600, 300, 100, shares=(0.6, 0.3, 0.1))) == [600, 300, 100]
    # A part of the whole was lost with somebody's trust: the others' shares are as they were.
    made = parts(*[500] * 4, shares=(0.375, 0.375, 0.0, 0.0), trusts=(1.0, 1.0, 0.0, 0.0))
    assert counted_tokens(made) == [500, 500, 0, 0]
    assert counted_tokens(parts(500, shares=(0.75,), trusts=(0.5,))) == [250]
    assert counted_tokens(parts(500, 300, shares=(0.0, 0.0))) == [500, 300]  # A former version.


def test_what_did_not_count_adds_no_tokens():
    made = parts(500, 500, 500, shares=(0.5, 0.5, 0.0), trusts=(1.0, 1.0, 0.0))
    assert counted_tokens(made) == [500, 500, 0]


def test_a_push_that_claims_too_much_adds_what_its_share_is_worth():
    made = parts(50_000, 1_000, 1_000, 1_000, shares=(1 / 3, 2 / 9, 2 / 9, 2 / 9))
    assert counted_tokens(made) == [1_500, 1_000, 1_000, 1_000]


def test_two_that_claim_too_much_are_not_compared_with_one_another():
    made = parts(50_000, 90_000, 1_000, 1_000, shares=(1 / 3, 1 / 3, 1 / 6, 1 / 6))
    assert counted_tokens(made) == [2_000, 2_000, 1_000, 1_000]


def test_new_learners_cannot_spend_the_budget():
    made = parts(1_000, 1_000, 8_000, shares=(0.45, 0.45, 0.1))
    assert counted_tokens(made) == [1_000, 1_000, 222]


def test_nor_can_they_where_they_are_alone_in_a_merge():
    """It moves as little as they may, and so do its tokens."""
    assert counted_tokens(parts(8_000, shares=(0.1,))) == [800]
    assert counted_tokens(parts(6_000, 2_000, shares=(0.075, 0.025))) == [600, 200]
    made = parts(6_000, 2_000, 500, shares=(0.075, 0.025, 0.0), trusts=(1.0, 1.0, 0.0))
    assert sum(counted_tokens(made)) <= 800
