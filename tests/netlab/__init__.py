"""Real network faults for real processes: one network namespace each, and emulated links between.

    with Lab(["syncer", "ada"], link=Link(latency_s=0.02)) as lab:
        process = lab.run("ada", [sys.executable, "-m", "shoal", "join", link])
        lab.cut("syncer", "ada")
        lab.heal()

It needs root; `tests.netlab.marks.needs_lab` marks tests that are skipped where there is none.
docs/testing.md explains it.
"""

from tests.netlab.lab import Lab, LabFailed
from tests.netlab.link import Counts, Link
from tests.netlab.namespaces import missing

__all__ = ["Counts", "Lab", "LabFailed", "Link", "missing"]
