"""Tiny swarms of real processes that train one of the examples."""

from __future__ import annotations

from tests.net.swarms import TinySwarm
from tests.support.examples import example_text

QUICK = {
    "rounds__patience_s": 3.0,
    "rounds__pull_timeout_s": 5.0,
    "limits__lease_s": 15.0,
    "limits__tokens": 10**9,
    "training__warmup_frac": 0.0,  # Of such a budget it would be all that a test sees.
}


class ExampleSwarm(TinySwarm):
    """Daemons on one machine that train a project of `examples/`."""

    def prepare_example(self, place, **changes):
        """The signed project of an example; keys of `changes` have `__` for a dot."""
        self.write_project("example", {})
        self.project.write_text(example_text(place, **{**QUICK, **changes}))
        self.sign()
