"""Every error Shoal raises on purpose, in one tree.

Classes say who is to blame and therefore what happens next:

- `UserError`: the person at the keyboard can fix it. One clear line, exit code 2, no traceback.
- `RemoteError`: a peer misbehaved. Counted and shown with a typed `reason`; never stops a daemon.
- `TransientError`: the world is not ready (unreachable, busy, full). Only drivers retry.
- `CorruptState`: our own disk or memory is wrong. Quarantine and refetch, or stop.
- `InternalError`: our bug. Stop the role loudly.
"""

from __future__ import annotations


class ShoalError(Exception):
    """Base of all our errors; never raised itself."""


class UserError(ShoalError):
    """Something the user can fix. The message says what happened and what to do next."""

    exit_code = 2


class RemoteError(ShoalError):
    """A peer sent something it must not send. `reason` is the stable word counted in `status`."""

    reason = "remote-error"


class MalformedMessage(RemoteError):
    """The bytes do not decode to a known, bounded message."""

    reason = "malformed"


class BadSignature(RemoteError):
    """A signature is missing, made by the wrong key, or does not match the bytes."""

    reason = "bad-signature"


class LimitExceeded(RemoteError):
    """A size or count is over its bound in `protocol.limits`."""

    reason = "limit-exceeded"


class UnexpectedMessage(RemoteError):
    """A well-formed message arrived in a state in which it means nothing."""

    reason = "unexpected-message"


class WrongProject(RemoteError):
    """The peer speaks for another project."""

    reason = "wrong-project"


class MalformedPayload(RemoteError):
    """A tensor payload has the wrong length, digest or non-finite content."""

    reason = "malformed-payload"


class FalseReceipt(RemoteError):
    """A receipt is not what the log, the charter or an earlier receipt say."""

    reason = "false-receipt"


class TransientError(ShoalError):
    """Not possible now, worth another try later."""


class PeerUnreachable(TransientError):
    """The peer could not be dialled, or the connection broke."""


class PeerBusy(TransientError):
    """The peer answers, but serves as many transfers as it may."""


class NotHeld(TransientError):
    """The peer answers, but does not hold the blob that was asked for."""

    def __init__(self, text: str, held_sections: int = 0) -> None:
        """held_sections: of a manifest's array the peer has so much, one bit for each section
        (`protocol.numerics.chunks.section_of`)."""
        super().__init__(text)
        self.held_sections = held_sections


class TransportLost(TransientError):
    """The local network engine died; everything in flight is lost and the engine is rebuilt."""


class CorruptState(ShoalError):
    """What our own disk or memory holds does not match its digest."""


class InternalError(ShoalError):
    """An invariant of ours broke: a bug in Shoal."""


class RoleFailed(InternalError):
    """A daemon's role stopped over a bug, named as the cause; its state on the disk is whole."""

    def __init__(self, role: str) -> None:
        super().__init__(f"the {role} stopped over a bug")
        self.role = role


def leaves(error: BaseException) -> list[BaseException]:
    """The exceptions in a group of them, or the one that it is."""
    if isinstance(error, BaseExceptionGroup):
        return [leaf for one in error.exceptions for leaf in leaves(one)]
    return [error]


def sole(error: Exception) -> Exception:
    """What a group of exceptions holds if it holds one; otherwise the error itself."""
    found = leaves(error)
    only = found[0] if len(found) == 1 else error
    return only if isinstance(only, Exception) else error
