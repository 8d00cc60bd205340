"""Rules for tests: what they share stands in one place, and they look at objects from outside."""

from __future__ import annotations

import ast
from collections import Counter

from tests.support.sources import trees_of

NAMED_TUPLE = {"_replace", "_asdict"}
"""Public methods in spite of their names."""

PRIVATE = {
    "tests/net/hosts.py": 7,
    "tests/net/test_channel.py": 20,
    "tests/net/test_channel_swarm.py": 9,
    "tests/net/test_engine.py": 6,
    "tests/net/test_relaying.py": 2,
    "tests/net/test_swarm_processes.py": 1,
    "tests/net/test_transport.py": 5,
    "tests/net/test_transport_bulk.py": 5,
    "tests/sim/test_credit.py": 1,
    "tests/sim/test_failover.py": 2,
    "tests/sim/test_machine_state.py": 2,
    "tests/sim/test_provenance.py": 4,
    "tests/sim/test_snapshots.py": 2,
    "tests/sim/test_tape.py": 1,
    "tests/support/screens.py": 1,
    "tests/support/staged.py": 1,
    "tests/unit/host/test_control_server.py": 1,
    "tests/unit/host/test_crash_marker.py": 1,
    "tests/unit/host/test_dialer.py": 1,
    "tests/unit/host/test_http.py": 1,
    "tests/unit/host/test_loop_lag.py": 1,
    "tests/unit/host/test_relay_tls.py": 2,
    "tests/unit/node/test_fragment_bank.py": 5,
    "tests/unit/node/test_learner.py": 3,
    "tests/unit/node/test_planner.py": 1,
    "tests/unit/node/trainer/test_micro_batch.py": 1,
    "tests/unit/node/trainer/test_session_moments.py": 1,
    "tests/unit/shoal/test_config_command.py": 1,
    "tests/unit/shoal/test_demo.py": 1,
    "tests/unit/shoal/test_diagnosis.py": 2,
    "tests/unit/shoal/test_hosting.py": 2,
    "tests/unit/syncer_node/test_election.py": 1,
    "tests/unit/syncer_node/test_leadership.py": 3,
    "tests/unit/syncer_node/test_ledger.py": 1,
}
"""Files that reach into objects of others by a name that begins with an underscore, and how often.
These numbers only fall."""


def imported(tree: ast.Module) -> set[str]:
    """Names of modules, and of what is taken from them."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def is_test(name: str) -> bool:
    parts = name.split(".")
    is_ours = parts[0] == "tests" and any(part.startswith("test_") for part in parts)
    return is_ours


def test_no_test_is_imported():
    wrong = {
        name: sorted(filter(is_test, imported(tree))) for name, tree in trees_of("tests").items()
    }
    assert {name: modules for name, modules in wrong.items() if modules} == {}


def pokes(tree: ast.Module) -> int:
    """Uses of a private attribute of anything but oneself."""
    own = {"self", "cls", "os"}
    return sum(
        isinstance(node, ast.Attribute)
        and node.attr.startswith("_")
        and not node.attr.startswith("__")
        and node.attr not in NAMED_TUPLE
        and not (isinstance(node.value, ast.Name) and node.value.id in own)
        for node in ast.walk(tree)
    )


def test_few_tests_look_inside_of_objects():
    found = Counter(
        {name: count for name, tree in trees_of("tests").items() if (count := pokes(tree))}
    )
    assert found == PRIVATE, "fewer: lower the number here. More: look at it from outside."
