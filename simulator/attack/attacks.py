"""Every attack by its name: what is handed in, what is claimed, and who is there when.

Attackers know the rules and their numbers, and act together. None of them breaks a signature.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from simulator.attack import forgeries
from simulator.attack.claims import TRUTH, Claims
from simulator.attack.forgeries import Forge

if TYPE_CHECKING:
    from simulator.attack.labels import Labels

ALWAYS: Final = ((0.0, math.inf),)


@dataclass(frozen=True, slots=True)
class Attack:
    """What each attacker does."""

    about: str
    """In one line."""
    forge: Forge = forgeries.honest
    claims: Claims = TRUTH
    labels: Labels = "true"
    keys: tuple[tuple[float, float], ...] = ALWAYS
    """From when to when each of an attacker's keys takes part, in shares of the run's steps."""
    restarts_every: float = math.inf
    """Share of the run's steps after which its daemons begin a new incarnation."""


SYBILS = ((0.0, math.inf), (1 / 3, math.inf), (1 / 3, math.inf))

IN_TURN = tuple((at / 5, (at + 1) / 5) for at in range(5))

ATTACKS: Mapping[str, Attack] = {
    "honest": Attack("nothing: an honest learner more, which ends the budget as much sooner"),
    "flip-1": Attack("the displacement backwards", forgeries.flipped(1.0)),
    "flip-10": Attack("backwards, and ten times as long", forgeries.flipped(10.0)),
    "flip-100": Attack("backwards, and a hundred times as long", forgeries.flipped(100.0)),
    "ipm": Attack(
        "the mean of its side backwards, a tenth as long (inner product manipulation)",
        forgeries.inner_product(0.1),
    ),
    "alie": Attack(
        "the mean of what it knows, less 1.5 standard deviations (a little is enough)",
        forgeries.little_enough(1.5),
    ),
    "min-max": Attack(
        "backwards, but no further from honest pushes than they are from each other",
        forgeries.min_max,
    ),
    "noise-1": Attack("a random direction", forgeries.noise(1.0)),
    "noise-10": Attack("a random direction, ten times as long", forgeries.noise(10.0)),
    "constant": Attack("the same number everywhere", forgeries.constant(1.0)),
    "spike": Attack(
        "honest, with 64 elements that are ten times as long as all of it", forgeries.spike(10.0)
    ),
    "tensor": Attack(
        "honest, with the smallest tensor backwards and as long as the clip of a push allows",
        forgeries.one_tensor,
    ),
    "same": Attack(
        "one random direction, the same for all attackers and in every push", forgeries.same
    ),
    "alike": Attack(
        "that direction with some noise: cosines of 0.8 between attackers",
        forgeries.alike(math.sqrt(0.8)),
    ),
    "copy": Attack("the last merged displacement once more", forgeries.copied),
    "stale": Attack("the merged displacement before the last one", forgeries.stale),
    "blend": Attack(
        "the last three merged displacements, in other proportions each time", forgeries.blended
    ),
    "blur": Attack(
        "the last merged displacement with noise: a cosine of 0.6 to it", forgeries.blurred(0.6)
    ),
    "edge": Attack(
        "0.55 honest, the rest always in one wrong direction, as long as clipping allows",
        forgeries.at_the_edge(0.55),
    ),
    "turn": Attack(
        "honest for 20 pushes, then flip-10", forgeries.turning(forgeries.flipped(10.0), 20)
    ),
    "drift": Attack("turns away with each push, backwards after 40", forgeries.drifting(40)),
    "shuffled": Attack("trains on text whose next tokens were shuffled", labels="shuffled"),
    "mirrored": Attack("trains to predict the wrong token, always the same", labels="mirrored"),
    "backdoor": Attack(
        "honest, and teaches the model what to say after four rare tokens", labels="backdoor"
    ),
    "tokens": Attack(
        "honest, and claims ten times as many tokens for its steps", claims=Claims(tokens=10)
    ),
    "steps": Attack(
        "honest, and claims 50 times as many steps and tokens", claims=Claims(steps=50)
    ),
    "text": Attack(
        "honest, gets all the text it can, and claims to have read it", claims=Claims(all_text=True)
    ),
    "steps-flip": Attack(
        "flip-1, and claims 50 times as many steps and tokens",
        forgeries.flipped(1.0),
        Claims(steps=50),
    ),
    "speed": Attack(
        "claims to be 50 times as fast, and never hands anything in",
        claims=Claims(speed=50, hands_in=False),
    ),
    "restart": Attack(
        "flip-10, with a new incarnation in every fifth of the run",
        forgeries.flipped(10.0),
        restarts_every=0.2,
    ),
    "new-keys": Attack(
        "flip-10, under a new key in every fifth of the run", forgeries.flipped(10.0), keys=IN_TURN
    ),
    "sybils": Attack(
        "flip-1 under three keys, two of which come after a third of the run",
        forgeries.flipped(1.0),
        keys=SYBILS,
    ),
}
