"""What a trial of the network is asked and what it answers; light, for the command that asks."""

from __future__ import annotations

from msgspec import Struct


class SwarmWish(Struct, kw_only=True):
    """What to try."""

    link: str = ""
    """Empty: no swarm, only whether the engine runs."""
    port: int = 0
    listen_host: str = "0.0.0.0"
    map_port: bool | None = False
    """As the setting of this name; what a router grants is given back at the end."""


class NamedHost(Struct, kw_only=True):
    """A host that the link names."""

    address: str
    path: str = ""
    """direct, relayed; empty where it does not answer."""
    rtt_s: float | None = None


class SwarmAnswer(Struct, kw_only=True, omit_defaults=True):
    """What came of it."""

    engine_s: float = 0.0
    """Seconds until the engine ran and, with a link, was in the swarm."""
    busy: str = ""
    """That the machine was too busy for a verdict, in words; said by whoever asked."""
    trouble: str = ""
    """Why it does not run, or why the swarm cannot be reached."""
    is_clock_off: bool = False
    is_swarm_away: bool = False
    """The engine ran, and none of the hosts answered."""
    addresses: list[str] = []
    """Where this host listens, as far as the engine knows."""
    hosts: list[NamedHost] = []
    genesis: bytes = b""
    charter: bytes = b""
    """The envelope, checked; empty where nobody leads."""
    down_bytes_per_s: float = 0.0
    """What came from the hosts within seconds: at least so much is possible."""
    reach: str = ""
    """How others reach this host: direct, relayed, outward where they cannot; else not known."""
    could_dial: int = 0
    """Hosts that could open a connection to this one."""
    tried_to_dial: int = 0
    port: int = 0
    """The port at which they tried."""
    router: str = ""
    """What came of asking the router to forward it, as a sentence."""

    @property
    def is_engine_up(self) -> bool:
        """Whether the engine ran; it may have found no swarm."""
        return self.engine_s > 0 or self.is_swarm_away

    @property
    def is_in_swarm(self) -> bool:
        """Whether a host of the swarm gave what was asked of it."""
        return bool(self.genesis)
