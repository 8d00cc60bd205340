"""What `shoal doctor` measures: trials in processes of their own, and what the system says."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from host.files.home import DEFAULT_INSTANCE, Home
from host.files.local_settings import Settings
from host.runtime.python_path import python_path
from node.daemon.swarm_trial_facts import SwarmAnswer, SwarmWish
from node.trainer.tools.trial_facts import TrialAnswer, TrialWish
from protocol import decoders
from protocol.errors import UserError
from protocol.project import Charter, Genesis, InnerSpec, ModelSpec, TrainerSpec
from shoal.doctor.joining import UNSAID, Wishes

if TYPE_CHECKING:
    from shoal.project.project_file import ProjectFile

TRIAL_S: Final = 75.0
SWARM_S: Final = 80.0
"""Above what the trial's own deadlines add up to."""

SLOW_S: Final = 20.0
"""A trial that fails sooner does not fail because others have the processor."""

TIME_ERROR: Final = 5
"""Answer of adjtimex where nothing keeps the clock."""

Answer = TypeVar("Answer", TrialAnswer, SwarmAnswer)


@dataclass(frozen=True, slots=True)
class Named:
    """The project that was named."""

    name: str = ""
    link: str = ""
    genesis: Genesis | None = None
    charter: Charter | None = None
    wishes: Wishes = UNSAID
    """What was said when it was joined here."""


def named_project(word: str | None, home: Home, instance: str = DEFAULT_INSTANCE) -> Named:
    """The project meant by a join link, a signed file, or the name of one joined here.

    UserError where it is none of these.
    """
    if word is None:
        return Named()
    from host.files import memberships
    from host.join_link import PREFIX, parse_link

    if word.strip("\"'<> \n").startswith(PREFIX):
        return Named(name=parse_link(word).name, link=word)
    path = Path(word)
    if path.suffix in (".shoal", ".toml") or path.is_file():
        from host.files.signed_project import read_signed
        from shoal.project import file_commands

        project = read_signed(file_commands.signed_path(path))
        return Named(project.genesis.name, "", project.genesis, project.charter)
    found = memberships.memberships(home)
    if not found:
        raise UserError(
            f"{word!r} is neither a join link, which begins with `{PREFIX}`, nor a signed project "
            "(.shoal)."
        )
    named = memberships.named(found, word)
    membership = next((one for one in named if one.joined.instance == instance), named[0])
    options = membership.joined.options
    wishes = Wishes(
        instance=membership.joined.instance,
        data=str(options["data"]) if "data" in options else None,
        trainer=str(options["trainer"]) if "trainer" in options else None,
    )
    return Named(name=membership.link.name, link=membership.joined.link, wishes=wishes)


def learned(project: Named, swarm: SwarmAnswer | None) -> Named:
    """The same with what the swarm told of it, proven to be its owner's word."""
    if swarm is None or not swarm.genesis or not swarm.charter or project.genesis is not None:
        return project
    from host.files.signed_project import open_project
    from protocol import wire
    from protocol.messages import Envelope

    opened = open_project(swarm.genesis, wire.decode(swarm.charter, Envelope))
    return replace(project, genesis=opened.genesis, charter=opened.charter)


def try_swarm(link: str, *, port: int, map_port: bool | None = False) -> SwarmAnswer:
    """What the network trial found. map_port: as the setting of this name."""
    wish = SwarmWish(link=link, port=port, map_port=map_port)
    return _trial("node.daemon.swarm_trial", wish, SwarmAnswer, SWARM_S)


def try_training(wish: TrialWish) -> TrialAnswer:
    """What the training trial found."""
    return _trial("node.trainer.tools.trial", wish, TrialAnswer, TRIAL_S)


