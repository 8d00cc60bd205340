"""What a person decided when starting a daemon; checked by the command, read by the daemon."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from host.files.home import DEFAULT_INSTANCE, Home
from host.files.local_settings import NetworkSettings, OwnerSettings, Settings
from protocol.errors import UserError

if TYPE_CHECKING:
    from host.join_link import JoinLink
    from protocol.project import Charter, Genesis

SYNCER_PORT = 4100
WITNESS_PORT = 4101
"""Not the syncer's, so that a try-out on one machine needs no option."""

EVERY_ADDRESS = "0.0.0.0"

DONATE_MBPS = 50.0
"""Megabits per second given to joiners: about 0.03 of a core (`docs/benchmarks.md`), so that even
two cores that both train lose at most 2 %. Many uplinks are slower than this anyway."""


TAPE_MIB_MAX = 1024
"""Room for a tape: half for events, half for the newest pushes."""

LEARNER_TAPE_MIB_MAX = 64
"""It holds no tensors: months of training."""


@dataclass(frozen=True, slots=True)
class BulkAt:
    """Where direct connections are taken, and whether at all."""

    port: int = 0
    """0 takes any free port."""
    is_on: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class TapeOptions:
    """Whether and where a daemon records what it is told and decides."""

    folder: Path | None = None
    """None: in the home."""
    mib_max: int = TAPE_MIB_MAX
    is_on: bool = True


TAPE_ON = TapeOptions()
NETWORK = NetworkSettings()

BULK_ANYWHERE = BulkAt()


@dataclass(frozen=True, slots=True)
class MonitorAt:
    """Where to answer over HTTP."""

    host: str
    port: int
    """0 takes any free port."""


def bulk_at(text: str) -> BulkAt:
    """What `--bulk-port` says: any, off, or a port. UserError for others."""
    if text in ("any", "off"):
        return BulkAt(is_on=text == "any")
    if not text.isdecimal() or not 1 <= int(text) <= 65_535:
        raise UserError(f"{text!r} is no port for bulk data. Give 1 to 65535, any, or off.")
    return BulkAt(int(text))


@dataclass(frozen=True, slots=True, kw_only=True)
class HostOptions:
    """How to run any daemon."""

    home: Home
    instance: str = DEFAULT_INSTANCE
    listen_host: str = EVERY_ADDRESS
    bulk: BulkAt = BULK_ANYWHERE
    """Where direct connections for bulk data are taken."""
    log_json: bool | None = None
    """What stderr gets; None: JSON unless it is a terminal."""
    monitor: MonitorAt | None = None
    """Where metrics, health and status are answered over HTTP; None: nowhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VoterOptions(HostOptions):
    """How to run a syncer or a witness."""

    project_path: Path
    """A signed project file that was readable a moment ago."""
    announce: tuple[str, ...] = ()
    """Addresses for the join link and the other voters, without `/p2p/ID`; empty takes what the
    engine finds."""
    bootstrap: tuple[str, ...] = ()
    """Hosts of an existing swarm; empty begins one."""
    hints: tuple[str, ...] = ()
    """Hosts known from before, which need not answer."""
    network: NetworkSettings = NETWORK
    """What the owner of this machine allows and knows of the network."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncerOptions(VoterOptions):
    """How to run a syncer."""

    port: int = SYNCER_PORT
    """0 takes any free port."""
    exit_when_done: bool = False
    base: Path | None = None
    """The folder of the base model that a project starts from; None: as this home remembers."""
    threads: int | None = None
    """That merge; None: as many as this process may use."""
    weights_on_disk: bool = False
    """Weights, momentum and quantisation error lie in files, and not in memory."""
    tape: TapeOptions = TAPE_ON


@dataclass(frozen=True, slots=True, kw_only=True)
class WitnessOptions(VoterOptions):
    """How to run a witness."""

    port: int = WITNESS_PORT
    """0 takes any free port."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOptions(HostOptions):
    """How to run a learner."""

    link: JoinLink
    name: str
    """What others see on their screens."""
    port: int = 0
    """0 takes any free port."""
    duty_frac: float = 1.0
    """Share of the time in which the trainer may work, above 0."""
    threads: int | None = None
    """CPU threads of the trainer; None leaves it to the trainer."""
    micro_batch: int | None = None
    """Sequences at once on the device; None lets the trainer find out."""
    batch_sequences: int | None = None
    """Sequences in a local step, where the project leaves it to learners; None: what suits the
    device."""
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
    trainer: str | None = None
    """Training code of this machine's owner, `PACKAGE:CLASS`; None for what the project names."""
    base: str | None = None
    """Where the frozen base model of an adapter lies here; None: it comes from peers."""
    tape: TapeOptions = TAPE_ON
    judge: Callable[[Genesis, Charter], str] | None = None
    """Says what speaks against joining, empty for nothing; asked once, before anybody hears of this
    learner, on a thread. None: nothing does."""
    on_accepted: Callable[[], None] = lambda: None
    """Called once nothing on this machine speaks against joining, before training begins."""
    settings: OwnerSettings = field(default_factory=lambda: OwnerSettings(Settings))
    """What the owner of this machine allows; asked again and again."""
