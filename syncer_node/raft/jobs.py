"""What a voter asks of its disk, and what comes back."""

from __future__ import annotations

from dataclasses import dataclass

from protocol.messages import Certificate
from syncer_node.raft.ballot import Ballot


@dataclass(frozen=True, slots=True)
class SaveBallot:
    """Write the ballot and fsync. Answer: `BallotSaved`."""

    ballot: Ballot


@dataclass(frozen=True, slots=True)
class BallotSaved:
    ballot: Ballot


@dataclass(frozen=True, slots=True)
class KeepProofs:
    """Write those of these certificates that are not there yet, and fsync. Answer: `ProofsKept`."""

    certificates: tuple[Certificate, ...]
    """In log order without a gap, from the first record at hand on."""


@dataclass(frozen=True, slots=True)
class ProofsKept:
    """The certificates are on disk."""


@dataclass(frozen=True, slots=True)
class Append:
    """Cut the log behind record `after`, write these behind it, and fsync. Answer: `Appended`."""

    after: int
    records: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Appended:
    index: int
    """Of the last record written."""
