"""Virtual time: a heap of things to do, a network of standing streams, hosts that may crash.

Nothing here knows what a learner or a syncer does. The same seed gives the same run: ties on the
heap are broken by a counter, and every kind of chance has its own generator.
"""

from __future__ import annotations

import heapq
import math
import random
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field

from protocol import limits, machine, wire
from protocol.messages import Alive, Message
from protocol.trace import Fact
from simulator.virtual.network import Network, NetworkModel

RESET_S = 0.5
"""Time until a broken connection is noticed by the other end."""


@dataclass(slots=True)
class Stream:
    """A standing connection; messages of one direction arrive in order."""

    number: int
    dialler: Host
    listener: Host
    is_open: bool = True
    last_arrival_s: dict[bytes, float] = field(default_factory=dict)
    muted: set[bytes] = field(default_factory=set)
    """Senders whose direction was cut: nothing arrives any more, as after a lost segment."""
    said: dict[bytes, tuple[float, int]] = field(default_factory=dict)
    """By sender: when it spoke last, and how many bytes at just that time."""

    def has_room(self, sender: bytes, size_bytes: int, now_s: float) -> bool:
        """Whether so much more may wait. What is said at one time leaves after it."""
        at_s, before = self.said.get(sender, (now_s, 0))
        waiting = size_bytes + before * (at_s == now_s)
        self.said[sender] = (now_s, waiting)
        return waiting <= limits.OUTBOX_BYTES_MAX


class Letter:
    """A message as bytes; what is sent to many is encoded once, and decoded once."""

    __slots__ = ("_read", "frame", "message")

    def __init__(self, message: Message) -> None:
        self.message = message
        self.frame = wire.encode(message)
        self._read: Message | None = None

    def read(self) -> Message:
        """What comes out at the other end."""
        if self._read is None:
            self._read = wire.decode_message(self.frame)
        return self._read


