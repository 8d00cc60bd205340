"""Held-out losses: who measured a checkpoint, whether two agree, and which checkpoint is the best.

One learner's word moves nothing where two can measure. The first says a loss; if that would make a
new best, or is far above the best, the second measures the same frozen weights on the same
sequences. A checkpoint counts as best once both agree, with the higher of the two losses.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct, structs

from protocol.ids import short
from protocol.log.accounts import Account, printable

AGREE_FRAC = 0.02
AGREE_ABS = 0.01
"""How far two measurements of the same weights may be apart: the one of the higher, and the other
in nats besides. Wide enough for devices that round differently (one step of bf16 is 0.4 %), and so
narrow that a false loss within it gains a liar next to nothing."""

FAR_FRAC = 0.2
FAR_NATS = 0.1
"""How far above the best loss another one is a sign that the model is wrecked: the one as a share
of the best, and the other in nats besides. Ten times as far as two honest measurements may be
apart, so that a run that wobbles is left alone."""


class CurvePoint(Struct, frozen=True, array_like=True):
    """One held-out evaluation."""

    checkpoint: int
    global_step: int
    tokens: int
    loss: float
    """The higher one, where two learners measured it."""
    evaluator: bytes = b""
    """Who measured it first; empty in logs of a former version."""
    second: bytes = b""
    """Who was to measure it too; empty where nobody else could."""
    losses: tuple[float, ...] = ()
    """As they were reported: of the evaluator, and of the second once it has answered."""

    @property
    def is_alone(self) -> bool:
        """Whether one learner's word had to do."""
        return not self.second

    @property
    def is_open(self) -> bool:
        """Whether the second has not answered."""
        return bool(self.second) and len(self.losses) < 2

    @property
    def is_agreed(self) -> bool:
        return len(self.losses) == 2 and agree(*self.losses)

    @property
    def is_disputed(self) -> bool:
        return len(self.losses) == 2 and not agree(*self.losses)

    def answered(self, loss: float) -> CurvePoint:
        """With what the second measured."""
        losses = (self.loss, loss)
        return structs.replace(self, loss=max(losses), losses=losses)


def measured_by(point: CurvePoint, accounts: Mapping[bytes, Account]) -> str:
    """Whose word a loss is, by name and key, as the end of a sentence."""
    if not point.evaluator:
        return "by one learner, of which nothing is known"
    first = named(point.evaluator, accounts)
    if point.is_alone:
        return f"by {first} alone"
    if point.is_open:
        return f"by {first}; {named(point.second, accounts)} has not measured it"
    return f"by {first} and {named(point.second, accounts)}"


def disputed_words(
    curve: Sequence[CurvePoint],
    accounts: Mapping[bytes, Account],
    present: Mapping[bytes, str] | None = None,
) -> str:
    """Who does not agree on the newest measured checkpoint, as a sentence; else nothing.

    present: what those who are connected call themselves. The log has a name a second after its
    owner's first merge, and the loss may be disputed before that.
    """
    newest = curve[-1] if curve else None
    if newest is None or not newest.is_disputed:
        return ""
    one, other = newest.losses
    return (
        f"Held-out losses at global step {newest.global_step:,} differ, so it does not count as "
        f"best: {named(newest.evaluator, accounts, present)} says {one:.4f}, "
        f"{named(newest.second, accounts, present)} says {other:.4f}."
    )


def named(
    key: bytes, accounts: Mapping[bytes, Account], present: Mapping[bytes, str] | None = None
) -> str:
    """A learner by name and key: a name alone is whatever its owner chose."""
    account = accounts.get(key)
    noted = account.name if account is not None else ""
    name = printable(noted or (present or {}).get(key, ""))
    return f"{name} ({short(key)})" if name else short(key)


def agree(one: float, other: float) -> bool:
    """Whether two measurements of one checkpoint may both be true."""
    return abs(one - other) <= AGREE_FRAC * max(one, other) + AGREE_ABS


def best_of(curve: Iterable[CurvePoint]) -> CurvePoint | None:
    """The checkpoint with the lowest held-out loss that counts; the earliest of equals.

    Those count on which two agree, and those behind the last of them that only one could measure:
    what one learner said while it was alone counts no longer once two agreed on a later one.
    """
    counted: list[CurvePoint] = []
    for point in curve:
        if point.is_agreed:
            counted = [one for one in counted if one.is_agreed]
            counted.append(point)
        elif point.is_alone:
            counted.append(point)
    return min(counted, key=lambda point: (point.loss, point.checkpoint), default=None)


def believed(curve: Sequence[CurvePoint]) -> list[CurvePoint]:
    """Without points that a second learner disputes, and without new bests and wrecks that the
    second has not measured yet.

    For people to look at: a liar's losses would be all that a chart shows.
    """
    best = best_of(curve)
    return [point for point in curve if not point.is_disputed and not _is_claim(point, best)]


def _is_claim(point: CurvePoint, best: CurvePoint | None) -> bool:
    """Whether nobody has confirmed a loss that would change what is known of the model."""
    if best is None or not point.is_open:
        return False
    return point.loss < best.loss or is_far(point.loss, best.loss)


def is_far(loss: float, best: float) -> bool:
    """Whether a held-out loss is far above the best one, both in nats per token."""
    return loss > best * (1 + FAR_FRAC) and loss > best + FAR_NATS


def needs_second(curve: Sequence[CurvePoint], loss: float, since: int = 0) -> bool:
    """Whether a second measurement could change which checkpoint is the best, or what the guard
    finds. since: log index; the guard does not compare checkpoints up to it."""
    bests = (best_of(curve), best_of(one for one in curve if one.checkpoint > since))
    return any(
        best is None or not best.is_agreed or loss < best.loss or is_far(loss, best.loss)
        for best in bests
    )
