"""Small swarms of real processes: how they begin, and that nothing of them stays."""

from __future__ import annotations

import contextlib

from host.files.home import Home
from shoal.project import file_commands
from shoal.project.template import create_text
from tests.net.test_swarm_processes import (
    CHANGES,
    Processes,
    free_port,
    start_syncer,
    status,
    until,
)
from tests.support.tiny_project import write_text

OUTPUT_CHARS = 3_000
"""The end of what each daemon printed, shown with a failure."""


@contextlib.contextmanager
def swarm_in(folder, names):
    """A home with a text and no daemons yet. After a failure what these daemons printed is shown;
    in any case all are gone behind the block."""
    write_text(folder / "text.txt", chars=60_000)
    home = Home(folder / "home")
    processes = Processes(folder, home)
    try:
        yield home, processes
    except BaseException:
        for name in names:
            with contextlib.suppress(OSError):
                print(f"--- {name}\n{processes.output(name)[-OUTPUT_CHARS:]}")
        raise
    finally:
        processes.clean_up()


def begin(processes, home, folder, changes):
    """A syncer with weights of an endless project in `tiny.toml`; its status."""
    everything = {
        **CHANGES,
        "data.location": str(folder / "text.txt"),
        "limits.tokens": 10**9,
        **changes,
    }
    path = folder / "tiny.toml"
    path.write_text(create_text("tiny", changes=everything))
    file_commands.sign(path, home, instance="default")
    start_syncer(processes, path, free_port())
    return until(
        lambda: (s := status(home, "syncer")) and s.phase == "training" and s.join_link and s,
        timeout_s=60,
        what="a syncer with weights",
    )
