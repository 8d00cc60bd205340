"""Where the `shoal` command begins and every failure of it ends: one line, one exit code."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Sequence

PACKAGES = ("protocol", "host", "node", "syncer_node", "simulator", "tui", "shoal")


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code of the command with these arguments, those of the process by default."""
    foreign = foreign_package()
    if foreign is not None:
        print(f"error: {foreign}", file=sys.stderr)
        return 2
    from shoal.common import failures, plain_terminal

    plain_terminal.use_stand_ins()
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if "SHOAL_ENDS_WITH_PARENT" in os.environ:
            from host.runtime import parent_death

            parent_death.obey()
        from shoal.cli import app

        return app.run(given)
    except BrokenPipeError:
        # Whoever read our output has seen enough; the interpreter must not fail over the rest.
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return failures.interrupted()
    except Exception as error:
        from shoal.common import restart

        # Only a process that is nothing but this command may become another one.
        return restart.after(error) if arguments is None else failures.report(error)


def foreign_package() -> str | None:
    """A sentence about the first of our packages that is not ours, or None if all are.

    Their names are plain words, and other distributions install packages of the same names.
    """
    for name in PACKAGES:
        try:
            package = importlib.import_module(name)
        except ImportError as error:
            return f"Shoal's package {name!r} cannot be imported ({error}). Install Shoal again."
        if getattr(package, "__project__", None) != "shoal":
            where = getattr(package, "__file__", None) or "an unknown place"
            return (
                f"The package {name!r} found at {where} is not Shoal's. Remove it, or install "
                "Shoal into a virtual environment of its own."
            )
    return None


if __name__ == "__main__":
    sys.exit(main())
