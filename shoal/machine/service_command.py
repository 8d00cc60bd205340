"""The `service` verbs: daemons that systemd starts, restarts and stops."""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from cyclopts import Parameter

from host.files import memberships
from host.files.home import (
    DEFAULT_INSTANCE,
    HOME_VARIABLE,
    DaemonRole,
    Home,
    checked_instance,
    default_root,
)
from host.files.memberships import Joined
from protocol.errors import TransientError, UserError
from shoal.common import choices, settings_file
from shoal.common.exit_codes import ExitCode
from shoal.common.writing import writing
from shoal.machine import service_units
from shoal.machine.service_units import MARK, STATE, SYSTEM_CONFIG, UnitWish

PROGRAM: Final = (sys.executable, "-m", "shoal")
RUNNING_SYSTEMD: Final = Path("/run/systemd/system")
SYSTEM_UNITS: Final = Path("/etc/systemd/system")
SYSTEMCTL_S: Final = 60.0
HOMES: Final = ("/home/", "/root/", "/run/user/")
DEVICE_GROUPS: Final = ("video", "render")
ID_CHARS: Final = 16
"""Of a project's id, in a command that people may read."""

service_app = choices.area("service")

SHOWN: Final = ("LoadState", "UnitFileState", "ActiveState", "SubState", "Result", "ExecMainStatus")


@dataclass(frozen=True, slots=True)
class Installed:
    """A unit of ours."""

    path: Path
    is_system: bool

    @property
    def name(self) -> str:
        """As systemctl wants it."""
        return self.path.name


@service_app.command
def install(
    work: Annotated[
        str | None,
        choices.option(
            "For a learner a join link or a joined project, the last one otherwise; for a "
            "syncer or witness its signed project."
        ),
    ] = None,
    *options: Annotated[
        str,
        Parameter(
            help="After `--`: options of the daemon, such as -- --port 4200.",
            allow_leading_hyphen=True,
        ),
    ],
    role: Annotated[DaemonRole, choices.option("Which daemon.")] = "learner",
    instance: choices.Instance = DEFAULT_INSTANCE,
    system: Annotated[
        bool, choices.switch("A hardened system service; a user service by default.")
    ] = False,
    run_as: Annotated[
        str | None,
        choices.option("With --system: run as this user; by default systemd makes one up."),
    ] = None,
    print_unit: Annotated[
        bool, choices.switch("Print the unit and change nothing.", name="--print")
    ] = False,
    start: Annotated[
        bool, choices.option("Start it at once (--no-start: at the next boot or login).")
    ] = True,
    home: choices.HomeHere,
    check: choices.CommandCheck,
) -> int:
    """Write a systemd unit for a daemon, enable and start it."""
    checked_instance(instance)
    if role != "learner" and work is None:
        raise UserError(f"Name the signed project for the {role}.")
    if not print_unit:
        _require_systemd(is_system=system)
    place = _home_of_unit(home, is_system=system)
    command, membership = _command(
        Home(place), work, options, role=role, instance=instance, is_system=system
    )
    check(command[len(PROGRAM) :])
    wish = UnitWish(
        role=role,
        instance=instance,
        command=command,
        environment=_environment(place, is_system=system),
        is_system=system,
        run_as=_checked_user(run_as, command[0], is_system=system),
        has_accelerators=role == "learner" and _has_accelerators(),
        groups=_groups(),
        is_program_in_home=_is_in_home(command[0]),
    )
    if print_unit:
        print(service_units.text_of(wish), end="")
    else:
        _enable(wish, Home(place), membership, is_starting=start)
    return ExitCode.DONE


def _enable(wish: UnitWish, home: Home, membership: Joined | None, *, is_starting: bool) -> None:
    """Writes the unit, and has systemd run it at every start."""
    if membership is not None:
        memberships.remember(home, membership)
    path = _units(is_system=wish.is_system) / wish.name
    _write(path, service_units.text_of(wish))
    print(f"wrote {path}")
    _systemctl("daemon-reload", is_system=wish.is_system)
    verb = ("enable", "--now") if is_starting else ("enable",)
    _systemctl(*verb, wish.name, is_system=wish.is_system)
    print(f"{wish.name} is enabled{' and started' if is_starting else ''}")
    scope = "" if wish.is_system else "--user "
    print(f"its log: journalctl {scope}-u {wish.name} -f, or shoal logs -f{_home_flag(home.root)}")
    if not wish.is_system and not _lingers():
        print("it runs while you are logged in; to keep it running without: loginctl enable-linger")


