"""Projects that ask for several pushes a merge: whoever is missing, stands still or lies beside two
honest learners, these two go on merging."""

from __future__ import annotations

from itertools import count

import pytest
from msgspec.structs import replace

from protocol import wire
from protocol.messages import Decline, Heartbeat, LeaseRequest, Push, PushHeader
from protocol.project import RoundSpec
from protocol.signing import seal
from simulator.scenarios.swarm import build_swarm
from tests.support.altered_messages import Altered
from tests.support.choices import first, spread

HONEST = (0.3, 0.3)
THIRD = 0.4
FROM_S = 40.0
"""The third is honest until then."""


def asking(quorum, pace_share=0.5, patience_s=10.0):
    return RoundSpec(
        8, 2, quorum, 0.9, pace_share, patience_s, patience_s, "overwrite", "int4", "int4"
    )


def altered(alter, quorum, **spec):
    """Two honest learners and one whose messages are altered."""
    world = Altered(7)
    swarm = build_swarm(7, rounds=asking(quorum, **spec), steps_s=(*HONEST, THIRD), world=world)
    third = swarm.learners[2]
    said = alter(third.signer)
    world.senders, world.from_s = frozenset({third.key}), FROM_S
    world.alter = lambda _, message: said(message)
    return swarm, third


def merges_of(swarm, from_s, until_s):
    swarm.world.run(from_s)
    before = swarm.merges
    swarm.world.run(until_s)
    return swarm.merges - before


def without(kind):
    return lambda _: lambda message: [] if isinstance(message, kind) else [message]


def beats(**changes):
    """Heartbeats say this; a change is a value, or made of the message."""
    return lambda _: (
        lambda message: [_changed(message, changes) if isinstance(message, Heartbeat) else message]
    )


def beats_alone(**changes):
    """The same, and no pull is answered."""
    alter = beats(**changes)(None)
    return lambda _: lambda message: [] if isinstance(message, Push) else alter(message)


def pushes(**changes):
    """Headers of pushes say this, signed."""

    def of(signer):
        def alter(message):
            if not isinstance(message, Push):
                return [message]
            header = _changed(wire.decode(message.header.payload, PushHeader), changes)
            return [Push(seal("push", header.project, wire.encode(header), signer))]

        return alter

    return of


def declines(every=1):
    """In place of pushes, but for one of so many."""

    def of(_):
        numbers = count()

        def alter(message):
            if not isinstance(message, Push) or next(numbers) % every == every - 1 > 0:
                return [message]
            header = wire.decode(message.header.payload, PushHeader)
            return [Decline(header.round, header.fragment, "not now")]

        return alter

    return of


def _changed(message, changes):
    made = {
        name: change(message) if callable(change) else change for name, change in changes.items()
    }
    return replace(message, **made)


def many(message):
    return tuple(10**6 for _ in message.steps)


LIES = {
    "answers no pull": without(Push),
    "declines": declines(),
    "declines three of four": declines(4),
    "sends no heartbeat": without(Heartbeat),
    "asks for no text": without(LeaseRequest),
    "is starved": beats_alone(state="starved"),
    "is paused": beats_alone(state="paused"),
    "leaves": beats_alone(state="finishing"),
    "has many steps": beats_alone(steps=many, local_step=lambda m: m.local_step + 10**6),
    "has no steps": beats(steps=lambda m: tuple(0 for _ in m.steps)),
    "has just begun": beats(local_step=0),
    "is on later versions": beats(versions=lambda m: tuple(v + 3 for v in m.versions)),
    "numbers no push": pushes(sequence=1),
    "is on a later version": pushes(base_version=lambda h: h.base_version + 1),
    "takes many steps": pushes(steps=lambda h: 8 * h.steps, tokens=lambda h: 8 * h.tokens),
    "has other bytes": pushes(payload_bytes=lambda h: h.payload_bytes + 1),
    "means another round": pushes(round=lambda h: h.round + 1),
    "says nothing": lambda _: lambda message: [],
}


@pytest.mark.parametrize("rounds", first(1, [(3, 0.5), (3, 0.0), (5, 0.5)]))
@pytest.mark.parametrize("lie", spread(4, LIES))
def test_a_third_learner_that_lies_holds_up_no_quorum(lie, rounds):
    quorum, pace_share = rounds
    swarm, _ = altered(LIES[lie], quorum, pace_share=pace_share, patience_s=20.0)
    # Two alone merge more than once a second, three whose third is slower once.
    assert merges_of(swarm, 90.0, 190.0) > 50


def test_a_quorum_that_is_too_large_falls_after_the_stated_patience():
    swarm = build_swarm(4, rounds=asking(5))
    swarm.world.run(12.0)
    assert swarm.merges == 0
    assert "of 5 learners ready, 3 alive" in swarm.syncer.syncer.leadership.rounds.pace.waiting
    assert merges_of(swarm, 30.0, 80.0) > 15
    swarm.check()


@pytest.mark.parametrize("pace_share", [0.5, 0.0])
def test_a_learner_whose_trainer_hangs_holds_up_no_quorum(pace_share):
    swarm = build_swarm(4, rounds=asking(3, pace_share), steps_s=(*HONEST, THIRD))
    hung = swarm.learners[2]
    swarm.world.at(60.0, lambda: setattr(hung.speed, "mean_s", 1e9))
    assert merges_of(swarm, 20.0, 60.0) > 30
    assert merges_of(swarm, 100.0, 140.0) > 40
    assert hung.trainer.local_step < 150
    swarm.check()


def test_who_answers_again_is_waited_for_again():
    swarm, third = altered(without(Push), 3)
    swarm.world.until_s = 140.0
    merges_of(swarm, 100.0, 140.0)
    assert all(len(body.contributions) == 2 for body in swarm.ledger.merges[-20:])
    # Only over a new connection it hears that what it handed in is not here.
    swarm.world.partition(third.key, swarm.syncer.key, for_s=1.0)
    merges_of(swarm, 140.0, 240.0)
    swarm.check()
    assert all(len(body.contributions) == 3 for body in swarm.ledger.merges[-20:])
