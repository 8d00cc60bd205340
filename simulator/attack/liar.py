"""A hostile learner: the daemon's machine and a real model, and lies in what leaves the host."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from node.machine import jobs
from protocol import wire
from protocol.log.leases import TextShape
from protocol.machine import Effect, Send
from protocol.messages import Heartbeat, LeaseRequest, Message, Push, PushHeader
from protocol.numerics.codecs import decode, encode
from protocol.numerics.outer import digest
from protocol.signing import seal
from simulator.attack.attacks import Attack
from simulator.attack.claims import REQUEST_BLOCKS_MAX, LeasedText
from simulator.attack.labels import loss_of
from simulator.attack.sight import Side
from simulator.compare.decoupled import LEARNERS_START_S, Decoupled, RealLearner
from simulator.hosts.learner import SimLearner
from simulator.hosts.syncer import SimSyncer
from simulator.stand_ins.tiny import TinyProject, TinyTrainer

BACK_AFTER_S = 1.0
"""From the end of an incarnation to the start of the next."""


class Liar(RealLearner):
    """Trains as others do, and does what the attack says. `key_number`: which of its keys it is."""

    def __init__(
        self,
        run: Decoupled,
        project: TinyProject,
        number: int,
        *,
        attack: Attack,
        key_number: int,
        side: Side,
    ) -> None:
        super().__init__(run, project, number)
        self.attack, self.side, self.number = attack, side, number
        self.loss_sum = loss_of(attack.labels, number)
        self._from, self._until = attack.keys[key_number]
        self._chance = np.random.default_rng([run.setting.seed, number])
        self._pushes = 0
        self._offered: dict[int, bytes] = {}
        """By fragment, the name of the last forged payload."""

    @property
    def starts_s(self) -> float:
        return LEARNERS_START_S + self._share_s(self._from)

    def boot(self) -> None:
        super().boot()
        self._offered.clear()
        life = self.life
        if math.isfinite(self._until):
            self.world.at(LEARNERS_START_S + self._share_s(self._until), self.crash)
        if math.isfinite(self.attack.restarts_every):
            self.world.after(
                self._share_s(self.attack.restarts_every), lambda: self._begin_again(life)
            )

    def _begin_again(self, life: int) -> None:
        if self.life == life:
            self.crash()
            self.world.after(BACK_AFTER_S, self.revive)

    def _share_s(self, share: float) -> float:
        """So much of an undisturbed run, in seconds."""
        setting = self.swarm.setting
        return share * setting.steps * setting.step_s

    def _advance(self, job: jobs.Advance, donor: SimLearner | SimSyncer) -> object:
        merged = job.merged
        payload = donor.blob_store.get(merged.payload)
        made = super()._advance(job, donor)
        if payload is not None and isinstance(made, jobs.Advanced):
            numel = self.layout.fragments[merged.fragment].numel
            displacement = decode(merged.codec, payload, numel)
            self.side.hear(merged.fragment, merged.version, displacement)
        return made

    def _capture(self, job: jobs.Capture, trainer: TinyTrainer) -> object:
        made = super()._capture(job, trainer)
        if not isinstance(made, jobs.Captured):
            return made
        payload = self.blob_store.get(made.digest)
        assert payload is not None, "it was just put there"
        charter, fragment = self.swarm.bench.charter, self.layout.fragments[job.fragment]
        codec = charter.rounds.up_codec
        self.side.learn(fragment.index, self.number, decode(codec, payload, fragment.numel))
        sight = self.side.sight(
            fragment,
            self.number,
            pushes=self._pushes,
            clip_to_median=charter.outer.clip_to_median,
        )
        self._pushes += 1
        forged = encode(codec, self.attack.forge(sight, self._chance))
        name = digest(forged)
        self.blob_store.put(name, forged)
        former = self._offered.get(fragment.index)
        if former is not None:
            self.blob_store.drop(former)
        self._offered[fragment.index] = name
        return dataclasses.replace(made, digest=name)

    def _carry_out(self, effect: Effect) -> None:
        if not isinstance(effect, Send):
            super()._carry_out(effect)
            return
        said = self._said(effect.message)
        if said is not None:
            super()._carry_out(Send(effect.peer, said))
        if isinstance(said, Heartbeat) and self.attack.claims.all_text:
            super()._carry_out(Send(effect.peer, LeaseRequest(REQUEST_BLOCKS_MAX)))

    def _said(self, message: Message) -> Message | None:
        """What it says instead; None for nothing."""
        claims = self.attack.claims
        if isinstance(message, Heartbeat):
            return claims.heartbeat(message)
        if not isinstance(message, Push):
            return message
        if not claims.hands_in:
            return None
        header = claims.header(wire.decode(message.header.payload, PushHeader), self._text())
        return Push(seal("push", header.project, wire.encode(header), self.signer))

    def _text(self) -> LeasedText:
        data, inner = self.tiny.genesis.data, self.tiny.charter.inner
        return LeasedText(
            leases=self.learner.context.state.leases,
            shape=TextShape(data.sequence_tokens, data.block_sequences),
            session=(self.key, self.incarnation),
            step_sequences=inner.batch_sequences,
        )
