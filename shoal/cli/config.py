"""The verbs of `shoal config`: the owner's settings of this machine."""

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter

from shoal.common.choices import THIS_MACHINE, say, switch

config_app = App(
    name="config", help="Your settings of this machine: limits, hours, devices.", group=THIS_MACHINE
)

Name = Annotated[str, Parameter(name="KEY", help="Such as limits.cpu_percent.")]
AsJson = Annotated[bool, switch("Print JSON.")]


@config_app.command(name="list")
def show(
    *,
    set_only: Annotated[bool, switch("Only settings that differ from the default.")] = False,
    json: AsJson = False,
) -> int:
    """Print all settings in force, and where each comes from."""
    from shoal.machine import config_command

    return say(config_command.show(as_json=json, is_brief=set_only))


@config_app.command
def get(key: Name) -> int:
    """Print the value in force of a setting."""
    from shoal.machine import config_command

    return say(config_command.get(key))


@config_app.command(name="set")
def change(
    key: Name,
    value: Annotated[
        str,
        Parameter(
            name="VALUE",
            help="Lists as 'a; b', tables as 'a=x; b=y', bytes as '8 GiB'.",
            allow_leading_hyphen=True,
        ),
    ],
) -> int:
    """Write a setting into your file; comments in it are kept."""
    from shoal.machine import config_command

    return say(config_command.change(key, value))


@config_app.command
def unset(key: Name) -> int:
    """Remove a setting from your file, so that the default applies again."""
    from shoal.machine import config_command

    return say(config_command.drop(key))


@config_app.command
def explain(key: Name, *, json: AsJson = False) -> int:
    """Print what a setting means, its value and origin, and what it may be."""
    from shoal.machine import config_command

    return say(config_command.explain(key, as_json=json))


@config_app.command
def path() -> int:
    """Print where your settings file is, or would be."""
    from shoal.common import settings_file

    return say([str(settings_file.settings_path())])
