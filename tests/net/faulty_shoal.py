"""The `shoal` command with a fault planted in the syncer's machine.

    python faulty_shoal.py FILE ARGUMENTS...

While FILE has lines, each start takes the first of them: the name of an event over which the
machine fails, or `nothing`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from shoal.__main__ import main
from syncer_node.machine.syncer import SyncerMachine

real_handle = SyncerMachine.handle


def plant(fault: str) -> None:
    def handle(self, event, now_s):
        effects = real_handle(self, event, now_s)
        if type(event).__name__ == fault:
            raise ZeroDivisionError("planted")
        return effects

    SyncerMachine.handle = handle


faults = Path(sys.argv.pop(1))
first, _, rest = faults.read_text().partition("\n")
faults.write_text(rest)
plant(first)
sys.exit(main())