def _trial(module: str, wish: object, kind: type[Answer], timeout_s: float) -> Answer:
    """The answer of a trial; one that holds no more than its trouble where it ended badly."""
    command = [sys.executable, "-P", "-m", module]
    environment = {**os.environ, "PYTHONPATH": python_path()}
    started_s = time.monotonic()
    try:
        done = subprocess.run(
            command,
            input=msgspec.json.encode(wish),
            capture_output=True,
            timeout=timeout_s,
            env=environment,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return kind(trouble=f"it did not finish within {timeout_s:g} s", busy=busy())
    answer = _answer(done, kind)
    if answer.trouble and time.monotonic() - started_s > SLOW_S:
        answer.busy = busy()
    return answer


def _answer(done: subprocess.CompletedProcess[bytes], kind: type[Answer]) -> Answer:
    try:
        return decoders.json_decoder(kind).decode(done.stdout)
    except msgspec.MsgspecError:
        if done.returncode == -9:
            return _killed(kind)
        last = done.stderr.decode(errors="replace").strip().splitlines()
        return kind(trouble=last[-1] if last else f"it exited with code {done.returncode}")


def busy() -> str:
    """That others have the processor, in words; empty if they have not, or nobody says so."""
    cores = os.cpu_count() or 1
    with contextlib.suppress(OSError, AttributeError):
        load = os.getloadavg()[0]
        if load > 1.5 * cores:
            return f"machine busy (load {load:.1f} on {cores} cores)"
    return ""


def _killed(kind: type[Answer]) -> Answer:
    trouble = "it was killed, most likely because memory ran out"
    answer = kind(trouble=trouble)
    if isinstance(answer, TrialAnswer):
        answer.is_out_of_memory = True
    return answer


class _Timex(ctypes.Structure):
    """`struct timex` of Linux, as far as it is read here; the kernel fills the rest."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_byte * 256),
    )


def kept_clock() -> tuple[bool | None, float | None]:
    """Whether the kernel's clock is kept by a time service, and by how much it may be off.

    Both None where the system does not say. Source: adjtimex(2).
    """
    try:
        ask = ctypes.CDLL(None, use_errno=True).adjtimex
    except (OSError, AttributeError):
        return None, None
    timex = _Timex()
    state = ask(ctypes.byref(timex))
    if state < 0:
        return None, None
    return state != TIME_ERROR, timex.maxerror / 1e6


def accelerators_present() -> list[str]:
    """Accelerators that the system names, whatever PyTorch makes of them."""
    from node.governor.accelerators import Amd, Nvidia

    found = [one.model for one in (*Nvidia().read(), *Amd().read())]
    driver = Path("/proc/driver/nvidia/gpus")
    with contextlib.suppress(OSError):
        if not found and any(driver.iterdir()):
            found.append("an NVIDIA device")
    return found


def most_memory(available: int) -> int:
    """The most memory that any device here has, in bytes. available: of main memory."""
    from node.governor.accelerators import Amd, Nvidia

    devices = (*Nvidia().read(), *Amd().read())
    return max([available, *(one.memory_bytes or 0 for one in devices)])


def lacking(spec: TrainerSpec) -> str:
    """Why training code that a project names cannot run here; empty if it can. Imports none."""
    from node.trainer.own import installed

    try:
        installed.require(spec)
    except UserError as error:
        return str(error)
    return ""


def wish_for(
    model: ModelSpec | ProjectFile,
    inner: InnerSpec,
    sequence_tokens: int,
    settings: Settings,
    genesis: Genesis | None = None,
) -> TrialWish:
    """A trial of a model, or of an adapter beside it, with what this machine's owner allows.

    genesis: the project's, where there is one: what its model is to say, and its adapter.
    """
    from node.governor.budget import threads_for
    from node.trainer.devices import named_devices

    adapter = genesis.adapter if genesis is not None else None
    return TrialWish(
        architecture=model.architecture,
        config=dict(model.config),
        inner=inner,
        adapter=adapter and msgspec.structs.replace(adapter, frozen=(), pieces=()),
        base_in_4_bits=settings.learner.base_in_4_bits,
        optimizer_in_8_bits=settings.learner.optimizer_in_8_bits,
        masked=genesis.masked if genesis is not None else None,
        images=genesis.images if genesis is not None else None,
        documents=genesis.documents if genesis is not None else None,
        sequence_tokens=sequence_tokens,
        # Of several devices that train as one the first is tried.
        device=next(iter(named_devices(settings.learner.device)), None),
        in_f32=settings.learner.precision == "f32",
        threads=threads_for(settings, os.cpu_count() or 1),
        nice=settings.limits.nice,
    )


def free_disk(home: Home) -> tuple[int, str]:
    """Bytes free where the home is or would be, and the place that was asked."""
    place = home.root
    while not place.exists():
        place = place.parent
    return shutil.disk_usage(place).free, str(home.root)


def memory(limit_bytes: int | None) -> tuple[int, int, str]:
    """Available bytes, all bytes, and what bounds them in words.

    limit_bytes: the owner's limit.
    """
    import psutil

    machine = psutil.virtual_memory()
    available, total, bound = int(machine.available), int(machine.total), ""
    container = container_memory()
    if container is not None and container[0] < total:
        total, taken = container
        bound = "the most that this container may take"
        available = min(available, max(0, total - taken))
    if limit_bytes is not None and limit_bytes < available:
        available, bound = limit_bytes, "the most that limits.ram_bytes_max allows"
    return available, total, bound


CONTROL_GROUPS: Final = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    (
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        "/sys/fs/cgroup/memory/memory.usage_in_bytes",
    ),
)
"""Limit and use, by both versions of control groups, as a container sees its own."""


def container_memory() -> tuple[int, int] | None:
    """The memory limit of the control group that we are in, and what it takes; None without."""
    for limit, taken in CONTROL_GROUPS:
        with contextlib.suppress(OSError, ValueError):
            return int(Path(limit).read_text()), int(Path(taken).read_text())
    return None
