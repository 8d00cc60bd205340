"""What the owner of this machine allows: the values of the local settings file, typed.

Never the project's business: nothing here is signed, sent, or read from a project file. The types
say what is allowed; `shoal.common.settings_file` reads files, environment and flags into them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Final, Literal

from msgspec import Meta, Struct, field

from protocol.errors import UserError

Mode = Literal["always", "idle", "never"]
Precision = Literal["auto", "f32"]
Percent = Annotated[float, Meta(gt=0.0, le=100.0)]
Bytes = Annotated[int, Meta(ge=0)]

RATE_MIN: Final = 16 << 10
"""Bytes per second below which peers take a host for stalled (`host.network.blobs.FLOOR_BYTES`)."""

Rate = Annotated[int, Meta(ge=RATE_MIN)]

RELAY_BYTES_PER_S: Final = 2_500_000
"""20 megabits per second: what many lines can spare."""


def _about(unit: str, words: str) -> Meta:
    """What `shoal config explain` says of a key."""
    return Meta(description=words, extra={"unit": unit})


class LearnerSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[learner]: how this machine takes part."""

    name: Annotated[str | None, _about("", "What others see this learner as.")] = None
    device: Annotated[
        str | None,
        _about(
            "",
            "cpu, cuda, cuda:1, mps, xpu, xla, or several: cuda:0,cuda:1; the best otherwise.",
        ),
    ] = None
    ranks: Annotated[
        Annotated[int, Meta(ge=1, le=64)] | None,
        _about("devices", "Devices that train as one, a process each; as many as are named."),
    ] = None
    sharded: Annotated[
        bool,
        _about("", "These devices hold the model together, each a part of it, by torch's FSDP2."),
    ] = False
    threads: Annotated[
        Annotated[int, Meta(ge=1, le=1024)] | None,
        _about("threads", "CPU threads for training; from limits.cpu_percent otherwise."),
    ] = None
    micro_batch: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        _about("sequences", "Sequences at once on the device; measured otherwise."),
    ] = None
    batch_sequences: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        _about(
            "sequences",
            "In a local step, within what the project allows; what suits the device otherwise.",
        ),
    ] = None
    precision: Annotated[
        Precision,
        _about("", "Of forward and backward: f32, or auto: bf16 where that is faster."),
    ] = "auto"
    compile: Annotated[
        bool, _about("", "Let torch.compile speed up the model; skipped where it fails.")
    ] = False
    checkpoint_activations: Annotated[
        bool,
        _about("", "Compute activations twice, to save memory; on by itself where one must."),
    ] = False
    base_in_4_bits: Annotated[
        bool,
        _about("", "Hold an adapter's frozen model in 4 bits, by bitsandbytes; measures nothing."),
    ] = False
    weights_on_disk: Annotated[
        bool,
        _about("", "Keep the daemon's copies of the weights in files: less memory, more disk."),
    ] = False
    optimizer_in_8_bits: Annotated[
        bool,
        _about("", "Keep AdamW's moments in 8 bits, by bitsandbytes; they go to nobody else."),
    ] = False
    evaluate: Annotated[
        bool, _about("", "Measure held-out loss, and others' pushes, when asked.")
    ] = True
    moments: Annotated[
        bool, _about("", "Share optimizer state with other learners where the project wants it.")
    ] = True
    bulk_port: Annotated[
        str,
        _about("", "TCP port for direct connections that carry bulk data: any, a number, or off."),
    ] = "any"
    sample_every_s: Annotated[
        Annotated[float, Meta(ge=0.0, le=1e6)],
        _about("seconds", "How often status shows what the model writes, 10 at least; 0: never."),
    ] = 0.0
    sample_prompt: Annotated[
        Annotated[str, Meta(max_length=1000)],
        _about("", "What it goes on from in these samples."),
    ] = ""


class LimitSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[limits]: what Shoal may take of this machine, at all times."""

    cpu_percent: Annotated[
        Percent,
        _about("% of all cores", "CPU time of everything Shoal runs here, mean over 10 s."),
    ] = 100.0
    nice: Annotated[
        Annotated[int, Meta(ge=0, le=19)],
        _about("", "Priority of the trainer: 0 is normal, 19 gives way to everything."),
    ] = 10
    ram_bytes_max: Annotated[
        Bytes | None, _about("bytes", "Memory of everything Shoal runs here.")
    ] = None
    ram_free_bytes_min: Annotated[
        Bytes, _about("bytes", "Memory left free for others; below it training pauses.")
    ] = 0
    gpu_percent: Annotated[
        Percent, _about("% of the time", "Share of the time in which an accelerator may work.")
    ] = 100.0
    gpu_memory_percent: Annotated[
        Percent, _about("% of its memory", "Memory of the accelerator that training may take.")
    ] = 100.0
    disk_bytes_max: Annotated[
        Bytes | None,
        _about(
            "bytes", "Files kept: text as tokens, a frozen model, tapes, logs, a paused trainer."
        ),
    ] = None
    up_bytes_per_s: Annotated[
        Rate | None, _about("bytes per second", "Weights and displacements sent, in total.")
    ] = None
    down_bytes_per_s: Annotated[
        Rate | None, _about("bytes per second", "Weights and displacements fetched, in total.")
    ] = None


class NetworkSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[network]: how this machine takes part in finding and reaching others."""

    bootstrap: Annotated[
        tuple[str, ...],
        _about("", "Whole addresses of hosts to find the swarm by, besides those of the link."),
    ] = ()
    map_port: Annotated[
        bool | None,
        _about(
            "",
            "Ask the router to forward our ports: empty: once nobody can dial them (PCP, NAT-PMP); "
            "true: from the start, by the network engine (UPnP, NAT-PMP); false: never.",
        ),
    ] = None
    nearby: Annotated[
        bool | None,
        _about(
            "", "Answer `shoal join --nearby` on this network; empty: syncers and witnesses do."
        ),
    ] = None
    relay_bytes_per_s: Annotated[
        Bytes,
        _about("bytes per second", "Carried for hosts that cannot be dialled, in all; 0: nothing."),
    ] = RELAY_BYTES_PER_S


class WhenSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[when]: the hours and circumstances in which this machine trains."""

    mode: Annotated[
        Mode,
        _about("", "always; idle: only while nobody uses the machine; never."),
    ] = "always"
    devices: Annotated[
        dict[str, Mode],
        _about("", "The mode of single devices: cpu, gpu (any accelerator), cuda:0 ..."),
    ] = field(default_factory=dict)
    hours: Annotated[
        tuple[str, ...],
        _about("local time", "When training is allowed, as mon-fri 22:00-07:00; empty: always."),
    ] = ()
    on_battery: Annotated[
        Literal["pause", "train"], _about("", "What to do while the machine runs on battery.")
    ] = "pause"
    temperature_c_max: Annotated[
        Annotated[float, Meta(ge=30.0, le=120.0)] | None,
        _about("°C", "Training pauses above it and resumes 8 degrees below; empty: not checked."),
    ] = None
    busy_programs: Annotated[
        tuple[str, ...], _about("", "Programs that pause training while they run.")
    ] = ()
    owner_idle_s: Annotated[
        Annotated[float, Meta(ge=0.0)],
        _about("seconds", "The machine counts as unused after this long without input."),
    ] = 300.0
    input_unknown: Annotated[
        Literal["absent", "present"],
        _about("", "What to assume where the system cannot tell whether somebody is there."),
    ] = "absent"


class PresentSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[present]: what Shoal may take while somebody uses the machine, in mode `always`."""

    cpu_percent: Annotated[
        Percent | None, _about("% of all cores", "As limits.cpu_percent, while somebody is there.")
    ] = None
    gpu_percent: Annotated[
        Percent | None, _about("% of the time", "As limits.gpu_percent, while somebody is there.")
    ] = None
    up_bytes_per_s: Annotated[
        Rate | None,
        _about("bytes per second", "As limits.up_bytes_per_s, while somebody is there."),
    ] = None
    down_bytes_per_s: Annotated[
        Rate | None,
        _about("bytes per second", "As limits.down_bytes_per_s, while somebody is there."),
    ] = None


class PageSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[page]: the page of a project whose syncer runs here."""

    at: Annotated[
        str | None,
        _about("", "Where syncers here serve it: ADDRESS:PORT, or a port of this machine alone."),
    ] = None
    url: Annotated[
        Annotated[str, Meta(max_length=200)],
        _about("", "Its address outside, such as https://example.org/; for pictures beside links."),
    ] = ""
    behind_proxy: Annotated[
        bool,
        _about("", "A reverse proxy asks for everybody, and names them in X-Forwarded-For."),
    ] = False


class Settings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that the owner of this machine may decide."""

    learner: LearnerSettings = LearnerSettings()
    limits: LimitSettings = LimitSettings()
    network: NetworkSettings = NetworkSettings()
    when: WhenSettings = WhenSettings()
    present: PresentSettings = PresentSettings()
    page: PageSettings = PageSettings()


class OwnerSettings:
    """What the owner of this machine decided, looked up anew whenever it is asked for.

    A daemon that runs goes on with the former settings while the file says what cannot be read; its
    governor, which calls `read`, tells the owner so.
    """

    def __init__(self, load: Callable[[], Settings]) -> None:
        """load: UserError if what the owner wrote cannot be read."""
        self._load = load
        self._former: Settings | None = None

    def read(self) -> Settings:
        """As they are now. UserError if they cannot be read."""
        self._former = self._load()
        return self._former

    def __call__(self) -> Settings:
        """As they are now, or as they last could be read. UserError if they never could."""
        try:
            return self.read()
        except UserError:
            if self._former is None:
                raise
            return self._former
