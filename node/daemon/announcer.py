"""A learner among other hosts: how it enters the swarm, what it says of itself, whom it misses."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable

from host.files.keystore import Identity
from host.nat.peer_file import peer_file
from host.nearby import searching
from host.nearby.answering import NearbyAnswerer, addresses_to_tell
from host.network import leader_discovery
from host.network.foreign_errors import TransportState
from host.options import NodeOptions
from host.transport import LookAround, Transport
from node.download.locator import Locator
from node.machine.learner import LearnerMachine
from protocol import wire
from protocol.errors import TransientError
from protocol.peers.nearby import NearbyNotice, task_of

log = logging.getLogger("shoal.node")

EAGER_S = 1.0


def transport_of(
    options: NodeOptions, identity: Identity, on_state: Callable[[TransportState], None]
) -> Transport:
    """A learner's way into the swarm, not started yet."""
    project, network = options.link.project, options.settings().network
    transport = Transport(
        identity,
        port=options.port,
        bootstrap=(*options.link.addresses, *network.bootstrap),
        topics=(leader_discovery.seat_topic(project), leader_discovery.learners_topic(project)),
        on_state=on_state,
        listen_host=options.listen_host,
        map_port=network.map_port,
        known=peer_file(options.home, project, "learner", options.instance, own=identity.key),
        relay_bytes_per_s=network.relay_bytes_per_s,
        bulk=options.bulk,
    )
    if network.nearby is not False:
        transport.look_around = _look_around(options)
    return transport


def _look_around(options: NodeOptions) -> LookAround:
    """Finds the project's hosts on this network: their addresses of before may be others now."""

    async def look() -> tuple[str, ...]:
        found = await searching.places_of(options.link.project, options.listen_host)
        if found:
            log.info("found on this network: %s", ", ".join(found))
        return found

    return look


def tell_attempt(reason: str, next_try_s: float) -> None:
    """Says why the swarm was not entered yet."""
    log.warning("%s; next try in %.0f s", reason, next_try_s)


class Announcer:
    """What a running learner tells the others, and what it sees of them."""

    def __init__(
        self,
        options: NodeOptions,
        machine: LearnerMachine,
        locator: Locator,
        identity: Identity,
        has_chunks: Callable[[], bool],
    ) -> None:
        """has_chunks: whether some of a fragment that is not complete may be fetched here."""
        self._has_chunks = has_chunks
        self._identity = identity
        self._options = options
        self._transport = locator.transport
        self._machine = machine

    async def announce(self) -> None:
        """Tells the swarm, again and again, that weights may be fetched here: at once when the
        first chunks are here, and when all are."""
        told: tuple[bool, bool] | None = None
        told_s = 0.0
        while True:
            fragments, now_s = self._machine.fragment_sync, time.monotonic()
            now = fragments.has_any or self._has_chunks(), fragments.is_held
            is_due = now_s - told_s >= leader_discovery.ANNOUNCE_EVERY_S
            if now[0] and (now != told or is_due):
                told, told_s = now, now_s
                await self._announce_once()
            await asyncio.sleep(EAGER_S)

    async def _announce_once(self) -> None:
        machine, transport = self._machine, self._transport
        has_all = machine.fragment_sync.is_held
        notice = leader_discovery.LearnerNotice(
            self._options.name,
            machine.trainer_control.state if has_all else leader_discovery.SYNCING,
            machine.context.state.index,
            transport.reachability.relays,
            machine.context.state.is_brief,
        )
        with contextlib.suppress(TransientError):
            # Expired by itself and said again soon; the engine's own troubles are told.
            await transport.announce(
                leader_discovery.learners_topic(self._options.link.project),
                wire.encode(notice),
                leader_discovery.ANNOUNCE_TTL_S,
            )

    async def answer_nearby(self) -> None:
        """Answers those who look for projects on this network, where this machine's owner said so:
        a laptop goes to places where nobody should learn what it takes part in."""
        options = self._options
        answerer = NearbyAnswerer(
            options.link.project,
            self._identity,
            options.listen_host,
            self._nearby_notice,
            is_wanted=lambda: bool(options.settings().network.nearby),
        )
        await answerer.run()

    def _nearby_notice(self, nonce: bytes) -> NearbyNotice:
        """The link without its invite: that is for one learner alone."""
        context, link = self._machine.context, self._options.link
        genesis = self._machine.setup.genesis
        return NearbyNotice(
            nonce,
            link.genesis_bytes,
            link.name,
            addresses_to_tell(link.addresses),
            self._transport.port,
            "learner",
            task_of(genesis),
            sum(tensor.numel for tensor in genesis.model.tensors),
            None,
            context.charter.admission if context.charter is not None else "open",
        )
