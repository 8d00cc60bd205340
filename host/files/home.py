"""Where everything of one machine lies: keys, sockets, project caches, stores, text cache, logs.

One directory holds it all, so that a second, separate Shoal on the same machine is another
directory and nothing else. Light on purpose: every verb of the command imports this.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final, Literal, NamedTuple

from protocol.errors import UserError

Role = Literal["owner", "syncer", "witness", "learner"]
DaemonRole = Literal["syncer", "witness", "learner"]
VoterRole = Literal["syncer", "witness"]

HOME_VARIABLE = "SHOAL_HOME"
TAPES: Final = "tapes"
"""Directory of all tapes in a home."""

SUSPENDED: Final = "parked"
"""Directory of what paused trainers left."""

MAPPED: Final = "weights"
"""Directory of files, without names, for daemons' copies of the weights."""

BEGUN: Final = "begun-weights"
"""Directory, in the cache, of weights that are on their way here."""

DEFAULT_INSTANCE = "default"

_INSTANCE = re.compile(r"[a-z0-9-]{1,32}")
_DAEMON_ROLES: tuple[DaemonRole, ...] = ("learner", "syncer", "witness")


class Daemon(NamedTuple):
    """A daemon that left its control socket here; whether it still answers is another question."""

    role: DaemonRole
    instance: str
    socket: Path


class LogFile(NamedTuple):
    """A log that a daemon has written here."""

    role: DaemonRole
    instance: str
    path: Path


