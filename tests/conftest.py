"""What all tests have in common."""

from __future__ import annotations

import gc
import logging
import os
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

from host.runtime import kernel_cache

# Kernels compiled by one test run serve the next, and all processes that tests start.
kernel_cache.use(Path(__file__).parents[1] / ".kernels")

# Importing hivemind makes torch share memory through a helper process for the whole interpreter.
# Daemons never share tensors, but here their tests run in one process with those of the trainer.
os.environ.setdefault("HIVEMIND_MEMORY_SHARING_STRATEGY", "file_descriptor")

# What the person at this machine decided for their own daemons is no business of the tests'.
os.environ["SHOAL_CONFIG"] = os.devnull

# How long an example takes says something about the machine, and nothing about the code.
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")


@pytest.fixture(autouse=True)
def _the_logger_stays_as_it_was():
    """A daemon that a test starts in this process sets Shoal's logger up for itself."""
    logger = logging.getLogger("shoal")
    former = (logger.propagate, logger.level, logger.disabled)
    yield
    logger.propagate, logger.level, logger.disabled = former


LONG_FIRST = ("tests/net/", "tests/sim/", "tests/property/", "tests/tui/", "tests/repo/")


TOGETHER = ("tests/sim/test_tape.py", "tests/sim/test_compare.py")
"""Simulations that share a costly fixture."""


class LongFirst(LoadScopeScheduling):
    """Keeps the tests of a file on one worker, where they share fixtures; simulations share little
    and are handed out one by one, but for `TOGETHER`."""

    def _split_scope(self, nodeid: str) -> str:
        is_alone = nodeid.startswith("tests/sim/") and not nodeid.startswith(TOGETHER)
        return nodeid if is_alone else nodeid.split("::", 1)[0]


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> LongFirst:
    return LongFirst(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that take long begin first, so that no worker ends long before the other. Among them
    the limit of time says which take longest."""

    def folder(item: pytest.Item) -> int:
        starts = [item.nodeid.startswith(place) for place in LONG_FIRST]
        return starts.index(True) if any(starts) else len(LONG_FIRST)

    def limit_s(item: pytest.Item) -> float:
        mark = item.get_closest_marker("timeout")
        return mark.args[0] if mark is not None else 0.0

    longest_s: dict[object, float] = {}
    for item in items:
        longest_s[item.path] = max(longest_s.get(item.path, 0.0), limit_s(item))
    items.sort(key=lambda item: (folder(item), -longest_s[item.path]))


gc.disable()


def pytest_collection_finish() -> None:
    """Half a million objects of imported code and collected tests: to look through them for
    garbage, again and again, costs a tenth of the quick tests."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says what was skipped and why: a quiet run would show only a number."""
    skipped = terminalreporter.getreports("skipped")
    reasons = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in skipped)
    for reason, tests in sorted(reasons.items()):
        terminalreporter.write_line(f"{tests} skipped: {reason}", yellow=True)
