"""What liars say: messages changed on their way, and values changed at random."""

from __future__ import annotations

from random import Random

import msgspec
from msgspec.structs import replace

from protocol import wire
from protocol.errors import LimitExceeded, MalformedMessage
from protocol.messages import Push, PushHeader
from protocol.signing import seal
from simulator.virtual.world import World

NUMBERS = (0, 1, 2, 64, 255, 4096, 2**31, 2**53, 2**63 - 1)
REALS = (0.0, 1e-300, 0.5, 3600.0, 1e12, 1e300, float("nan"), float("inf"), -1.0)
WORDS = ("", "\u202e", "A" * 60, "finishing", "paused", "starved", "training")
TRIES = 5
"""Until a changed message is one that a decoder takes."""


class Altered(World):
    """What some hosts send is altered on its way, from some time to another."""

    senders: frozenset[bytes] = frozenset()
    from_s = 0.0
    until_s = 1e9

    def alter(self, sender, message):
        """What is sent in place of this message."""
        return [message]

    def send(self, sender, peer, message):
        sent = [message]
        if sender.key in self.senders and self.from_s <= self.now_s < self.until_s:
            sent = self.alter(sender, message)
        for one in sent:
            super().send(sender, peer, one)


class Garbled(Altered):
    """Each message has something changed at random, comes twice, or is an older one."""

    def __init__(self, seed, share):
        super().__init__(seed)
        self.random, self.share = Random(f"garbled {seed}"), share
        self.former = []

    def alter(self, sender, message):
        if self.random.random() >= self.share:
            return [message]
        kind = self.random.choice(("changed", "changed", "changed", "twice", "older", "lost"))
        if kind == "changed":
            return [self._changed(sender, message)]
        if kind == "twice":
            return [message, message]
        if kind == "lost":
            return []
        self.former.append(message)
        return [self.random.choice(self.former)]

    def _changed(self, sender, message):
        for _ in range(TRIES):
            try:
                return wire.decode_message(wire.encode(self._once(sender, message)))
            except (MalformedMessage, LimitExceeded, OverflowError):
                continue  # No decoder would take it: what bytes do is tested elsewhere.
        return message

    def _once(self, sender, message):
        if not isinstance(message, Push):
            return changed(self.random, message)
        header = changed(self.random, wire.decode(message.header.payload, PushHeader))
        return Push(seal("push", header.project, wire.encode(header), sender.signer))


def changed(random, value):
    """A value of the same kind, or a part of it; it need not be one that is allowed."""
    match value:
        case bool():
            return not value
        case int():
            return random.choice((value + 1, max(0, value - 1), 8 * value, *NUMBERS))
        case float():
            return random.choice((2 * value, value / 2, -value, *REALS))
        case str():
            return random.choice((value + "x", value[:-1], *WORDS))
        case bytes():
            at = random.randrange(max(1, len(value)))
            flipped = bytes(byte ^ (place == at) for place, byte in enumerate(value))
            return random.choice((flipped, bytes(len(value)), b"", value[:-1]))
        case tuple():
            return _changed_tuple(random, value)
        case msgspec.Struct():
            name = random.choice(value.__struct_fields__ or ("",))
            return (
                replace(value, **{name: changed(random, getattr(value, name))}) if name else value
            )
    return value


def _changed_tuple(random, value):
    if not value:
        return value
    at = random.randrange(len(value))
    one = (*value[:at], changed(random, value[at]), *value[at + 1 :])
    every = tuple(changed(random, each) for each in value)
    return random.choice((value[:-1], value + value[-1:], value[::-1], (), one, one, every))