class Home:
    """Paths below `root`. Asking for one makes its directory, closed to other users (0700)."""

    def __init__(self, root: Path | None = None) -> None:
        """`root`, else $SHOAL_HOME, else the place for user data on this system."""
        self.root = Path(os.path.abspath((root or default_root()).expanduser()))

    def __repr__(self) -> str:
        return f"Home({str(self.root)!r})"

    def identity(self, role: Role, instance: str = DEFAULT_INSTANCE) -> Path:
        """Key file of a role."""
        return self._directory("keys") / f"{role}-{checked_instance(instance)}.key"

    def socket(self, role: DaemonRole, instance: str = DEFAULT_INSTANCE) -> Path:
        """Control socket of a daemon."""
        return self._directory("run") / f"{role}-{checked_instance(instance)}.sock"

    def log(self, role: DaemonRole, instance: str = DEFAULT_INSTANCE) -> Path:
        """Log file of a daemon."""
        return self._directory("logs") / f"{role}-{checked_instance(instance)}.log"

    def trainer_log(self, instance: str = DEFAULT_INSTANCE) -> Path:
        """What a learner's trainer writes."""
        return self.logs() / f"trainer-{checked_instance(instance)}.log"

    def suspended(self, instance: str = DEFAULT_INSTANCE) -> Path:
        """Directory for the state of a paused learner's trainer. Makes only what is above it."""
        return self._directory(SUSPENDED) / checked_instance(instance)

    def mapped_weights(self, instance: str = DEFAULT_INSTANCE) -> Path:
        """Directory for the files, without names, that hold a daemon's copies of the weights."""
        return self._directory(MAPPED) / checked_instance(instance)

    def kept_by_learners(self) -> list[Path]:
        """Directories of what learners keep here, which need not exist."""
        return [self.root / name for name in ("cache", "logs", SUSPENDED, TAPES)]

    def logs(self) -> Path:
        """Directory of all logs and crash reports."""
        return self._directory("logs")

    def project(self, project_id: bytes) -> Path:
        """Directory of what this machine knows about a project."""
        return self._directory("projects", project_id.hex())

    def project_file(self, project_id: bytes) -> Path:
        """Copy of the signed project, kept by whoever works for it."""
        return self.project(project_id) / "project.shoal"

    def base_note(self, project_id: bytes) -> Path:
        """File that says in which folder of this machine a project's base model lies."""
        return self.project(project_id) / "base-folder"

    def syncer_store(self, project_id: bytes, instance: str = DEFAULT_INSTANCE) -> Path:
        """Directory of a syncer's log, fragments and checkpoints."""
        return self.voter_store(project_id, "syncer", instance)

    def voter_store(
        self, project_id: bytes, role: VoterRole, instance: str = DEFAULT_INSTANCE
    ) -> Path:
        """Directory of a voter's log, whatever else its role keeps there."""
        name = f"{role}-{checked_instance(instance)}"
        return self._directory("projects", project_id.hex(), name)

    def voter_stores(self, project_id: bytes) -> list[Path]:
        """Directories of all voters of this project that have worked here. Makes no directory."""
        place = self.root / "projects" / project_id.hex()
        return sorted([*place.glob("syncer-*"), *place.glob("witness-*")])

    def parts(self, project_id: bytes, instance: str = DEFAULT_INSTANCE) -> Path:
        """Directory of a learner's parts of snapshots. Makes only what is above it."""
        return self.project(project_id) / f"parts-{checked_instance(instance)}"

    def tape(self, project_id: bytes, role: str, instance: str = DEFAULT_INSTANCE) -> Path:
        """Directory of a daemon's tape. Makes only what is above it."""
        name = f"{role}-{checked_instance(instance)}"
        return self._directory(TAPES, project_id.hex()) / name

    def demo_tape(self) -> Path:
        """Directory of what the newest demo recorded. Makes only what is above it."""
        return self._directory("demo") / "newest"

    def contributions(self) -> Path:
        """Directory of receipts, a file for each project and key."""
        return self._directory("contributions")

    def contribution_files(self) -> list[Path]:
        """All files of receipts in this home, sorted. Makes no directory."""
        return sorted((self.root / "contributions").glob("*.json"))

    def data_cache(self) -> Path:
        """Directory of tokenised text, shared by all daemons of this home."""
        return self._directory("cache")

    def begun_weights(self, project_id: bytes, instance: str = DEFAULT_INSTANCE) -> Path:
        """Directory of weights that are on their way to a learner. Makes nothing."""
        return self.root / "cache" / BEGUN / project_id.hex() / checked_instance(instance)

    def kernels(self) -> Path:
        """Directory of compiled kernels. Makes nothing."""
        return self.root / "kernels"

    def daemons(self) -> list[Daemon]:
        """Daemons that have a control socket here, sorted. Makes no directory."""
        return [Daemon(*found) for found in self._of_daemons(self.root / "run", ".sock")]

    def written_logs(self) -> list[LogFile]:
        """Logs that daemons have written here, sorted. Makes no directory."""
        return [LogFile(*found) for found in self._of_daemons(self.root / "logs", ".log")]

    def hosted_projects(self, instance: str = DEFAULT_INSTANCE) -> list[Path]:
        """Signed copies of the projects that a syncer of this home has worked for, sorted."""
        stores = (self.root / "projects").glob(f"*/syncer-{checked_instance(instance)}")
        copies = (store.parent / "project.shoal" for store in stores)
        return sorted(copy for copy in copies if copy.is_file())

    def _of_daemons(self, folder: Path, suffix: str) -> list[tuple[DaemonRole, str, Path]]:
        """Files called after a daemon, sorted."""
        found: list[tuple[DaemonRole, str, Path]] = []
        for path in sorted(folder.glob(f"*{suffix}")):
            role, _, instance = path.stem.partition("-")
            if role in _DAEMON_ROLES and _INSTANCE.fullmatch(instance):
                found.append((role, instance, path))
        return found

    def _directory(self, *names: str) -> Path:
        path = self.root
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            for name in names:
                path = path / name
                path.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise UserError(
                f"The directory {path} cannot be made ({error.strerror}). Name another place with "
                f"--home DIR or {HOME_VARIABLE}."
            ) from error
        return path


def default_root() -> Path:
    """$SHOAL_HOME, or `shoal` in the place for user data on this system."""
    if named := os.environ.get(HOME_VARIABLE):
        return Path(named)
    import platformdirs

    return platformdirs.user_data_path("shoal", appauthor=False)


def checked_instance(name: str) -> str:
    """`name` if it can tell daemons of one role apart in file names; otherwise UserError."""
    if _INSTANCE.fullmatch(name):
        return name
    raise UserError(f"The instance name {name!r} cannot be used. Use 1 to 32 of a-z, 0-9 and '-'.")
