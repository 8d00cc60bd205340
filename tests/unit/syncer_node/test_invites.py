"""Whom a leader lets in by the charter's admission rule, and what the log remembers of it."""

from __future__ import annotations

import msgspec
import pytest

from protocol import limits, wire
from protocol.invites import Invite, seal_invite
from protocol.log.records import InviteUsed, read_record
from protocol.log.state import SwarmState, SwarmSummary
from protocol.messages import CharterOffer, Committed, Refused, Welcome
from syncer_node.machine.jobs import InitialiseWeights
from syncer_node.raft.jobs import Append
from tests.support.builders import (
    ONE,
    STRANGER,
    SYNCER,
    THREE,
    TWO,
    Log,
    SyncerBench,
    disconnected,
    founded,
    hello,
    project,
    sealed_charter,
    weights,
)

OPEN = project()
WALL_S = 1_700_000_100
"""What the bench's clock shows at its start."""


def ruled(**changes):
    """The tiny project under another admission rule."""
    return msgspec.structs.replace(OPEN.charter, **changes)


def bench(**changes) -> SyncerBench:
    return SyncerBench(charter=ruled(**changes)).start()


def token(uses=1, *, signer=None, **changes):
    """An invite of the owner, in its envelope."""
    usual = Invite(OPEN.project, b"a" * 16, "friends", uses, WALL_S + 3600)
    return seal_invite(msgspec.structs.replace(usual, **changes), signer or OPEN.owner)


def refused(of: SyncerBench, learner=ONE) -> Refused:
    found = of.last(learner.key, Refused)
    assert found is not None
    assert found.retry_after_s is None, "trying again would change nothing"
    return found


def used(of: SyncerBench) -> dict[bytes, bytes]:
    return dict(of.machine.state.invited)


# Rules.


def test_an_open_project_asks_for_nothing():
    swarm = bench()
    swarm.join(ONE)
    assert swarm.last(ONE.key, Welcome) is not None
    assert used(swarm) == {}


def test_without_an_invite_a_stranger_is_told_what_to_ask_for():
    swarm = bench(admission="invite")
    effects = swarm.join(ONE)
    said = refused(swarm)
    assert said.reason == "not-invited"
    assert "takes part by invitation" in said.text
    assert "`shoal invite`" in said.text
    assert disconnected(effects) == [ONE.key]
    assert swarm.machine.faults == {"not-invited": 1}
    assert not list(swarm.seat.members.live())


def test_an_invite_lets_its_bearer_in_and_the_log_says_so():
    swarm = bench(admission="invite")
    swarm.join(ONE, invite=token())
    assert swarm.last(ONE.key, Welcome) is not None
    assert used(swarm) == {ONE.key: b"a" * 16}
    bodies = [
        read_record(entry.record).body
        for said in swarm.all(ONE.key, Committed)
        for entry in said.entries
    ]
    assert InviteUsed(b"a" * 16, ONE.key) in bodies


def test_a_key_that_was_brought_comes_back_without_any_invite():
    swarm = bench(admission="invite")
    swarm.join(ONE, invite=token())
    swarm.join(ONE, incarnation=2)
    assert swarm.last(ONE.key, Refused) is None
    assert len(swarm.all(ONE.key, Welcome)) == 2
    swarm.join(ONE, incarnation=3, invite=token(id=b"b" * 16))
    assert used(swarm) == {ONE.key: b"a" * 16}


def test_an_invite_brings_as_many_different_keys_as_it_says():
    swarm = bench(admission="invite")
    for learner in (ONE, TWO, THREE):
        swarm.join(learner, invite=token(uses=2))
    assert list(used(swarm)) == [ONE.key, TWO.key]
    said = refused(swarm, THREE)
    assert said.reason == "invite-used-up"
    assert "the invite friends has brought all 2" in said.text
    assert "another link" in said.text


