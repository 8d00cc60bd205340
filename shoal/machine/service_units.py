"""systemd units for daemons: their text, and nothing else.

System units run as a user that exists only while they do and see nothing of the machine but their
own directory. User units keep their user's rights and only give up what no daemon of ours needs:
a user's manager may not build most of the walls. W^X is not demanded of either, because numba and
torch write machine code at run time.
Source: https://www.freedesktop.org/software/systemd/man/latest/systemd.exec.html
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from host.files.home import DaemonRole

MARK: Final = "# Written by `shoal service install`; `shoal service uninstall` removes it."
"""First line, by which units of ours are known."""

STATE: Final = "/var/lib/shoal"
SYSTEM_CONFIG: Final = "/etc/shoal/settings.toml"

FOR_ALL: Final = """\
UMask=0077
NoNewPrivileges=yes
LockPersonality=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
RestrictNamespaces=yes
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX AF_NETLINK
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallErrorNumber=EPERM
"""
"""What a user's manager can do without privileges, and the system's as well."""

FOR_SYSTEM: Final = """\
CapabilityBoundingSet=
AmbientCapabilities=
ProtectSystem=strict
ProtectHome={protect_home}
PrivateTmp=yes
ProtectClock=yes
ProtectControlGroups=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
RemoveIPC=yes
KeyringMode=private
"""

WITHOUT_DEVICES: Final = "PrivateDevices=yes\n"

ACCELERATORS: Final = """\
DevicePolicy=closed
DeviceAllow=char-nvidia rw
DeviceAllow=char-nvidia-frontend rw
DeviceAllow=char-nvidia-uvm rw
DeviceAllow=char-nvidia-caps rw
DeviceAllow=char-drm rw
DeviceAllow=char-kfd rw
DeviceAllow=char-accel rw
SupplementaryGroups={groups}
"""
"""Names from /proc/devices; those that the machine does not have are passed over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitWish:
    """What a unit shall run, and as whom."""

    role: DaemonRole
    instance: str
    command: tuple[str, ...]
    """Program and arguments, whole paths."""
    environment: dict[str, str]
    is_system: bool
    run_as: str = ""
    """A user that exists; empty: one that systemd makes up. Of system units."""
    has_accelerators: bool = False
    groups: tuple[str, ...] = ()
    """Groups that may open accelerators here."""
    is_program_in_home: bool = False
    """Whether the program lies below /home, /root or /run/user."""

    @property
    def name(self) -> str:
        """File name of the unit."""
        return f"shoal-{self.role}-{self.instance}.service"


def text_of(wish: UnitWish) -> str:
    """The unit file."""
    return (
        f"{MARK}\n"
        f"{_unit_section(wish)}\n"
        "[Service]\n"
        "Type=exec\n"
        f"ExecStart={' '.join(quoted(word) for word in wish.command)}\n"
        f"{_environment(wish)}"
        f"{_owner(wish)}"
        "Restart=on-failure\n"
        "RestartSec=30\n"
        "# 2: something to correct, 4: the project does not want this host; a retry cannot help.\n"
        "RestartPreventExitStatus=2 4\n"
        "KillMode=mixed\n"
        "TimeoutStopSec=90\n"
        "# If memory runs out the trainer dies, and its daemon starts it again.\n"
        "OOMPolicy=continue\n"
        "LimitNOFILE=16384\n"
        f"\n{_walls(wish)}"
        f"\n[Install]\nWantedBy={'multi-user.target' if wish.is_system else 'default.target'}\n"
    )


def quoted(word: str) -> str:
    """A word of a command as systemd reads it: `%` and `$` mean something there."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    plain = set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:=+,@%$")
    return escaped if escaped and set(escaped) <= plain else f'"{escaped}"'


def _unit_section(wish: UnitWish) -> str:
    network = "Wants=network-online.target\nAfter=network-online.target\n" if wish.is_system else ""
    return (
        f"[Unit]\nDescription=Shoal {wish.role} {wish.instance}\n{network}"
        "# Networks can be away for hours: never give up on the daemon.\n"
        "StartLimitIntervalSec=0\n"
    )


def _environment(wish: UnitWish) -> str:
    lines = []
    for name, value in sorted(wish.environment.items()):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
        lines.append(f'Environment="{name}={escaped}"\n')
    return "".join(lines)


def _owner(wish: UnitWish) -> str:
    if not wish.is_system:
        return ""
    who = f"User={wish.run_as}\n" if wish.run_as else "DynamicUser=yes\n"
    home = wish.environment.get("SHOAL_HOME", STATE)
    if home == STATE:
        return f"{who}StateDirectory=shoal\nStateDirectoryMode=0700\nWorkingDirectory={STATE}\n"
    return f"{who}ReadWritePaths={quoted(home)}\nWorkingDirectory={quoted(home)}\n"


def _walls(wish: UnitWish) -> str:
    if not wish.is_system:
        return FOR_ALL
    protect_home = "read-only" if wish.is_program_in_home else "yes"
    devices = WITHOUT_DEVICES
    if wish.has_accelerators:
        devices = ACCELERATORS.format(groups=" ".join(wish.groups))
    return FOR_ALL + FOR_SYSTEM.format(protect_home=protect_home) + devices
