"""A project with its daemons as real processes in one home, each called by a name."""

from __future__ import annotations

import contextlib
import functools
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self, TypeVar

from host.addresses import steady_port
from host.control import client
from host.files import keystore
from host.files.home import DEFAULT_INSTANCE, Daemon, DaemonRole, Home, VoterRole
from host.files.signed_project import SUFFIX, read_signed
from protocol.errors import TransientError
from protocol.log.records import Body, FragmentMerged, read_record, record_hash
from protocol.status import DaemonStatus, NodeStatus, SyncerStatus, VoterRow
from shoal.common import daemons
from shoal.local_swarm import processes
from shoal.project import file_commands
from shoal.project.template import Value, create_text
from syncer_node.storage.voter_files import VoterFiles

LOOPBACK: Final = "127.0.0.1"
HANG_S: Final = 300.0
"""A guard against waiting for ever. It says nothing about how fast anything should be."""

ANSWER_S: Final = 20.0
"""Who answers later hangs. On a machine that does much else at once two seconds are too few."""

CRASH_REPORTS: Final = "crash-*.txt"
"""Below the logs of a home: what a daemon leaves that did not end by itself."""

BUG: Final = "This is a bug in Shoal"

LAG_MAX: Final = 8
"""Records that a standby, and merges that a learner, may be behind while all is well: what comes
and goes within a moment."""

T = TypeVar("T")
B = TypeVar("B", bound=Body)


class Certified(NamedTuple):
    """A record that a majority had signed."""

    digest: bytes
    is_merge: bool