def test_two_strangers_in_one_moment_do_not_share_a_use():
    swarm = bench(admission="invite")
    swarm.hold = {Append}  # Nothing is committed meanwhile.
    swarm.join(ONE, invite=token())
    swarm.join(TWO, invite=token())
    assert used(swarm) == {}
    assert swarm.last(ONE.key, Welcome) is not None
    assert refused(swarm, TWO).reason == "invite-used-up"
    swarm.join(ONE, incarnation=2)
    assert len(swarm.all(ONE.key, Welcome)) == 2, "it counts before it is committed"
    swarm.hold = set()
    swarm.store()
    assert used(swarm) == {ONE.key: b"a" * 16}


@pytest.mark.parametrize(
    ("sent", "reason", "words"),
    [
        (token(expires_s=WALL_S - 60), "invite-expired", "expired at 2023-11-14"),
        (token(signer=STRANGER), "invite-forged", "not signed by this project's owner"),
        (token(project=bytes(32)), "invite-foreign", "for another project"),
        (token(key=TWO.key), "invite-key", f"another key than yours, {ONE.key.hex()}"),
        (token(id=b"r" * 16), "invite-revoked", "the invite friends was revoked"),
        (sealed_charter(OPEN.charter), "invite-forged", "not signed"),
    ],
)
def test_an_invite_that_does_not_count_is_refused_with_its_reason(sent, reason, words):
    swarm = bench(admission="invite", revoked=(b"r" * 16,))
    swarm.join(ONE, invite=sent)
    said = refused(swarm)
    assert said.reason == reason
    assert words in said.text
    assert "ask the project's host for another link" in said.text
    assert used(swarm) == {}


def test_an_altered_invite_is_forged():
    swarm = bench(admission="invite")
    sealed = token()
    more = wire.encode(msgspec.structs.replace(wire.decode(sealed.payload, Invite), uses=1000))
    swarm.join(ONE, invite=msgspec.structs.replace(sealed, payload=more))
    assert refused(swarm).reason == "invite-forged"


def test_an_invite_for_one_key_brings_that_key():
    swarm = bench(admission="invite")
    swarm.join(ONE, invite=token(key=ONE.key))
    assert swarm.last(ONE.key, Welcome) is not None


def test_an_invite_expires_at_its_second():
    swarm = bench(admission="invite")
    swarm.now_s += 3599.0
    swarm.join(ONE, invite=token(uses=2))
    swarm.now_s += 1.0
    swarm.join(TWO, invite=token(uses=2))
    assert swarm.last(ONE.key, Welcome) is not None
    assert refused(swarm, TWO).reason == "invite-expired"


def test_a_listed_key_needs_no_invite_and_uses_none_up():
    swarm = bench(admission="invite", allowed=(ONE.key,))
    swarm.join(ONE, invite=token())
    swarm.join(TWO, invite=token())
    assert used(swarm) == {TWO.key: b"a" * 16}
    assert swarm.last(ONE.key, Welcome) is not None


def test_a_list_lets_in_whom_it_names_and_no_invite_helps():
    swarm = bench(admission="list", allowed=(ONE.key,))
    swarm.join(ONE)
    swarm.join(TWO, invite=token())
    assert swarm.last(ONE.key, Welcome) is not None
    said = refused(swarm, TWO)
    assert said.reason == "not-listed"
    assert f"`shoal project allow {TWO.key.hex()}`" in said.text
    assert used(swarm) == {}


def test_a_ban_counts_more_than_an_invite_or_a_list():
    swarm = bench(admission="invite", banned=(ONE.key,), allowed=(ONE.key,))
    swarm.join(ONE, invite=token())
    assert refused(swarm).reason == "banned"


def test_in_an_open_project_an_invite_is_noted_and_a_bad_one_does_no_harm():
    swarm = bench()
    swarm.join(ONE, invite=token())
    swarm.join(TWO, invite=token())
    assert swarm.last(TWO.key, Welcome) is not None
    assert used(swarm) == {ONE.key: b"a" * 16}


