"""What all tests have in common."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from host.runtime import kernel_cache

# Kernels compiled by one test run serve the next, and all processes that tests start.
kernel_cache.use(Path(__file__).parents[1] / ".kernels")

# Importing hivemind makes torch share memory through a helper process for the whole interpreter.
# Daemons never share tensors, but here their tests run in one process with those of the trainer.
os.environ.setdefault("HIVEMIND_MEMORY_SHARING_STRATEGY", "file_descriptor")

# What the person at this machine decided for their own daemons is no business of the tests'.
os.environ["SHOAL_CONFIG"] = os.devnull


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says what was skipped and why: a quiet run would show only a number."""
    skipped = terminalreporter.getreports("skipped")
    reasons = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in skipped)
    for reason, tests in sorted(reasons.items()):
        terminalreporter.write_line(f"{tests} skipped: {reason}", yellow=True)
