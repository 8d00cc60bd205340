"""What every state machine consumes and produces, as values.

A machine is `handle(event, now_s) -> effects`. It never reads a clock, never draws a random number
and never waits: the asyncio driver of the daemons, the virtual-time world of the simulator and the
replayer feed it the same events and carry out the same effects.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from protocol.ids import JobId
from protocol.messages import Message
from protocol.trace import Fact


class Job(Protocol):
    """Something slow that a machine wants done elsewhere: a transfer, a merge, an fsync.

    Jobs are frozen dataclasses that name tensors by fragment, version and digest; they never hold
    one. The answer comes back as `JobDone`, possibly late, and at most once.
    """


class JobResult(Protocol):
    """What a job came to. Failure is a result like any other."""


@dataclass(frozen=True, slots=True)
class Failed:
    """A job that did not succeed, and why in words."""

    reason: str


# Events: past-tense facts from the outside.


@dataclass(frozen=True, slots=True)
class Started:
    """The machine runs; first event of its life."""


@dataclass(frozen=True, slots=True)
class PeerUp:
    """The standing stream to this peer is open and its key is proven by the transport."""

    peer: bytes
    network: str = ""
    """Where it comes from: an IPv4 address or an IPv6 /64; empty where that is not known, as behind
    a relay."""


@dataclass(frozen=True, slots=True)
class PeerDown:
    """The standing stream to this peer ended, or could not be opened."""

    peer: bytes
    reason: str


@dataclass(frozen=True, slots=True)
class Received:
    """A decoded message from a peer."""

    peer: bytes
    message: Message


@dataclass(frozen=True, slots=True)
class Woke:
    """The time asked for with `WakeAt` has come."""


@dataclass(frozen=True, slots=True)
class JobDone:
    """A job's answer."""

    id: JobId
    result: JobResult


@dataclass(frozen=True, slots=True)
class StopAsked:
    """Whoever runs this daemon wants it to stop."""

    reason: str


@dataclass(frozen=True, slots=True)
class Note:
    """Something local that a machine wants to know, such as a finished local step."""

    value: object


Event = Started | PeerUp | PeerDown | Received | Woke | JobDone | StopAsked | Note


# Effects: imperatives for whoever drives the machine.


@dataclass(frozen=True, slots=True)
class Send:
    """Queue a message on the standing stream to a peer; lost if the stream is gone."""

    peer: bytes
    message: Message


@dataclass(frozen=True, slots=True)
class Connect:
    """Open a standing stream; answered by `PeerUp` or `PeerDown`."""

    peer: bytes


@dataclass(frozen=True, slots=True)
class Disconnect:
    """Close the standing stream to a peer after what is queued was written."""

    peer: bytes
    reason: str


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Deliver `Woke` at this time. A later WakeAt replaces an earlier one: one timer a machine."""

    at_s: float


@dataclass(frozen=True, slots=True)
class Start:
    """Carry out a job and answer with `JobDone` under this id."""

    id: JobId
    job: Job


@dataclass(frozen=True, slots=True)
class Do:
    """Carry out a local action that has no answer worth waiting for."""

    action: object


@dataclass(frozen=True, slots=True)
class Emit:
    """A fact for logs, screens and checkers."""

    fact: Fact


@dataclass(frozen=True, slots=True)
class Stop:
    """This machine has nothing left to do."""

    reason: str
    exit_code: int = 0


Effect = Send | Connect | Disconnect | WakeAt | Start | Do | Emit | Stop


class Machine(Protocol):
    """The one contract of everything that behaves."""

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        """Effects of one event at monotonic time `now_s`, in the order to be carried out."""
        ...
