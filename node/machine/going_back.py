"""Whether a leader would take a learner back: to a log that lacks what voters signed before.

Within one epoch a log only grows, so a leader whose log ends before a record that the learner can
prove, or says otherwise about a fragment, leads another history: its store was deleted, or an old
copy of it was put back. Only the owner may go back, by a new epoch.
"""

from __future__ import annotations

from protocol.ids import short
from protocol.log.state import SwarmState
from protocol.messages import CertifiedRecord
from protocol.project import Charter

WAY_OUT = (
    "Its host can bring the former store back, or go on from what learners hold: stop that syncer, "
    "then shoal project reset-seat PROJECT --from-learners LINK"
)


def going_back(
    own: SwarmState, newest: CertifiedRecord | None, offered: SwarmState, charter: Charter
) -> str:
    """Why the offered state is not a later one of our log, in words; empty if it may be.

    own: our log. newest: of all records, the newest that we can prove. offered: what the leader
    would have us go on from, proven. charter: the newest that the owner signed as far as we know.
    """
    if newest is None or newest.certificate.epoch != charter.epoch or not own.has_weights:
        return ""  # The owner began a new epoch since, or we have nothing to lose.
    held = newest.certificate.index
    if offered.epoch < charter.epoch or offered.index < held:
        return (
            f"its log ends at record {offered.index:,} of epoch {offered.epoch}, and here is "
            f"record {held:,} of epoch {charter.epoch}, signed by the voters"
        )
    if offered.index == own.index == held and offered.head != own.head:
        return f"its record {held:,} is another than the one signed by the voters that is here"
    for at, (ours, theirs) in enumerate(zip(own.fragments, offered.fragments, strict=True)):
        is_other = theirs.version == ours.version and theirs.state != ours.state
        if theirs.version < ours.version or is_other:
            return (
                f"fragment {at} is at version {ours.version} here, and the leader has another "
                f"version {theirs.version}"
            )
    return ""


def sentence(leader: bytes, because: str) -> str:
    """What happened and what is to be done, for the log and for screens."""
    return (
        f"The syncer {short(leader)} leads another, younger history: {because}. "
        f"Nothing is thrown away here. {WAY_OUT}"
    )