class LocalSwarm:
    """A home, a signed project in it, and the daemons that were started there.

    A daemon called after its role is the default one of this machine; any other has its name as its
    instance. As a context manager it ends all processes, and adds to an error what each said last.
    """

    def __init__(
        self,
        folder: Path,
        *,
        deadline: processes.Deadline | None = None,
        spawn: processes.Spawn = processes.spawn,
        poll_s: float = processes.POLL_S,
    ) -> None:
        self.folder = folder
        self.home = Home(folder / "home")
        self.processes = processes.Processes(folder, deadline, spawn=spawn)
        self.project = Path()
        """The project file, once it is written."""
        self.link = ""
        """How learners and further voters join, once somebody has said it."""
        self.running: dict[str, processes.Child] = {}
        """Daemons that were started and not killed."""
        self._poll_s = poll_s
        self._voters: Mapping[str, VoterRole] = {}
        self._roles: dict[str, DaemonRole] = {}
        self._ports: dict[str, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            error.add_note(self.tails())
        self.close()

    def close(self) -> list[str]:
        """Ends all processes; the names of those that stayed though their parent had ended."""
        return self.processes.stop()

    # The project.

    def write_project(
        self,
        name: str,
        settings: Mapping[str, Value],
        voters: Mapping[str, VoterRole] | None = None,
        base: str | None = None,
    ) -> None:
        """The project file with these values, by dotted key; signing it is another step.

        base: the model that it starts from. voters: names and roles of daemons, the most preferred
        leader first; else a syncer alone.
        """
        self._voters = voters or {"syncer": "syncer"}
        self._roles.update(self._voters)
        text = create_text(name, changes=settings, base=base)
        if voters:
            head, _, _ = text.partition("[[voters]]")
            tables = [self._voter(at, *voter) for at, voter in enumerate(voters.items())]
            text = head + "\n".join(tables)
        self.project = self.folder / f"{name}.toml"
        self.project.write_text(text)

    def _voter(self, at: int, name: str, role: VoterRole) -> str:
        key = keystore.load_or_create(self.home.identity(role, self.instance(name, role))).key.hex()
        priority = 50 - 10 * at if role == "syncer" else 0
        return f'[[voters]]\nkey = "{key}"\nrole = "{role}"\npriority = {priority}\n'

    def sign(self) -> None:
        """As `shoal project sign` does."""
        file_commands.sign(self.project, home=self.home)

    @property
    def signed(self) -> Path:
        """The signed project."""
        return self.project.with_suffix(SUFFIX)

    @functools.cached_property
    def project_id(self) -> bytes:
        """Of the signed project."""
        return read_signed(self.signed).id

    # Daemons.

    def address(self, name: str) -> str:
        """Where the daemon of this name listens."""
        return LOOPBACK

    def port(self, name: str) -> int:
        """Where a voter listens, in all its lives."""
        if name not in self._ports:
            self._ports[name] = steady_port(LOOPBACK)
        return self._ports[name]

    def start_first(self, *options: str) -> None:
        """Starts the first of the syncers and waits for its join link."""
        first = self.syncers[0]
        self.start_syncer(first, *options)

        def link() -> str:
            status = self.syncer(first)
            return status.join_link if status is not None else ""

        self.link = self.until(link, f"the join link of {first}")

    def start_syncer(self, name: str = "syncer", *options: str) -> processes.Child:
        """A syncer, for the first time or again, with the same key, disk and port."""
        return self._start_voter("syncer", name, *options)

    def start_witness(self, name: str = "witness", *options: str) -> processes.Child:
        """The same for a witness."""
        return self._start_voter("witness", name, *options)

    def _start_voter(self, role: VoterRole, name: str, *options: str) -> processes.Child:
        address, port = self.address(name), self.port(name)
        arguments = [role, "run", self.project.name, *self._named(role, name)]
        arguments += ["--listen", address, "--port", str(port)]
        arguments += ["--host-address", f"/ip4/{address}/tcp/{port}", "--log-text"]
        if self.link and (len(self.syncers) > 1 or name not in self.syncers):
            arguments += ["--join", self.link]
        return self.start(role, name, *arguments, *options)

    def start_learner(
        self, name: str = "learner", *options: str, threads: int | None = 1
    ) -> processes.Child:
        """A learner on the processor, for the first time or again. threads: None for all cores."""
        arguments = ["join", self.link, *self._named("learner", name), "--name", name]
        arguments += ["--listen", self.address(name), "--device", "cpu", "--log-text"]
        if threads is not None:
            arguments += ["--threads", str(threads)]
        return self.start("learner", name, *arguments, *options)

    def start(self, role: DaemonRole, name: str, *arguments: str) -> processes.Child:
        """A daemon by its whole command line."""
        self._roles[name] = role
        self.running[name] = self.processes.start(name, "shoal", *arguments)
        return self.running[name]

    def _named(self, role: DaemonRole, name: str) -> Sequence[str]:
        instance = self.instance(name, role)
        return () if instance == DEFAULT_INSTANCE else ("--instance", instance)

    def instance(self, name: str, role: DaemonRole) -> str:
        """What tells it from others of its role in this home."""
        return DEFAULT_INSTANCE if name == role else name

    @property
    def syncers(self) -> list[str]:
        """Those of the project's voters that are syncers."""
        return [name for name in self._voters if self._roles[name] == "syncer"]

    @property
    def learners(self) -> list[str]:
        """All that were ever started, in that order."""
        return [name for name, role in self._roles.items() if role == "learner"]

    def role(self, name: str) -> DaemonRole:
        """Of a daemon that was started, or is to be started as a voter."""
        return self._roles[name]

    def kill(self, name: str) -> processes.Child:
        """SIGKILL for the daemon alone; what is below it must end by itself."""
        child = self.running.pop(name)
        self.processes.kill(child)
        return child

    def ended(self, name: str, limit_s: float = HANG_S) -> int:
        """Waits until a daemon has ended by itself; its exit code, whatever that is."""
        child = self.running[name]
        child.is_stray = True
        self.until(lambda: not child.is_running, f"the end of {name}", limit_s=limit_s)
        return int(child.process.wait())

    def run(self, *arguments: str) -> str:
        """A verb of the command, run to its end; what it printed. SwarmFailed if it fails."""
        return self.processes.finish(" ".join(arguments[:2]), "shoal", *arguments)

    def output(self, name: str) -> str:
        """What a daemon has printed in all its lives."""
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def tails(self) -> str:
        """The last lines of every daemon."""
        blocks = []
        for name in self._roles:
            with contextlib.suppress(OSError):
                lines = self.output(name).splitlines()[-processes.TAIL_LINES :]
                blocks.append("\n".join([f"--- {name}", *lines]))
        return "\n".join(blocks)

    # What they say.

    def daemon(self, name: str) -> Daemon:
        """Where it is asked."""
        role = self.role(name)
        instance = self.instance(name, role)
        return Daemon(role, instance, self.home.socket(role, instance))

    def ask(self, name: str) -> DaemonStatus | None:
        """What a daemon says of itself; None while it does not answer."""
        if name not in self._roles:
            return None
        with contextlib.suppress(TransientError):
            return daemons.ask_status(self.daemon(name), timeout_s=ANSWER_S)
        return None

    def syncer(self, name: str = "syncer") -> SyncerStatus | None:
        """The same, of a syncer."""
        status = self.ask(name)
        return status if isinstance(status, SyncerStatus) else None

    def learner(self, name: str = "learner") -> NodeStatus | None:
        """The same, of a learner."""
        status = self.ask(name)
        return status if isinstance(status, NodeStatus) else None

    def tell(self, name: str, verb: str) -> None:
        """Asks a daemon for something, such as a pause."""
        client.call(self.daemon(name).socket, verb, ANSWER_S)

    def leader(self) -> tuple[str, SyncerStatus] | None:
        """The syncer that serves learners, of the highest term."""
        found = [
            (name, status) for name in self.syncers if (status := self.syncer(name)) is not None
        ]
        serving = [one for one in found if one[1].phase == "training"]
        return max(serving, key=lambda one: one[1].swarm.term, default=None)

    def trouble(self) -> str:
        """What is not well, in words; empty if all is."""
        found = self.leader()
        if found is None:
            return "nobody leads"
        name, leader = found
        for other in self.syncers:
            if self.syncer(other) is None:
                return f"syncer {other} is away"
        for row in leader.seat.voters if leader.seat is not None else ():
            if not is_near(row):
                return f"{name} waits for voter {row.key[:8]}"
        for one in self.learners:
            status = self.learner(one)
            if status is None or status.state != "training" or status.local_step == 0:
                return f"learner {one} does not train"
        return ""

    # Waiting.

    def until(self, look: Callable[[], T | None], what: str, *, limit_s: float = HANG_S) -> T:
        """The first result of `look` that is true. SwarmFailed after the limit, or on a failure."""
        found = self.within(limit_s, look, what)
        if not found:
            raise processes.SwarmFailed(
                f"Still waiting for {what} after {limit_s:g} s.", self.tails().splitlines()
            )
        return found

    def within(self, limit_s: float, look: Callable[[], T | None], what: str) -> T | None:
        """The same, but a false result if there was no other in time."""
        ends_s = time.monotonic() + limit_s
        while not (found := look()) and time.monotonic() < ends_s:
            self.processes.wait(what, self._poll_s)
            self.processes.check()
            self.check_reports()
            self.on_wait()
        return found

    def check_reports(self) -> None:
        """SwarmFailed if a daemon met a bug of Shoal; it starts again by itself, which hides it."""
        for report in sorted(self.home.logs().glob(CRASH_REPORTS)):
            lines = report.read_text(errors="replace").splitlines()
            if lines and BUG not in lines[0]:
                continue  # A full disk, for one: no fault of the daemon.
            tail = lines[-processes.TAIL_LINES :]
            raise processes.SwarmFailed(f"A daemon met a bug in Shoal: {report.name}.", tail)

    def on_wait(self) -> None:
        """Called all the while, whatever is waited for."""

    # The log on a disk.

    def store(self, name: str) -> Path:
        """Where this voter keeps its files."""
        role = self.role(name)
        assert role != "learner"
        return self.home.voter_store(self.project_id, role, self.instance(name, role))

    def floor(self, name: str) -> int:
        """The index behind which this voter's log begins: what is before it is in its state."""
        return VoterFiles(self.store(name)).floor.index

    def certified(self, name: str) -> dict[int, Certified]:
        """Every record on this voter's disk that is certified there, by index."""
        return {
            index: Certified(record_hash(frame), isinstance(body, FragmentMerged))
            for index, frame, body in self._records(name)
        }

    def merges(self, name: str) -> list[FragmentMerged]:
        """Every merge on this voter's disk that is certified there, in order."""
        return self.bodies(name, FragmentMerged)

    def bodies(self, name: str, kind: type[B]) -> list[B]:
        """What every such record says that is certified on this voter's disk, in order."""
        return [body for _, _, body in self._records(name) if isinstance(body, kind)]

    def _records(self, name: str) -> Iterator[tuple[int, bytes, Body]]:
        files = VoterFiles(self.store(name))
        floor, count = files.floor.index, files.certified - files.floor.index
        for at, frame in enumerate(itertools.islice(files.log.frames(), count)):
            yield floor + at + 1, frame, read_record(frame).body


def is_near(row: VoterRow) -> bool:
    """Whether a voter is here and has nearly everything."""
    return row.is_self or (row.is_here and row.lag is not None and row.lag <= LAG_MAX)