class World:
    """The clock, the heap, the network, the trace."""

    def __init__(self, seed: int, network: NetworkModel | None = None) -> None:
        self.now_s = 0.0
        self.seed = seed
        self.network = network or NetworkModel()
        self.chance = random.Random(f"network {seed}")
        self.wires = Network(self.network, self.chance)
        self.hosts: dict[bytes, Host] = {}
        self.cut: set[frozenset[bytes]] = set()
        self.cut_ways: set[tuple[bytes, bytes]] = set()
        """(sender, receiver) of links that are cut in one direction only."""
        self.facts: list[tuple[float, bytes, Fact]] = []
        self.watchers: list[Callable[[float, Host, Fact], None]] = []
        self.taps: list[Callable[[str, Host, bytes, Message], None]] = []
        """Told "sent" or "came", a host, its peer and a message, in the order of that host."""
        self.events = 0
        self.owner_epoch = 0
        """The newest that the project's owner began."""
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._streams = 0
        self._letter = Letter(Alive(0))

    def at(self, time_s: float, action: Callable[[], None]) -> None:
        """Do this at a virtual time, never before now."""
        self._count += 1
        heapq.heappush(self._heap, (max(time_s, self.now_s), self._count, action))

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        self.at(self.now_s + delay_s, action)

    def run(self, until_s: float, *, stop: Callable[[], bool] | None = None) -> None:
        """Let virtual time pass until then, or until `stop` says so."""
        while self._heap and self._heap[0][0] <= until_s:
            time_s, _, action = heapq.heappop(self._heap)
            self.now_s = time_s
            self.events += 1
            action()
            if stop is not None and stop():
                return
        self.now_s = max(self.now_s, until_s)

    def delay_s(self, size_bytes: int = 0) -> float:
        """One way, with jitter, between hosts that do not matter."""
        model = self.network
        jitter_s = self.chance.random() * model.jitter_s
        return model.latency_s + jitter_s + size_bytes / model.bytes_per_s

    def carried_bytes(self, size_bytes: int) -> int:
        """What lines carry for so many bytes on the bulk lane."""
        return size_bytes

    def up_bytes_per_s(self, key: bytes) -> float:
        """What a host's line sends of such bytes at most."""
        size = 1 << 20
        return self.wires.up_bytes_per_s(key) * size / self.carried_bytes(size)

    def transfer_s(self, source: bytes, target: bytes, size_bytes: int) -> float:
        """Seconds until one host has so many bytes of another, on the bulk lane, asking now."""
        return self.wires.transfer_s(source, target, self.carried_bytes(size_bytes), self.now_s)

    def can_reach(self, one: Host, other: Host) -> bool:
        if not (one.is_up and other.is_up):
            return False
        return not self.cut or frozenset((one.key, other.key)) not in self.cut

    def record(self, host: Host, fact: Fact) -> None:
        self.facts.append((self.now_s, host.key, fact))
        for watcher in self.watchers:
            watcher(self.now_s, host, fact)

    def partition(self, one: bytes, other: bytes, *, for_s: float) -> None:
        """Cut the link between two hosts, and heal it later."""
        pair = frozenset((one, other))
        self.cut.add(pair)
        first, second = self.hosts[one], self.hosts[other]
        for stream in [s for s in first.streams.values() if second in (s.dialler, s.listener)]:
            self.after(RESET_S, lambda s=stream: self.close(s, "connection lost"))  # type: ignore[misc]
        self.after(for_s, lambda: self.cut.discard(pair))

    def clog(self, one: bytes, other: bytes, *, for_s: float) -> None:
        """Hold back everything between two hosts for a while; no stream breaks."""
        pair = frozenset((one, other))
        until = self.wires.clogged_until_s
        until[pair] = max(until.get(pair, 0.0), self.now_s + for_s)

    def cut_one_way(self, sender: bytes, receiver: bytes, *, for_s: float) -> None:
        """Let nothing arrive from one host at another. Their stream stays open, as with TCP."""
        way = (sender, receiver)
        self.cut_ways.add(way)
        stream = self.hosts[sender].streams.get(receiver)
        if stream is not None:
            stream.muted.add(sender)
        self.after(for_s, lambda: self.cut_ways.discard(way))

    def slow_down(self, one: bytes, other: bytes, by_s: float, *, for_s: float) -> None:
        """Let everything between two hosts take so much longer for a while."""
        slow_s, pair = self.wires.slow_s, frozenset((one, other))
        slow_s[pair] = by_s

        def speed_up() -> None:
            slow_s.pop(pair, None)

        self.after(for_s, speed_up)

    def heal(self) -> None:
        """Nothing is the matter with any link any more."""
        for faults in (self.cut, self.cut_ways, self.wires.slow_s, self.wires.clogged_until_s):
            faults.clear()

    def can_dial(self, one: Host, other: Host) -> bool:
        """Whether a stream can be opened: that takes both directions."""
        ways = ((one.key, other.key), (other.key, one.key))
        return self.can_reach(one, other) and not self.cut_ways.intersection(ways)

    def tell(self, what: str, host: Host, peer: bytes, message: Message) -> None:
        for tap in self.taps:
            tap(what, host, peer, message)

    # Streams.

    def connect(self, dialler: Host, peer: bytes) -> None:
        listener = self.hosts.get(peer)
        life = dialler.life

        def arrive() -> None:
            if dialler.life != life:
                return
            if listener is None or not self.can_dial(dialler, listener):
                dialler.take(machine.PeerDown(peer, "unreachable"))
                return
            for old in (listener.streams.get(dialler.key), dialler.streams.get(peer)):
                if old is not None:
                    self.close(old, "replaced by a new connection")
            self._streams += 1
            stream = Stream(self._streams, dialler, listener)
            dialler.streams[peer] = stream
            listener.streams[dialler.key] = stream
            listener.take(machine.PeerUp(dialler.key, dialler.network))
            dialler.take(machine.PeerUp(peer))

        wires = self.wires
        self.after(wires.latency_s(dialler.key, peer) + wires.latency_s(peer, dialler.key), arrive)

    def send(self, sender: Host, peer: bytes, message: Message) -> None:
        stream = sender.streams.get(peer)
        if stream is None or not stream.is_open:
            return
        if self._letter.message is not message:
            self._letter = Letter(message)
        letter = self._letter
        self.tell("sent", sender, peer, message)
        if not stream.has_room(sender.key, len(letter.frame), self.now_s):
            self.after(RESET_S, lambda: self.close(stream, "the peer does not read"))
            stream.muted.add(sender.key)
            return
        receiver = stream.listener if stream.dialler is sender else stream.dialler
        due_s = self.wires.message_s(sender.key, peer, len(letter.frame), self.now_s)
        if due_s is None:
            self.after(RESET_S, lambda: self.close(stream, "too many segments were lost"))
            stream.muted.add(sender.key)
            return
        arrival_s = max(due_s, stream.last_arrival_s.get(peer, 0.0))
        stream.last_arrival_s[peer] = arrival_s

        def arrive() -> None:
            is_same = stream.is_open and receiver.streams.get(sender.key) is stream
            if is_same and sender.key not in stream.muted and self.can_reach(sender, receiver):
                read = letter.read()
                self.tell("came", receiver, sender.key, read)
                receiver.take(machine.Received(sender.key, read))

        self.at(arrival_s, arrive)

    def close(self, stream: Stream, reason: str) -> None:
        if not stream.is_open:
            return
        stream.is_open = False
        for host, other in ((stream.dialler, stream.listener), (stream.listener, stream.dialler)):
            if host.streams.get(other.key) is stream:
                del host.streams[other.key]
                host.take(machine.PeerDown(other.key, reason))


