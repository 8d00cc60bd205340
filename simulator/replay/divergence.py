"""How a replay ends when it does not come to what the tape says."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from protocol.ids import short
from protocol.tape import Input
from syncer_node.machine.jobs import Keep, Merge
from syncer_node.storage.tape_recorder import read_decision

Decided = tuple[tuple[str, bytes], ...]


@dataclass
class Diverged(Exception):
    """The first thing that is not as recorded."""

    event: str
    """Which, and when."""
    place: str
    """File and offset."""
    what: str

    def __str__(self) -> str:
        return f"diverged at {self.event}: {self.what}\n  recorded in {self.place}"


def name_of(number: int, one: Input) -> str:
    """An input in words, for people."""
    what = one.kind
    if what == "Received":
        tag = msgspec.msgpack.decode(one.content[32:])[0]
        what = f"message {tag!r} from {short(one.content[:32])}"
    return f"event {number} ({what}, at {one.at_s:.3f} s)"


def difference(recorded: Decided, made: Decided) -> str:
    """The first decision that is another one, in words; empty if all are the same."""
    for its, mine in zip(recorded, made, strict=False):
        if its != mine:
            return _between(its, mine)
    if len(recorded) > len(made):
        return f"the tape has {_titled(recorded[len(made)])}, the replay does not decide it"
    if len(made) > len(recorded):
        return f"the replay decides {_titled(made[len(recorded)])}, the tape does not have it"
    return ""


def _titled(one: tuple[str, bytes]) -> str:
    decision = read_decision(*one)
    if isinstance(decision, Merge):
        return f"the merge of round {decision.round}"
    return f"record {decision.index}"


def _between(its: tuple[str, bytes], mine: tuple[str, bytes]) -> str:
    theirs, ours = read_decision(*its), read_decision(*mine)
    if isinstance(theirs, Merge) and isinstance(ours, Merge) and theirs.round == ours.round:
        return f"round {theirs.round}: {_between_merges(theirs, ours)}"
    if isinstance(theirs, Keep) and isinstance(ours, Keep) and theirs.index == ours.index:
        part = "record" if theirs.entry.record != ours.entry.record else "certificate"
        return f"record {theirs.index} has another {part} on the tape than in the replay"
    return f"the tape has {_titled(its)} where the replay decides {_titled(mine)}"


def _between_merges(its: Merge, mine: Merge) -> str:
    theirs = {part.push: part for part in its.parts}
    ours = {part.push: part for part in mine.parts}
    for push, part in theirs.items():
        who = f"push {push[2]} of {short(push[0])}"
        if push not in ours:
            return f"{who} is in the recorded merge, not in the replayed one"
        if part.weight != ours[push].weight:
            return f"{who} has weight {part.weight!r} on the tape, {ours[push].weight!r} replayed"
        if part != ours[push]:
            return f"the header of {who} is another one"
    if len(ours) > len(theirs):
        push = next(one for one in ours if one not in theirs)
        return f"push {push[2]} of {short(push[0])} is missing in the recorded merge"
    if [part.push for part in its.parts] != [part.push for part in mine.parts]:
        return "the pushes arrived in another order"
    return f"the tape has {msgspec.to_builtins(its.outer)} as outer step or another fragment"