@service_app.command
def status(
    *,
    json: Annotated[bool, choices.switch("Print one JSON list.")] = False,
) -> int:
    """List the installed Shoal services and their state."""
    found = installed()
    if not found:
        raise TransientError(
            "No Shoal service is installed here. Install one with: shoal service install"
        )
    rows = []
    for unit in found:
        state = _state(unit)
        rows.append({"unit": unit.name, "file": str(unit.path), **state})
    if json:
        import msgspec

        print(msgspec.json.encode(rows).decode())
        return ExitCode.DONE
    for unit, row in zip(found, rows, strict=True):
        how = row.get("ActiveState", "unknown: systemd does not answer")
        sub = f" ({row['SubState']})" if row.get("SubState") else ""
        at_start = row.get("UnitFileState", "")
        print(f"{unit.name}  {how}{sub}{', ' + at_start if at_start else ''}")
        if row.get("Result", "success") != "success":
            print(f"  ended with {row['Result']}, exit code {row.get('ExecMainStatus', '?')}")
        print(f"  {unit.path}")
    return ExitCode.DONE


@service_app.command
def uninstall(
    *,
    role: choices.OnlyRole = None,
    instance: choices.OnlyInstance = None,
    system: Annotated[
        bool | None, choices.option("Only system services (--no-system: only user services).")
    ] = None,
) -> int:
    """Stop services of Shoal and remove their units; keys and data stay."""
    fitting = [
        unit
        for unit in installed()
        if system in (None, unit.is_system)
        and (role is None or unit.name.startswith(f"shoal-{role}-"))
        and (instance is None or unit.name.removesuffix(".service").endswith(f"-{instance}"))
    ]
    if not fitting:
        raise UserError("No such Shoal service is installed here; see: shoal service status")
    for unit in fitting:
        _require_right(unit.path, is_system=unit.is_system)
        with contextlib.suppress(TransientError):  # Not running, or no systemd: then only the file.
            _systemctl("disable", "--now", unit.name, is_system=unit.is_system)
        unit.path.unlink(missing_ok=True)
        with contextlib.suppress(TransientError):
            _systemctl("daemon-reload", is_system=unit.is_system)
        print(f"{unit.name} is stopped and removed; keys and data stay")
    return ExitCode.DONE


def installed() -> list[Installed]:
    """Units that the `install` verb wrote, for this user and for the system."""
    found = []
    for is_system in (False, True):
        for path in sorted(_units(is_system=is_system).glob("shoal-*.service")):
            with contextlib.suppress(OSError, UnicodeDecodeError):
                if path.read_text().startswith(MARK):
                    found.append(Installed(path, is_system))
    return found


def _units(*, is_system: bool) -> Path:
    if is_system:
        return SYSTEM_UNITS
    config = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(config).expanduser() / "systemd" / "user"


def _require_systemd(*, is_system: bool) -> None:
    if not RUNNING_SYSTEMD.is_dir() or shutil.which("systemctl") is None:
        first = "unknown"
        with contextlib.suppress(OSError):
            first = Path("/proc/1/comm").read_text().strip()
        raise UserError(
            f"systemd does not run on this machine (process 1 is {first}). Start the daemon "
            "with whatever supervises programs here (`shoal run`, `shoal syncer run PROJECT`), or "
            "see the unit with --print."
        )
    _require_right(SYSTEM_UNITS, is_system=is_system)


def _require_right(path: Path, *, is_system: bool) -> None:
    if is_system and os.geteuid() != 0:
        raise UserError(
            f"{path} belongs to root. Use sudo, or leave out --system for a user service."
        )


def _home_of_unit(home: Home, *, is_system: bool) -> Path:
    """Where the daemon's keys and data are: what was named, or else the usual place."""
    is_named = HOME_VARIABLE in os.environ or home.root != default_root()
    return Path(STATE) if is_system and not is_named else home.root


