"""Credit among real processes: a lie refused, a leader killed, and proofs with everybody gone.

A syncer and two learners on loopback. Somebody else joins, claims too much and is refused. The
syncer is killed and comes back; one learner finishes, one is killed, and the syncer stops.
"""

from __future__ import annotations

import contextlib
import itertools
import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from host.files.home import Home
from host.files.signed_project import read_signed
from host.join_link import parse_link
from protocol.fragments import build_layout
from shoal.project import file_commands
from tests.net.forgery import forged_book
from tests.net.hosts import run as run_async
from tests.net.liar import CLAIM, NAME, hand_in_a_lie
from tests.net.processes import Processes, free_port, shoal, status, until
from tests.net.test_swarm_processes import start_learner, start_syncer, write_project
from tests.support.tiny_project import write_text

pytestmark = [pytest.mark.net, pytest.mark.timeout(300)]

FINISHES, VICTIM = "ada", "bob"
START_S = 90.0


@dataclass
class Seen:
    """What was seen on the way."""

    home: Home
    lie: Any = None
    """What became of a push that claimed too much."""
    ledgers: dict[str, Any] = field(default_factory=dict)
    """Read off the running syncer, its disk after kill -9, the next life, and the end."""
    finished_code: int | None = None


def read_ledger(home):
    asked = shoal(home, "syncer", "ledger", "--json")
    assert asked.returncode == 0, asked.stderr
    (ledger,) = json.loads(asked.stdout)
    return ledger


async def _keep(seen, doing):
    seen.lie = await doing


def go_through_it(seen, processes, folder):
    home, port = seen.home, free_port()
    path = write_project(folder, 10**9)
    file_commands.sign(path, home, instance="default")
    start_syncer(processes, path, port)
    ready = until(
        lambda: (s := status(home, "syncer")) and s.phase == "training" and s.join_link and s,
        timeout_s=START_S,
        what="a syncer with weights",
    )
    genesis = read_signed(folder / "tiny.shoal").genesis
    layout = build_layout(genesis.model.tensors, genesis.strategy, genesis.fragments)
    lie = hand_in_a_lie(folder, parse_link(ready.join_link), genesis, layout)
    run_async(_keep(seen, lie), timeout_s=70)
    for name in (FINISHES, VICTIM):
        start_learner(processes, ready.join_link, name)

    def is_noted():
        processes.check("syncer", FINISHES, VICTIM)
        ledger = read_ledger(home)
        named = {row["name"] for row in ledger["contributors"]}
        return ledger if {FINISHES, VICTIM} < named and ledger["refused"] else None

    seen.ledgers["running"] = until(is_noted, timeout_s=START_S, what="names and a refusal")
    processes.kill("syncer")
    seen.ledgers["killed"] = read_ledger(home)
    start_syncer(processes, path, port)

    def merges_again():
        """Both are back and in merges; who comes back gets a receipt for all so far."""
        now = status(home, "syncer")
        return now is not None and len([peer for peer in now.peers if peer.merges]) == 2

    until(merges_again, timeout_s=START_S, what="merges after the return")
    seen.ledgers["next life"] = read_ledger(home)
    processes.kill(VICTIM)
    shoal(home, "finish", "--instance", FINISHES)
    seen.finished_code = processes.running[FINISHES].wait(60)
    shoal(home, "stop", "--role", "syncer")
    processes.running["syncer"].wait(30)
    seen.ledgers["end"] = read_ledger(home)


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    folder = tmp_path_factory.mktemp("credit")
    write_text(folder / "text.txt", chars=60_000)
    home = Home(folder / "home")
    seen, processes = Seen(home), Processes(folder, home)
    try:
        go_through_it(seen, processes, folder)
        yield seen
    except BaseException:
        for name in ("syncer", FINISHES, VICTIM):
            with contextlib.suppress(OSError):
                print(f"--- {name}\n{processes.output(name)[-3000:]}")
        raise
    finally:
        processes.clean_up()


def rows(ledger):
    return {row["key"]: row for row in ledger["contributors"]}


def test_a_lie_is_in_the_ledger_with_its_reason_also_after_the_syncer_was_killed(seen):
    assert seen.lie.outcome == "rejected"
    assert f"{CLAIM} tokens in 1 steps" in seen.lie.reason
    for when, ledger in seen.ledgers.items():
        (row,) = [row for row in ledger["contributors"] if not row["merges"]]
        assert row["refused"] == {"rejected: false-claim": 1}, when
        assert row["name"] == row["key"][:8] != NAME


def test_no_life_of_the_syncer_forgets_anything(seen):
    lives = list(seen.ledgers.values())
    assert [one["project"] for one in lives] == [lives[0]["project"]] * 4
    for before, after in itertools.pairwise(lives):
        assert after["log_index"] >= before["log_index"]
        for key, row in rows(before).items():
            later = rows(after)[key]
            assert later["name"] == row["name"]
            for what in ("merges", "fragment_tokens", "clipped"):
                assert later[what] >= row[what]
    for ledger in lives:
        for what in ("merges", "fragment_tokens"):
            assert ledger[what] == sum(row[what] for row in ledger["contributors"])


def test_receipts_say_what_the_ledger_says(seen):
    shown = shoal(seen.home, "contributions", "--json")
    assert shown.returncode == 0, shown.stderr
    gave = {one["name"]: one for one in json.loads(shown.stdout)}
    counted = {row["name"]: row for row in seen.ledgers["end"]["contributors"]}
    assert seen.finished_code == 0
    for what in ("merges", "tokens", "clipped"):
        assert gave[FINISHES][what] == counted[FINISHES][what]
    assert 0 < gave[VICTIM]["merges"] <= counted[VICTIM]["merges"]


def test_receipts_prove_themselves_elsewhere_and_forgeries_are_refused(seen, tmp_path):
    proven = shoal(seen.home, "contributions", "verify")
    assert proven.returncode == 0, proven.stderr
    assert proven.stdout.count("every byte is proven") == 2
    stranger = Home(tmp_path / "stranger")
    book = seen.home.contribution_files()[0]
    shown = shoal(stranger, "contributions", "verify", str(book))
    assert shown.returncode == 0, shown.stderr
    assert not stranger.root.exists()

    content = book.read_bytes()
    changed = bytearray(content)
    changed[len(changed) // 2] ^= 1
    forgeries = {
        "something in it was changed": bytes(changed),
        "not a whole file": content[:-40],
        "no syncer of the charter": forged_book(content, tmp_path / "key"),
    }
    for said, forgery in forgeries.items():
        file = tmp_path / "shown.json"
        file.write_bytes(forgery)
        refused = shoal(stranger, "contributions", "verify", str(file))
        assert refused.returncode == 1
        assert f"{file} proves nothing: " in refused.stderr
        if said != "something in it was changed":
            assert said in refused.stderr