def test_a_newcomer_that_is_refused_for_another_reason_uses_nothing_up():
    swarm = SyncerBench(charter=ruled(admission="invite"))
    swarm.hold = {InitialiseWeights}
    swarm.start()
    swarm.join(ONE, invite=token())
    assert swarm.last(ONE.key, Refused).reason == "not-ready"
    assert used(swarm) == {}


# Another charter while it leads.


def offer(swarm, **changes):
    swarm.now_s += 0.1
    charter = msgspec.structs.replace(swarm.machine.setup.charter, **changes)
    return swarm.say(STRANGER.key, CharterOffer(sealed_charter(charter)))


def test_whom_an_invite_brought_stays_when_it_is_revoked():
    swarm = bench(admission="invite")
    swarm.join(ONE, invite=token(uses=5))
    effects = offer(swarm, revision=2, revoked=(b"a" * 16,))
    assert disconnected(effects) == []
    swarm.join(ONE, incarnation=2, invite=token(uses=5))
    swarm.join(TWO, invite=token(uses=5))
    assert swarm.last(ONE.key, Refused) is None
    assert refused(swarm, TWO).reason == "invite-revoked"


@pytest.mark.parametrize("rule", ["invite", "list"])
def test_a_project_that_closes_keeps_those_whom_the_new_rule_lets_in(rule):
    swarm = bench()
    swarm.join(ONE)
    swarm.join(TWO, invite=token())
    swarm.join(THREE)
    effects = offer(swarm, revision=2, admission=rule, allowed=(THREE.key,))
    gone = [ONE.key] if rule == "invite" else [ONE.key, TWO.key]
    assert sorted(disconnected(effects)) == sorted(gone)
    assert refused(swarm, ONE).reason == {"invite": "not-invited", "list": "not-listed"}[rule]
    assert swarm.last(THREE.key, Refused) is None


# What the log remembers.


def test_a_new_leader_knows_whom_an_invite_brought():
    """Its state is the log, so a key comes back to it without an invite, and uses stay used."""
    log = founded(weights(), InviteUsed(b"a" * 16, ONE.key))
    swarm = SyncerBench(charter=ruled(admission="invite"), recovered=log.recovered()).start()
    swarm.join(ONE)
    swarm.join(TWO, invite=token())
    assert swarm.last(ONE.key, Welcome) is not None
    assert refused(swarm, TWO).reason == "invite-used-up"


def test_the_summary_holds_who_was_brought_and_learners_are_not_told():
    log = Log()
    for learner in (ONE, TWO):
        log.add(InviteUsed(b"a" * 16, learner.key))
    log.add(InviteUsed(b"b" * 16, THREE.key))
    log.add(InviteUsed(b"b" * 16, ONE.key))
    assert log.state.invited == {
        ONE.key: b"a" * 16,
        TWO.key: b"a" * 16,
        THREE.key: b"b" * 16,
    }, "the first that brought a key counts"
    summary = wire.decode(wire.encode(log.state.summary()), SwarmSummary)
    assert SwarmState.restore(summary, 4).invited == log.state.invited
    assert log.state.summary(with_invites=False).invites == ()


def test_a_project_remembers_a_bounded_number_of_invited_keys(monkeypatch):
    monkeypatch.setattr(limits, "INVITED_MAX", 2)
    swarm = bench(admission="invite")
    for learner in (ONE, TWO, THREE):
        swarm.join(learner, invite=token(uses=5))
    assert refused(swarm, THREE).reason == "invites-full"
    log = Log()
    for learner in (ONE, TWO, THREE, SYNCER):
        log.add(InviteUsed(b"a" * 16, learner.key))
    assert list(log.state.invited) == [ONE.key, TWO.key]


def test_a_hello_with_an_invite_fits_the_wire():
    said = hello(invite=token(name="n" * limits.NAME_CHARS_MAX, key=ONE.key))
    assert wire.decode_message(wire.encode(said)) == said
