"""Who answers a question on the same network, how often, and what of it is believed."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from host.files import keystore
from protocol import wire
from protocol.errors import BadSignature, LimitExceeded, MalformedMessage, RemoteError
from protocol.peers import nearby
from protocol.peers.nearby import NearbyAnswering, NearbyNotice, NearbySearch
from protocol.signing import verify_ed25519

NONCE = bytes(range(16))
PROJECT = bytes(range(32))
OTHER = bytes(32)


@pytest.fixture(scope="module")
def signers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys")
    return [keystore.load_or_create(folder / f"{number}.key") for number in range(12)]


def notice(**changes):
    plain = NearbyNotice(NONCE, 4321, "My project", (), 4100, "syncer", "text", 800_000, 3, "open")
    return msgspec.structs.replace(plain, **changes)


def search(*, wanted=None, began_s=0.0):
    return NearbySearch(NONCE, verify_ed25519, began_s, wanted)


def answering():
    return NearbyAnswering(lambda: 0.5)


def test_what_a_host_says_arrives(signers):
    look = search()
    told = notice(addresses=("/ip4/203.0.113.7/tcp/4100/p2p/x",), admission="invite")
    look.take(nearby.answer(PROJECT, told, signers[0]), "192.0.2.7")
    (found,) = look
    assert found.project == PROJECT
    assert found.notice == told
    (host,) = found.hosts.values()
    assert (host.key, host.places) == (signers[0].key, (("192.0.2.7", 4100),))
    assert look.refused == 0


def test_the_longest_notice_is_one_packet(signers):
    """Four bytes for each character of a name, and addresses as long as they may be."""
    address = "/dns4/" + "a" * (nearby.ADDRESS_CHARS_MAX - 6)
    longest = notice(name="\U0001f419" * 64, addresses=(address,) * nearby.ADDRESSES_TOLD_MAX)
    assert len(nearby.answer(PROJECT, longest, signers[0])) <= nearby.DATAGRAM_BYTES_MAX


@given(st.binary(max_size=200))
def test_noise_is_refused_and_counted(noise):
    look = search()
    look.take(nearby.GREETING + noise, "192.0.2.7")
    look.take(noise, "192.0.2.7")
    assert list(look) == []
    assert look.refused == 2
    with pytest.raises(RemoteError):
        nearby.read_question(noise)


def test_no_answer_is_believed_that_was_changed_or_belongs_to_another_question(signers):
    sound = nearby.answer(PROJECT, notice(), signers[0])
    cases = [
        (sound.replace(b"My project", b"My prophet"), BadSignature),
        (sound.replace(PROJECT, OTHER), BadSignature),
        (sound.replace(signers[0].key, signers[1].key), BadSignature),
        (nearby.answer(PROJECT, notice(nonce=bytes(16)), signers[0]), MalformedMessage),
        (sound + b"\0", MalformedMessage),
        (sound[: len(nearby.GREETING)] + bytes(nearby.DATAGRAM_BYTES_MAX), LimitExceeded),
    ]
    for datagram, error in cases:
        with pytest.raises(error):
            nearby.read_answer(datagram, NONCE, verify_ed25519)


def test_questions_are_sent_thrice_and_answers_awaited_for_three_seconds():
    look = search(began_s=100.0)
    sent, now_s = [], 100.0
    while not look.is_over(now_s):
        if (datagram := look.due(now_s)) is not None:
            sent.append((round(now_s - 100.0, 3), datagram))
        pause_s = look.pause_s(now_s)
        assert pause_s > 0
        now_s += pause_s
    assert [at_s for at_s, _ in sent] == [0.0, 0.4, 1.2]
    assert {datagram for _, datagram in sent} == {nearby.question(NONCE)}
    assert now_s == pytest.approx(103.0)


def test_a_search_ends_once_the_wanted_project_is_found(signers):
    look = search(wanted=lambda project: project == PROJECT)
    look.take(nearby.answer(OTHER, notice(), signers[0]), "192.0.2.7")
    assert not look.is_over(1.0)
    look.take(nearby.answer(PROJECT, notice(), signers[0]), "192.0.2.7")
    assert look.is_over(1.0)
    assert look.pause_s(1.0) == 0.0


def test_a_host_that_answers_on_several_networks_is_one(signers):
    look = search()
    for ip in ("127.0.0.1", "192.0.2.7", "192.0.2.7"):
        look.take(nearby.answer(PROJECT, notice(), signers[0]), ip)
    look.take(nearby.answer(PROJECT, notice(port=0), signers[0]), "2001:db8::7")
    (found,) = look
    (host,) = found.hosts.values()
    assert host.places == (("127.0.0.1", 4100), ("192.0.2.7", 4100))


def test_the_host_that_counts_learners_is_quoted(signers):
    look = search()
    said = (("witness", None), ("syncer", 5), ("learner", None))
    for signer, (role, learners) in zip(signers, said, strict=False):
        told = nearby.answer(PROJECT, notice(role=role, learners=learners), signer)
        look.take(told, "192.0.2.7")
    (found,) = look
    assert len(found.hosts) == 3
    assert found.notice.learners == 5


def test_a_name_cannot_move_a_cursor(signers):
    look = search()
    look.take(nearby.answer(PROJECT, notice(name="a\x1b[2Jb\n"), signers[0]), "192.0.2.7")
    (found,) = look
    assert found.name == "a?[2Jb?"


def test_one_machine_cannot_crowd_out_the_others(signers):
    look = search()
    for number in range(300):
        project = number.to_bytes(32, "big")
        look.take(nearby.answer(project, notice(), signers[0]), "192.0.2.66")
    assert len(look.found) == nearby.PROJECTS_OF_ONE_MAX
    assert look.refused == 300 - nearby.PROJECTS_OF_ONE_MAX
    look.take(nearby.answer(PROJECT, notice(name="found"), signers[1]), "192.0.2.7")
    assert "found" in [one.name for one in look]


def test_what_a_search_keeps_is_bounded(signers):
    look = search()
    for number in range(nearby.PROJECTS_MAX + 20):
        project, source = number.to_bytes(32, "big"), f"192.0.2.{number}"
        look.take(nearby.answer(project, notice(), signers[0]), source)
    assert len(look.found) == nearby.PROJECTS_MAX
    one = search()
    for signer in signers:
        one.take(nearby.answer(PROJECT, notice(), signer), "192.0.2.7")
    (found,) = one
    assert len(found.hosts) == nearby.HOSTS_MAX


def test_a_question_is_answered_after_a_moment_with_its_own_nonce():
    delay_s, nonce = answering().delay_s(nearby.question(NONCE), "192.0.2.7", 5.0)
    assert nonce == NONCE
    assert delay_s == pytest.approx(nearby.ANSWER_WITHIN_S / 2)


def test_the_same_asker_is_answered_now_and_then_only():
    rule = answering()
    times = [0.0, 0.1, 0.2, nearby.SAME_ASKER_S + 0.01]
    given = [rule.delay_s(nearby.question(NONCE), "192.0.2.7", at_s) for at_s in times]
    assert [one is not None for one in given] == [True, False, False, True]


def test_many_askers_get_so_many_answers_a_second_together():
    rule = answering()
    given = [
        rule.delay_s(nearby.question(NONCE), f"192.0.2.{number % 250}", number / 1000)
        for number in range(10_000)
    ]
    assert sum(one is not None for one in given) <= 10 * nearby.ANSWERS_PER_S + 12
    assert len(rule.answered_s) <= nearby.ASKERS_KEPT


def test_what_is_no_question_is_an_error(signers):
    rule = answering()
    for datagram in (b"", b"hello", nearby.answer(PROJECT, notice(), signers[0])):
        with pytest.raises(RemoteError):
            rule.delay_s(datagram, "192.0.2.7", 0.0)
    assert rule.delay_s(nearby.question(NONCE), "192.0.2.7", 0.0) is not None


def test_a_question_does_not_say_what_is_looked_for():
    assert nearby.question(NONCE) == nearby.GREETING + wire.encode(nearby.NearbyQuestion(NONCE))
    assert len(nearby.question(NONCE)) < 48