class Host(ABC):
    """A machine with its streams, its timer and its jobs; subclasses carry out the jobs."""

    def __init__(self, world: World, key: bytes, name: str) -> None:
        self.world = world
        self.key = key
        self.name = name
        self.network = ""
        """Where it connects from, of `machine.PeerUp`; all the same where nobody says so."""
        self.is_up = False
        self.life = 0
        """Counts starts; what was asked in a former life is never answered."""
        self.machine: machine.Machine | None = None
        self.streams: dict[bytes, Stream] = {}
        self.stopped: machine.Stop | None = None
        self.clock_ahead_s = 0.0
        """Its clock is so far ahead of the others'; it never goes back."""
        self.clock_rate = 1.0
        """Seconds of this host's monotonic clock in a second."""
        self._wake = 0
        world.hosts[key] = self

    @abstractmethod
    def build(self) -> machine.Machine:
        """A fresh machine from whatever survived the last crash."""

    @abstractmethod
    def run_job(self, start: machine.Start, answer: Callable[[object], None]) -> None:
        """Carry out a job in virtual time and answer once."""

    @abstractmethod
    def act(self, action: object) -> None:
        """Carry out a local action."""

    def boot(self) -> None:
        """Start, or start again."""
        assert not self.is_up
        self.life += 1
        self.is_up = True
        self.stopped = None
        self.machine = self.build()
        self.take(machine.Started())

    def revive(self) -> None:
        """Start, unless somebody else did meanwhile."""
        if not self.is_up:
            self.boot()

    def crash(self) -> None:
        """Lose everything that is not on disk."""
        if not self.is_up:
            return
        self.is_up = False
        self.life += 1
        self.machine = None
        for stream in list(self.streams.values()):
            other = stream.listener if stream.dialler is self else stream.dialler
            self.streams.pop(other.key, None)
            self.world.after(RESET_S, lambda s=stream: self.world.close(s, "connection reset"))  # type: ignore[misc]

    @property
    def clock_s(self) -> float:
        """This host's monotonic clock."""
        return self.world.now_s * self.clock_rate + self.clock_ahead_s

    def take(self, event: machine.Event) -> None:
        """Feed the machine, and carry out what it asks for."""
        if not self.is_up or self.machine is None:
            return
        for effect in self.machine.handle(event, self.clock_s):
            self._carry_out(effect)

    def _wake_at(self, at_s: float) -> None:
        """Wake the machine then, and at no earlier time that it named."""
        self._wake += 1
        token, life = self._wake, self.life
        then_s = (at_s - self.clock_ahead_s) / self.clock_rate
        # Rounded, this clock may read a trifle less then; asked again now, time would stand still.
        while then_s <= self.world.now_s and then_s * self.clock_rate + self.clock_ahead_s < at_s:
            then_s = math.nextafter(then_s, math.inf)
        self.world.at(then_s, lambda: self._woke(token, life))

    def _carry_out(self, effect: machine.Effect) -> None:
        world = self.world
        match effect:
            case machine.WakeAt(at_s):
                self._wake_at(at_s)
            case machine.Send(peer, message):
                world.send(self, peer, message)
            case machine.Connect(peer):
                world.connect(self, peer)
            case machine.Disconnect(peer, reason):
                stream = self.streams.get(peer)
                if stream is not None:
                    world.after(2 * world.delay_s(), lambda: world.close(stream, reason))
            case machine.Start():
                life = self.life
                self.run_job(effect, lambda result: self._done(effect, result, life))
            case machine.Do(action):
                self.act(action)
            case machine.Emit(fact):
                world.record(self, fact)
            case machine.Stop():
                self.stopped = effect
                world.after(world.network.latency_s, self.crash)

    def _woke(self, token: int, life: int) -> None:
        if token == self._wake and life == self.life:
            self.take(machine.Woke())

    def _done(self, start: machine.Start, result: object, life: int) -> None:
        if life == self.life:
            self.take(machine.JobDone(start.id, result))