def _command(
    home: Home,
    work: str | None,
    options: tuple[str, ...],
    *,
    role: DaemonRole,
    instance: str,
    is_system: bool,
) -> tuple[tuple[str, ...], Joined | None]:
    """The daemon's command, and what must be remembered for it."""
    membership = None
    named = ["--instance", instance] if instance != DEFAULT_INSTANCE else []
    if role == "learner":
        words, membership = _learner(home, work, options, instance)
    else:
        from shoal.project import file_commands

        assert work is not None, "it was asked for"
        signed = str(file_commands.signed_path(Path(work)).absolute())
        if is_system and _is_in_home(signed):
            raise UserError(
                f"{signed} lies in somebody's home, which a system service cannot see. "
                "Copy it elsewhere, such as /etc/shoal."
            )
        words = [role, "run", signed, *options]
    words += named
    return (*PROGRAM, *words), membership


def _learner(
    home: Home, work: str | None, options: tuple[str, ...], instance: str
) -> tuple[list[str], Joined | None]:
    """`run` for what was joined; a link is joined with this, so that the service needs none."""
    from host.join_link import PREFIX

    if work is not None and work.strip("\"'<> \n").startswith(PREFIX):
        membership = memberships.now_joined(work, instance, {})
        link = membership.parsed()
        if options:
            return ["join", membership.link, *options], None
        return ["run", link.project.hex()[:ID_CHARS]], membership
    if options:
        raise UserError(
            "A learner takes options only with a link: shoal service install 'shoal:...' -- "
            + " ".join(options)
        )
    (chosen, *_) = memberships.named(memberships.memberships(home, instance=instance), work)
    return ["run", chosen.link.project.hex()[:ID_CHARS]], None


def _environment(home: Path, *, is_system: bool) -> dict[str, str]:
    named = {HOME_VARIABLE: str(home)}
    if is_system:
        # The user has no home there, or does not see it; libraries keep their caches below.
        named["HOME"] = str(home)
    config = os.environ.get(settings_file.CONFIG_VARIABLE)
    if config or is_system:
        named[settings_file.CONFIG_VARIABLE] = config or SYSTEM_CONFIG
    if path := os.environ.get("PYTHONPATH"):
        named["PYTHONPATH"] = path
    return named


def _checked_user(run_as: str | None, program: str, *, is_system: bool) -> str:
    """The user of a system unit. UserError if it is unknown or could not read the program."""
    if not is_system:
        if run_as is not None:
            raise UserError("--run-as is for --system; a user service runs as you.")
        return ""
    if run_as is not None:
        try:
            pwd.getpwnam(run_as)
        except KeyError as error:
            raise UserError(f"There is no user {run_as} on this machine.") from error
        return run_as
    if _is_in_home(program):
        raise UserError(
            f"{program} lies in somebody's home, which a system service cannot see. "
            "Install Shoal elsewhere, such as /opt/shoal, or name its owner with --run-as."
        )
    return ""


def _is_in_home(program: str) -> bool:
    return program.startswith(HOMES) or os.path.realpath(program).startswith(HOMES)


def _has_accelerators() -> bool:
    places = ("/dev/nvidiactl", "/dev/kfd", "/dev/dri/renderD128", "/dev/accel")
    return any(Path(place).exists() for place in places)


def _groups() -> tuple[str, ...]:
    """Groups that own accelerators, as far as this machine has them."""
    known = {group.gr_name for group in grp.getgrall()}
    return tuple(name for name in DEVICE_GROUPS if name in known)


def _home_flag(home: Path) -> str:
    return "" if home == default_root() else f" --home {home}"


def _lingers() -> bool:
    """Whether this user's services go on without a login."""
    return (Path("/var/lib/systemd/linger") / pwd.getpwuid(os.getuid()).pw_name).exists()


def _write(path: Path, text: str) -> None:
    if path.exists() and not path.read_text(errors="replace").startswith(MARK):
        raise UserError(f"{path} exists and was not written by Shoal. Move it away.")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o644)


def _systemctl(*words: str, is_system: bool) -> str:
    """What systemctl answers. TransientError, with its own words, if it fails."""
    command = ["systemctl", *([] if is_system else ["--user"]), *words]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=SYSTEMCTL_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise TransientError(f"{' '.join(command)} failed: {error}") from error
    if done.returncode != 0:
        said = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        raise TransientError(
            f"`{' '.join(command)}` failed: {said}. The unit is written; try that command again."
        )
    return done.stdout


def _state(unit: Installed) -> dict[str, str]:
    wanted = ",".join(SHOWN)
    try:
        answer = _systemctl("show", unit.name, f"--property={wanted}", is_system=unit.is_system)
    except TransientError:
        return {}
    return dict(line.split("=", 1) for line in answer.splitlines() if "=" in line)
