"""The verbs of `shoal project`: the file, and the rules of a project that runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter, validators

from host.files.home import DEFAULT_INSTANCE
from shoal.common.choices import HOST, HomeHere, Instance, Key, ProjectPath, WholeKey, say, switch
from shoal.project.presets import PresetName

project_app = App(
    name="project", help="Create, sign and read project files; change rules and voters.", group=HOST
)


@project_app.command
def create(
    path: Annotated[Path, Parameter(help="The file to write, or its directory.")] = Path(
        "project.toml"
    ),
    *,
    name: Annotated[str | None, Parameter(help="What the project is called.")] = None,
    preset: Annotated[
        PresetName,
        Parameter(help="Values for a small model on few machines, or the published ones."),
    ] = "small",
) -> int:
    """Write a project file with every setting explained."""
    from shoal.project import file_commands

    return say(file_commands.create(path, name, preset))


@project_app.command
def sign(
    path: Annotated[Path, Parameter(help="The project file (.toml).")],
    *,
    change_voter: Annotated[
        bool, switch("Accept a voter that the file adds to, or leaves out of, what is signed.")
    ] = False,
    instance: Instance = DEFAULT_INSTANCE,
    home: HomeHere,
) -> int:
    """Check a project file against model and text, and sign it with the owner's key."""
    from shoal.project import file_commands

    return say(file_commands.sign(path, home, instance=instance, changes_voter=change_voter))


@project_app.command
def show(
    path: Annotated[Path, Parameter(help="A signed project (.shoal) or a project file (.toml).")],
) -> int:
    """Print what a project file says."""
    from shoal.project import file_commands

    return say(file_commands.show(path))


@project_app.command
def invite(
    project: Annotated[
        Path | None,
        Parameter(help="Only this signed project; otherwise whatever the syncer here serves."),
    ] = None,
    *,
    wait: Annotated[
        str | None, Parameter(help="How long to wait for a syncer: 30s, 5m; not at all by default.")
    ] = None,
    instance: Instance = DEFAULT_INSTANCE,
    home: HomeHere,
) -> int:
    """Print the join link of the syncer that runs here, and nothing else."""
    from shoal.project import invite_command

    return invite_command.invite(home, project, instance=instance, wait=wait)


@project_app.command
def add_syncer(
    key: WholeKey,
    project: ProjectPath,
    *,
    priority: Annotated[
        int,
        Parameter(
            help="Of several syncers the highest leads when it can.",
            validator=validators.Number(gte=0, lte=100),
        ),
    ] = 5,
    home: HomeHere,
) -> int:
    """Add a syncer that stands by, ready to lead; `shoal syncer key` prints its key there."""
    from shoal.project import charter_commands

    return say(charter_commands.add_voter(project, home, key=key, role="syncer", priority=priority))


@project_app.command
def add_witness(key: WholeKey, project: ProjectPath, *, home: HomeHere) -> int:
    """Add a witness that votes; `shoal witness key` prints its key there."""
    from shoal.project import charter_commands

    return say(charter_commands.add_voter(project, home, key=key, role="witness", priority=0))


@project_app.command(name=["remove-voter", "remove-syncer", "remove-witness"])
def remove_voter(key: Key, project: ProjectPath, *, home: HomeHere) -> int:
    """Take a syncer's or a witness's vote away."""
    from shoal.project import charter_commands

    return say(charter_commands.remove_voter(project, home, key=key))


@project_app.command
def readmit(key: Key, project: ProjectPath, *, home: HomeHere) -> int:
    """Readmit a voter whose disk was wiped, replaced, or restored from a copy."""
    from shoal.project import charter_commands

    return say(charter_commands.readmit(project, home, key=key))


@project_app.command
def ban(key: WholeKey, project: ProjectPath, *, home: HomeHere) -> int:
    """Ban a learner from now on."""
    from shoal.project import charter_commands

    return say(charter_commands.ban(project, home, key=key))


@project_app.command
def unban(
    key: Annotated[str, Parameter(help="The learner's key; its first 8 digits are enough.")],
    project: ProjectPath,
    *,
    home: HomeHere,
) -> int:
    """Let a banned learner take part again."""
    from shoal.project import charter_commands

    return say(charter_commands.unban(project, home, key=key))


@project_app.command(name="set")
def set_values(
    project: ProjectPath,
    *settings: Annotated[
        str,
        Parameter(
            help="NAME=VALUE as in the project file, such as rounds.quorum=2 or "
            "seat.durability=majority."
        ),
    ],
    home: HomeHere,
) -> int:
    """Change rules of a project: [training], [outer], [rounds], [limits], [seat]."""
    from shoal.project import charter_commands

    return say(charter_commands.set_values(project, home, settings=list(settings)))


@project_app.command
def reset_seat(
    project: ProjectPath,
    *,
    keep: Annotated[
        tuple[str, ...],
        Parameter(
            help="Key of a voter that stays; repeatable. This host's syncer alone otherwise.",
            negative="",
        ),
    ] = (),
    yes: Annotated[bool, switch("Do it; by default only say what would happen.")] = False,
    force: Annotated[bool, switch("Even if a majority of the voters is here.")] = False,
    from_learners: Annotated[
        str | None,
        Parameter(
            help="A join link that still leads into the swarm: go on from what learners can "
            "prove, where no syncer's disk is left."
        ),
    ] = None,
    instance: Instance = DEFAULT_INSTANCE,
    home: HomeHere,
) -> int:
    """Continue from this host's records after most voters are lost for good, in a new epoch."""
    from shoal.project import reset_seat_command

    return say(
        reset_seat_command.reset_seat(
            project,
            home,
            keep=keep,
            instance=instance,
            is_confirmed=yes,
            is_forced=force,
            link=from_learners,
        )
    )


@project_app.command
def restore_snapshot(
    project: ProjectPath,
    snapshot: Annotated[
        str | None,
        Parameter(
            help="Which one, by its name in `shoal syncer snapshot --list`; the newest by default."
        ),
    ] = None,
    *,
    yes: Annotated[bool, switch("Do it; by default only say what would happen.")] = False,
    instance: Instance = DEFAULT_INSTANCE,
    home: HomeHere,
) -> int:
    """Go back to a snapshot of the whole swarm: a new epoch, in which learners go on from theirs.

    A damaged snapshot gives way to the good one before it, which is named.
    """
    from shoal.project import restore_command

    return restore_command.restore(
        project, home, snapshot=snapshot, instance=instance, is_confirmed=yes
    )
