"""The verbs of `shoal sim`."""

from __future__ import annotations

from cyclopts import App

sim_app = App(name="sim", help="Simulate: clusters under failures, links, mixed speeds, borrowing.")
