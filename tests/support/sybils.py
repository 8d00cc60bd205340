"""Keys without machines: hosts that open sessions, claim to train, and never hand anything in."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from protocol import machine, messages
from protocol.machine import Effect, Event
from simulator.scenarios.swarm import Swarm
from simulator.stand_ins.tiny import SimSigner
from simulator.virtual.world import Host
from tests.support.builders import heartbeat, hello

BEAT_S = 4.0
AGAIN_S = 2.0


class SybilMachine:
    """Says hello, and again whenever it was sent away; then claims to train."""

    def __init__(self, syncer: bytes, greeting: messages.Hello) -> None:
        self._syncer = syncer
        self._greeting = greeting
        self._is_in = False
        self._steps = 0

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        match event:
            case machine.Started():
                return [machine.Connect(self._syncer)]
            case machine.PeerUp():
                return [machine.Send(self._syncer, self._greeting)]
            case machine.PeerDown():
                self._is_in = False
                return [machine.WakeAt(now_s + AGAIN_S)]
            case machine.Received(_, messages.Welcome()):
                self._is_in = True
                return [machine.WakeAt(now_s)]
            case machine.Woke() if self._is_in:
                self._steps += 8
                beat = heartbeat(local_step=self._steps, steps=(self._steps,) * 4)
                return [machine.Send(self._syncer, beat), machine.WakeAt(now_s + BEAT_S)]
            case machine.Woke():
                return [machine.Connect(self._syncer)]
        return []


class Sybil(Host):
    """One of them."""

    def __init__(self, swarm: Swarm, number: int, network: str) -> None:
        super().__init__(swarm.world, SimSigner(f"sybil {number}").key, f"sybil-{number}")
        self.network = network
        syncer = swarm.syncers[0]
        self._syncer = syncer.key
        self._greeting = msgspec.structs.replace(
            hello(), project=syncer.tiny.project, layout=syncer.layout.digest
        )

    def build(self) -> SybilMachine:
        return SybilMachine(self._syncer, self._greeting)

    def run_job(self, start: machine.Start, answer: Callable[[object], None]) -> None:
        raise AssertionError("it asks for nothing")

    def act(self, action: object) -> None:
        raise AssertionError("it does nothing")
