"""What a person decided when starting a daemon; checked by the command, read by the daemon."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from node.host.home import DEFAULT_INSTANCE, Home
from node.politeness.settings import Settings

if TYPE_CHECKING:
    from node.host.joinlink import JoinLink

SYNCER_PORT = 4100
WITNESS_PORT = 4101
"""Not the syncer's, so that a try-out on one machine needs no option."""

EVERY_ADDRESS = "0.0.0.0"

DONATE_MBPS = 50.0
"""Megabits per second given to joiners: about 0.03 of a core (`benchmarks/donating.py`), so that
even two cores that both train lose at most 2 %. Many uplinks are slower than this anyway."""


TAPE_MIB_MAX = 1024
"""Room for a tape: half for events, half for the newest pushes."""

LEARNER_TAPE_MIB_MAX = 64
"""It holds no tensors: months of training."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TapeOptions:
    """Whether and where a daemon records what it is told and decides."""

    folder: Path | None = None
    """None: in the home."""
    mib_max: int = TAPE_MIB_MAX
    is_on: bool = True


TAPE_ON = TapeOptions()


@dataclass(frozen=True, slots=True)
class MonitorAt:
    """Where to answer over HTTP."""

    host: str
    port: int
    """0 takes any free port."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncerOptions:
    """How to run a syncer."""

    home: Home
    project_path: Path
    """A signed project file that was readable a moment ago."""
    instance: str = DEFAULT_INSTANCE
    port: int = SYNCER_PORT
    """0 takes any free port."""
    listen_host: str = EVERY_ADDRESS
    announce: tuple[str, ...] = ()
    """Addresses for the join link, without `/p2p/ID`; empty takes what the engine finds."""
    bootstrap: tuple[str, ...] = ()
    """Hosts of an existing swarm; empty begins one."""
    hints: tuple[str, ...] = ()
    """Hosts known from before, which need not answer."""
    exit_when_done: bool = False
    log_json: bool | None = None
    """What stderr gets; None: JSON unless it is a terminal."""
    monitor: MonitorAt | None = None
    """Where metrics, health and status are answered over HTTP; None: nowhere."""
    tape: TapeOptions = TAPE_ON


@dataclass(frozen=True, slots=True, kw_only=True)
class WitnessOptions:
    """How to run a witness."""

    home: Home
    project_path: Path
    """A signed project file that was readable a moment ago."""
    instance: str = DEFAULT_INSTANCE
    port: int = WITNESS_PORT
    """0 takes any free port."""
    listen_host: str = EVERY_ADDRESS
    announce: tuple[str, ...] = ()
    """Addresses told to the other voters, without `/p2p/ID`; empty takes what is found."""
    bootstrap: tuple[str, ...] = ()
    """Hosts of the swarm, one of which must answer; empty begins alone."""
    hints: tuple[str, ...] = ()
    """Hosts known from before, which need not answer."""
    log_json: bool | None = None
    """What stderr gets; None: JSON unless it is a terminal."""
    monitor: MonitorAt | None = None
    """Where metrics, health and status are answered over HTTP; None: nowhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOptions:
    """How to run a learner."""

    home: Home
    link: JoinLink
    instance: str = DEFAULT_INSTANCE
    name: str
    """What others see on their screens."""
    port: int = 0
    """0 takes any free port."""
    listen_host: str = EVERY_ADDRESS
    duty_frac: float = 1.0
    """Share of the time in which the trainer may work, above 0."""
    threads: int | None = None
    """CPU threads of the trainer; None leaves it to the trainer."""
    micro_batch: int | None = None
    """Sequences at once on the device; None lets the trainer find out."""
    evaluates: bool = True
    """Whether this host measures held-out loss when asked."""
    shares_moments: bool = True
    """Whether optimizer state comes from and goes to other learners, where the project wants."""
    keeps_parts: bool = True
    """Whether this host keeps its part of snapshots on its disk."""
    device: str | None = None
    """A name that torch knows, such as `cpu` or `cuda:1`, or several with commas between; None
    takes the best one."""
    ranks: int = 1
    """Processes that train as one, a device each."""
    donate_mbps: float = DONATE_MBPS
    """Megabits per second at which weights are given to others, all of them together."""
    data: str | None = None
    """Where the project's text lies here; None: where the project says, if that is allowed."""
    log_json: bool | None = None
    """What stderr gets; None: JSON unless it is a terminal."""
    monitor: MonitorAt | None = None
    """Where metrics, health and status are answered over HTTP; None: nowhere."""
    tape: TapeOptions = TAPE_ON
    settings: Callable[[], Settings] = Settings
    """Reads what the owner of this machine allows; asked again and again."""
