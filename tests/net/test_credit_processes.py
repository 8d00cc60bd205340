"""Credit among real processes: a lie refused, a leader killed, and proofs with everybody gone.

A syncer and two learners on loopback. Somebody else joins, claims too much and is refused. The
syncer is killed and comes back; one learner finishes, one is killed, and the syncer stops.
"""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from host.files.home import Home
from host.files.signed_project import read_signed
from host.join_link import parse_link
from protocol.fragments import build_layout
from shoal.local_swarm.swarm import HANG_S
from tests.net.forgery import forged_book
from tests.net.hosts import run as run_async
from tests.net.liar import CLAIM, NAME, hand_in_a_lie
from tests.net.swarms import TinySwarm, shoal

pytestmark = [pytest.mark.net, pytest.mark.timeout(1200)]

FINISHES, VICTIM = "ada", "bob"


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


def go_through_it(seen, swarm):
    swarm.prepare()
    swarm.begin()
    genesis = read_signed(swarm.signed).genesis
    layout = build_layout(genesis.model.tensors, genesis.strategy, genesis.fragments)
    lie = hand_in_a_lie(swarm.folder, parse_link(swarm.link), genesis, layout)
    run_async(_keep(seen, lie), timeout_s=HANG_S)
    for name in (FINISHES, VICTIM):
        swarm.start_learner(name, "--duty", "0.5")

    def is_noted():
        ledger = read_ledger(swarm.home)
        named = {row["name"] for row in ledger["contributors"]}
        return ledger if {FINISHES, VICTIM} < named and ledger["refused"] else None

    seen.ledgers["running"] = swarm.until(is_noted, "names and a refusal")
    swarm.kill("syncer")
    seen.ledgers["killed"] = read_ledger(swarm.home)
    swarm.start_syncer()
    # Both are back and in merges; who comes back gets a receipt for all so far.
    swarm.all_merge(FINISHES, VICTIM)
    seen.ledgers["next life"] = read_ledger(swarm.home)
    swarm.kill(VICTIM)
    swarm.tell(FINISHES, "finish")
    seen.finished_code = swarm.ended(FINISHES)
    swarm.tell("syncer", "stop")
    swarm.ended("syncer")
    seen.ledgers["end"] = read_ledger(swarm.home)


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    with TinySwarm(tmp_path_factory.mktemp("credit")) as swarm:
        seen = Seen(swarm.home)
        go_through_it(seen, swarm)
        yield seen


def rows(ledger):
    return {row["key"]: row for row in ledger["contributors"]}


def test_everybody_sees_who_gave_most_also_from_the_disk(seen):
    end = rows(seen.ledgers["end"])
    asked = shoal(seen.home, "contributions", "--all", "--json")
    assert asked.returncode == 0, asked.stderr
    (board,) = json.loads(asked.stdout)
    told = {row["key"]: row for row in board["contributors"]}
    assert told.keys() == {key for key, row in end.items() if row["merges"]}
    assert sum(round(row["share"] * 10) for row in board["contributors"]) == 1000
    assert all(0 < row["since_s"] <= row["merged_at_s"] for row in told.values())
    assert board["told_by"] == "log"


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
