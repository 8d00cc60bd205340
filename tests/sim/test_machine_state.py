"""A machine that was written and read again goes on exactly as the one that it was written from."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import fields, is_dataclass

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from protocol.errors import MalformedMessage
from protocol.log.records import PushProbed, WeightsRestored
from protocol.project import OuterSpec, encode, project_id
from simulator.scenarios.swarm import Swarm, build_swarm
from syncer_node.machine import jobs
from syncer_node.machine.syncer import SyncerMachine
from syncer_node.raft import jobs as raft_jobs
from syncer_node.storage import machine_state
from syncer_node.storage.machine_state import (
    LeaderState,
    VoterState,
    decode_state,
    encode_state,
    leader_parts_of,
    parts_of,
    read_machine,
    write_machine,
)
from syncer_node.storage.tape_recorder import digest_of
from tests.support.builders import rounds

GIVEN = {
    "machine": {"setup", "state", "effects", "recent", "leadership", "raft", "standby", "merger"},
    "log": {"project", "entries"},
    "context": {"setup", "effects", "log", "app"},
    "raft": {"context", "voter_streams", "election", "replication"},
    "election": {"context"},
    "replication": {"context", "proofs"},
    "proofs": {"context"},
    "standby": {
        *("effects", "state", "leader", "on_payload", "is_needed"),
        *("_wanted", "_queue", "_replaying"),
    },
    "leadership": {
        *("setup", "effects", "state", "recent", "faults", "members", "networks", "_propose"),
        *("invites", "contributor_notes", "rounds", "leasing", "followers", "receipts"),
        *("evaluating", "snapshots", "probing", "restoring", "mergers"),
    },
    "merger": {"effects", "held"},
    "mergers": {
        *("effects", "own", "able", "fetched", "merged", "lose", "most", "pull_timeout_s"),
    },
    "members": set(),
    "invites": {"state", "propose"},
    "contributor_notes": {"state", "members", "propose"},
    "rounds": {
        *("effects", "state", "members", "spec", "outer", "numels", "coverage"),
        *("propose", "is_returning", "contributor_notes", "pace", "rounds", "rng", "judge"),
        *("mergers",),
    },
    "pace": {"spec", "fragments", "_behind"},
    "leasing": {
        *("state", "members", "limits", "propose", "supply", "order", "has_in_hand"),
        *("step_tokens", "sequence_tokens"),
    },
    "coverage": {"shape", "step_tokens", "step_tokens_max"},
    "supply": {"local_steps", "step_sequences", "block_sequences", "_speeds"},
    "receipts": {"_effects", "_state", "_members", "_bring_up"},
    "evaluating": {"state", "members", "every", "checkpoint_every", "propose"},
    "restoring": {"effects", "state", "propose"},
    "probing": {"effects", "state", "members", "rounds", "setup", "propose", "trails"},
    "trails": {"state", "block_sequences", "fragments"},
    "snapshots": {"followers", "setup", "effects", "recent", "members", "rounds", "book"},
}
"""What parts are built with, or what `VoterState` and `LeaderState` hold beside them."""


PROBING = OuterSpec(0.7, 0.5, 3.0, probes_frac=1.0)


def read_again(machine: SyncerMachine) -> SyncerMachine:
    setup = machine.setup
    return read_machine(
        write_machine(machine),
        project=setup.project,
        genesis=setup.genesis,
        signer=setup.signer,
        verify=setup.verify,
    )


def attributes(part: object) -> set[str]:
    return {one.name for one in fields(part)} if is_dataclass(part) else set(vars(part))


def assert_nothing_is_forgotten(machine: SyncerMachine) -> None:
    groups = [(VoterState, parts_of(machine))]
    if machine.leadership is not None:
        groups.append((LeaderState, leader_parts_of(machine.leadership)))
    for kind, parts in groups:
        written = {
            one.name: one.type.__struct_fields__
            for one in msgspec.structs.fields(kind)
            if one.name in parts
        }
        for name, part in parts.items():
            assert attributes(part) == {*written[name]} | GIVEN[name], name


class Twins:
    """Beside every machine of a swarm one that was written and read some events ago."""

    def __init__(self, patch: pytest.MonkeyPatch, every: int) -> None:
        self.compared = self.led = self.snapshots = self.behind = 0
        self._twins: dict[int, tuple[SyncerMachine, SyncerMachine, int]] = {}
        self._every = every
        self._handle = SyncerMachine.handle
        twins = self

        def handle(machine: SyncerMachine, event: object, now_s: float) -> list[object]:
            return twins.handle(machine, event, now_s)

        patch.setattr(SyncerMachine, "handle", handle)
        for name in ("fault", "drain", "take_snapshot", "offer_charter"):
            patch.setattr(SyncerMachine, name, self._also(getattr(SyncerMachine, name)))

    def _also(self, act: Callable[..., list[object]]) -> Callable[..., list[object]]:
        def acted(machine: SyncerMachine, *given: object) -> list[object]:
            effects = act(machine, *given)
            if id(machine) in self._twins:
                twin = self._twins[id(machine)][1]
                assert digest_of(act(twin, *given)) == digest_of(effects)
            return effects

        return acted

    def handle(self, machine: SyncerMachine, event: object, now_s: float) -> list[object]:
        effects = self._handle(machine, event, now_s)
        _, twin, count = self._twins.get(id(machine), (machine, None, 0))
        if twin is not None:
            assert digest_of(self._handle(twin, event, now_s)) == digest_of(effects), event
            self.compared += 1
        if count % self._every == 0:
            if twin is not None:
                assert write_machine(twin) == write_machine(machine)
            assert_nothing_is_forgotten(machine)
            twin = read_again(machine)
            leadership = machine.leadership
            self.led += leadership is not None and bool(leadership.rounds.rounds)
            self.snapshots += leadership is not None and leadership.snapshots.taking is not None
            self.behind += bool(machine.standby.is_waiting or machine.standby._queue)
        assert twin is not None
        self._twins[id(machine)] = (machine, twin, count + 1)
        return effects


def troubled(swarm: Swarm, until_s: float) -> None:
    """A leader that is lost and comes back, and snapshots before and after."""
    first = swarm.syncers[0]
    swarm.world.run(0.3 * until_s)
    swarm.take_snapshot()
    swarm.world.run(0.5 * until_s)
    first.crash()
    swarm.world.run(0.75 * until_s)
    first.boot()
    swarm.take_snapshot()
    swarm.world.run(until_s)


@pytest.mark.parametrize(("seed", "every", "syncers"), [(1, 3, 1), (2, 17, 3)])
def test_a_machine_that_was_read_goes_on_as_the_one_that_was_written(seed, every, syncers):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("syncer_node.machine.telling.recent_entries.RECENT_RECORDS", 16)
        patch.setattr("syncer_node.raft.log.ENTRIES_KEPT", 16)
        twins = Twins(patch, every)
        swarm = build_swarm(seed, syncers=syncers, outer=PROBING)
        troubled(swarm, 24.0)
    assert any(isinstance(record.body, PushProbed) for record in swarm.ledger.records)
    assert twins.compared > 200
    assert twins.led > 0


def test_that_holds_while_syncers_merge_for_each_other(monkeypatch):
    twins = Twins(monkeypatch, 5)
    spec = rounds(overlap_steps=4, mergers_max=0)
    swarm = build_swarm(2, syncers=3, outer=PROBING, rounds=spec)
    troubled(swarm, 30.0)
    assert {merged.merger for merged in swarm.ledger.merges[-12:]} > {None}
    assert any(isinstance(record.body, PushProbed) for record in swarm.ledger.records)
    assert twins.compared > 200


@pytest.mark.slow
def test_that_holds_while_the_guard_goes_back(monkeypatch):
    swarm = build_swarm(1, syncers=3)
    swarm.world.run(5.0)
    limits = swarm.syncer.syncer.setup.charter.limits
    swarm.revise(guard="restore", limits=msgspec.structs.replace(limits, evaluate_every=8))
    swarm.world.run(40.0)
    swarm.revise(outer=OuterSpec(20.0, 0.5, 3.0))
    twins = Twins(monkeypatch, 7)

    def went_back() -> bool:
        return any(isinstance(record.body, WeightsRestored) for record in swarm.ledger.records)

    swarm.world.run(120.0, stop=went_back)
    assert went_back()
    swarm.world.run(swarm.world.now_s + 3.0)
    assert twins.compared > 200


@pytest.mark.slow
def test_that_holds_while_snapshots_are_taken_and_standbys_are_behind(monkeypatch):
    twins = Twins(monkeypatch, 1)
    troubled(build_swarm(5, syncers=3), 24.0)
    assert min(twins.led, twins.snapshots, twins.behind) > 0


@pytest.fixture(scope="module")
def leader() -> SyncerMachine:
    swarm = build_swarm(3)
    swarm.world.run(12.0, stop=lambda: bool(swarm.merges > 4 and swarm.syncer.syncer.effects.jobs))
    machine = swarm.syncer.syncer
    assert machine.leadership is not None
    return machine


def forged(machine: SyncerMachine, change: Callable[[VoterState], object]) -> bytes:
    state = decode_state(write_machine(machine))
    change(state)
    return encode_state(state)


def job(kind: str, content: object = None) -> dict[int, machine_state.JobState]:
    raw = msgspec.Raw(msgspec.msgpack.encode(content))
    return {7: machine_state.JobState(kind, raw)}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda state: setattr(state, "jobs", job("Popen", ["sh"])), "asks for no 'Popen'"),
        (lambda state: setattr(state, "jobs", job("subprocess:Popen", {})), "asks for no 'sub"),
        (lambda state: setattr(state, "jobs", job("SwarmState", {})), "asks for no 'Swarm"),
        (lambda state: setattr(state, "jobs", job("WriteSnapshot", {})), "missing required"),
        (lambda state: setattr(state, "jobs", job("Replay", {"merged": 3})), "Expected"),
        (lambda state: setattr(state, "replaying", 1 << 40), "1099511627776"),
        (lambda state: setattr(state, "last_job", "many"), "Expected `int`, got `str`"),
        (lambda state: setattr(state.log, "stable", None), r"Expected `int`, got `None`"),
        (lambda state: setattr(state.context, "role", "owner"), "Invalid enum value"),
        (lambda state: setattr(state, "leader", ["seat"]), r"\$\.*"),
        (lambda state: setattr(state, "entries", ([b"x", None, {}],)), "Record"),
        (lambda state: setattr(state, "rng", (3, (1, 2), None)), "state"),
    ],
)
def test_a_forged_state_makes_nothing(leader, change, words):
    encoded = forged(leader, change)
    setup = leader.setup
    with pytest.raises(MalformedMessage, match=words):
        read_machine(
            encoded,
            project=setup.project,
            genesis=setup.genesis,
            signer=setup.signer,
            verify=setup.verify,
        )


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_bytes_that_were_changed_are_a_state_or_malformed(leader, data):
    encoded = bytearray(write_machine(leader))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(encoded) - 1))
        encoded[at] = data.draw(st.integers(0, 255))
    setup = leader.setup
    with contextlib.suppress(MalformedMessage):
        read_machine(
            bytes(encoded),
            project=setup.project,
            genesis=setup.genesis,
            signer=setup.signer,
            verify=setup.verify,
        )


def test_every_job_that_is_answered_can_be_in_a_state():
    kinds = [*vars(jobs).values(), *vars(raft_jobs).values()]
    asked = {
        one.__name__ for one in kinds if isinstance(one, type) and "nswer: `" in str(one.__doc__)
    }
    assert asked == set(machine_state._JOBS)


def test_a_project_is_its_genesis(leader):
    assert project_id(encode(leader.setup.genesis)) == leader.setup.project
