"""Simulated swarms on tape: they replay to the same, and whatever is altered is named."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from host.files.home import Home
from host.tape.tape_file import find_tapes
from protocol.errors import UserError
from protocol.messages import CertifiedRecord, Vote
from protocol.project import Genesis, OuterSpec, project_id
from protocol.tape import (
    MERGED_PARTS,
    Base,
    Frame,
    Input,
    MachineState,
    PushPayload,
    StepsDone,
    TapeDamaged,
    TapeWriting,
)
from shoal.sim import replay_command
from simulator.checkers.ledger import Ledger
from simulator.replay.audit import ReplaySigner
from simulator.replay.divergence import Diverged
from simulator.replay.replay import ReplayReport, replay
from simulator.replay.round_history import history_of
from simulator.scenarios.swarm import build_swarm
from simulator.stand_ins.tiny import sim_verify
from syncer_node.machine import jobs
from syncer_node.machine.jobs import Keep, Merge
from syncer_node.raft import jobs as raft_jobs
from syncer_node.storage import tape_recorder
from syncer_node.storage.machine_state import VoterState, read_machine, write_machine
from syncer_node.storage.tape_recorder import read_decision
from tests.support import builders
from tests.support.taping import alter, file_of, frames_of, record_swarm
from tui.sources.recording import Recording


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Ledger]:
    folder = tmp_path_factory.mktemp("tapes")
    return folder, record_swarm(folder, 11).ledger


@pytest.fixture
def tape(recorded: tuple[Path, Ledger], tmp_path: Path) -> Path:
    """A copy that a test may spoil."""
    return Path(shutil.copytree(recorded[0], tmp_path / "tape"))


def again(place: Path, **choices: object) -> ReplayReport:
    return replay(place, place, **choices)  # type: ignore[arg-type]


def events(place: Path) -> Path:
    """The first file of what the syncer was told."""
    return sorted(place.glob("syncer*/*-events-*"))[0]


def decided(one: Input, kind: str) -> list[Merge | Keep]:
    return [read_decision(name, content) for name, content in one.decided if name == kind]


def with_decision(one: Input, old: Merge | Keep, new: Merge | Keep) -> Input:
    name = type(old).__name__
    its = msgspec.msgpack.encode(new)
    parts = tuple(
        (kind, its if kind == name and read_decision(kind, content) == old else content)
        for kind, content in one.decided
    )
    return msgspec.structs.replace(one, decided=parts)


def change_first(
    kind: type[Merge] | type[Keep], change: Callable[[Merge | Keep], Merge | Keep | None]
) -> Callable[[list[Frame]], list[Frame]]:
    """Alter the first decision of a kind for which there is something to alter."""

    def changed(frames: list[Frame]) -> list[Frame]:
        for at, frame in enumerate(frames):
            if isinstance(frame, Input):
                for old in decided(frame, kind.__name__):
                    new = change(old)
                    if new is not None:
                        return [*frames[:at], with_decision(frame, old, new), *frames[at + 1 :]]
        raise AssertionError("nothing was altered")

    return changed


def test_every_round_is_audited_and_merged_again(recorded: tuple[Path, Ledger]) -> None:
    folder, ledger = recorded
    whole = again(folder)
    assert len(whole.audits) == 2, "two lives of the syncer"
    assert len(whole.rounds) == len(ledger.merges) > 20
    assert whole.audited == whole.merged == whole.rounds.keys()
    assert whole.retrained == whole.rounds.keys()
    assert not whole.untried


def test_three_syncers_with_an_election_replay_together(tmp_path: Path) -> None:
    swarm = record_swarm(tmp_path, 4, syncers=3)
    whole = again(tmp_path)
    assert len(whole.rounds) == len(swarm.ledger.merges)
    assert whole.merged == whole.rounds.keys()
    leaders = {done.preface.key for done in whole.audits if done.merges}
    assert len(leaders) == 2, "the one that was away, and the one that took its seat"


def test_what_each_merger_merged_is_merged_again_from_its_own_tape(tmp_path: Path) -> None:
    spec = builders.rounds(overlap_steps=4, mergers_max=0)
    swarm = record_swarm(tmp_path, 4, syncers=3, rounds=spec)
    whole = again(tmp_path)
    assert len(whole.rounds) == len(swarm.ledger.merges)
    assert whole.merged == whole.rounds.keys()
    merged_by = {one.merger for one in swarm.ledger.merges}
    assert len(merged_by) == 4, "each of them, and the leader by itself"


def test_recording_changes_nothing(tmp_path: Path) -> None:
    swarm = record_swarm(tmp_path, 11)
    other = build_swarm(11)
    first = other.syncers[0]
    other.world.at(30.0, first.crash)
    other.world.at(33.0, first.boot)
    other.world.run(60.0)
    assert other.ledger.merges == swarm.ledger.merges
    assert other.world.facts == swarm.world.facts


def test_an_altered_weight_is_named(tape: Path) -> None:
    def heavier(merge: Merge | Keep) -> Merge | None:
        if not isinstance(merge, Merge) or merge.round != 5:
            return None
        part = dataclasses.replace(merge.parts[0], weight=merge.parts[0].weight * 2)
        return dataclasses.replace(merge, parts=(part, *merge.parts[1:]))

    alter(events(tape), change_first(Merge, heavier))
    with pytest.raises(Diverged, match=r"round 5: push \d+ of \w+ has weight .* on the tape"):
        again(tape)


def test_a_swapped_arrival_is_named(tape: Path) -> None:
    def swap(frames: list[Frame]) -> list[Frame]:
        pushes = [
            at
            for at, one in enumerate(frames)
            if isinstance(one, Input) and one.kind == "Received" and b"push" in one.content[32:40]
        ]
        one, other = pushes[20], pushes[21]
        frames[one], frames[other] = frames[other], frames[one]
        return frames

    alter(events(tape), swap)
    with pytest.raises(Diverged, match=r"event \d+ \(message 'push' from"):
        again(tape)


def test_a_forged_certificate_is_named(tape: Path) -> None:
    def forge(keep: Merge | Keep) -> Keep | None:
        assert isinstance(keep, Keep)
        if keep.index != 20:
            return None
        proof = keep.entry.certificate
        votes = tuple(Vote(vote.voter, bytes(64)) for vote in proof.votes)
        entry = CertifiedRecord(keep.entry.record, msgspec.structs.replace(proof, votes=votes))
        return Keep(entry, keep.index)

    alter(events(tape), change_first(Keep, forge))
    with pytest.raises(Diverged, match="record 20 is not certified: 0 valid votes"):
        again(tape)


def test_a_lost_input_is_named(tape: Path) -> None:
    def lose(frames: list[Frame]) -> list[Frame]:
        at = next(
            at
            for at, one in enumerate(frames)
            if at > 300 and isinstance(one, Input) and one.kind == "JobDone"
        )
        return frames[:at] + frames[at + 1 :]

    alter(events(tape), lose)
    with pytest.raises(Diverged, match="event 3"):
        again(tape)


def test_an_altered_push_is_named(tape: Path) -> None:
    def spoil(frames: list[Frame]) -> list[Frame]:
        pushes = [at for at, one in enumerate(frames) if isinstance(one, PushPayload)]
        at = pushes[len(pushes) // 2]  # The last ones may have come too late to be merged.
        one = frames[at]
        assert isinstance(one, PushPayload)
        content = bytes((one.content[0] ^ 1,)) + one.content[1:]
        frames[at] = msgspec.structs.replace(one, content=content)
        return frames

    path = sorted(tape.rglob("*-payloads-*"))[0]
    alter(path, spoil)
    with pytest.raises(Diverged, match="is not what its header names"):
        again(tape)


def test_a_local_step_more_is_named(tape: Path) -> None:
    def more(frames: list[Frame]) -> list[Frame]:
        at = next(at for at, one in enumerate(frames) if isinstance(one, StepsDone))
        one = frames[at]
        assert isinstance(one, StepsDone)
        frames[at] = msgspec.structs.replace(one, local_step=one.local_step + 1)
        return frames

    alter(sorted(tape.glob("learner-1/*-events-*"))[0], more)
    with pytest.raises(Diverged, match=r"push \d+ of learner-1 .* came out differently"):
        again(tape)


def test_an_altered_base_is_named(tape: Path) -> None:
    """The weights that a kept window begins from do not come to the certified ones."""

    def spoil(frames: list[Frame]) -> list[Frame]:
        at = next(at for at, one in enumerate(frames) if isinstance(one, Base))
        one = frames[at]
        assert isinstance(one, Base)
        content = one.content[:2] + bytes((one.content[2] ^ 1,)) + one.content[3:]
        frames[at] = msgspec.structs.replace(one, content=content)
        return frames

    alter(sorted(tape.rglob("*-payloads-*"))[0], spoil)
    with pytest.raises(Diverged, match="the new weights came out differently"):
        again(tape)


@pytest.mark.slow
def test_what_was_merged_before_a_life_is_on_its_tape(tmp_path: Path) -> None:
    """Pushes are compared with it: without it a merge comes out otherwise."""
    ledger = record_swarm(tmp_path, 11, outer=OuterSpec(0.7, 0.5, 3.0, trust="earned")).ledger
    parts = [part for merge in ledger.merges for part in merge.contributions]
    assert sum(part.echo > 0 for part in parts) > 40
    assert any(part.novelty is not None for part in parts)
    whole = again(tmp_path)
    assert whole.merged == whole.rounds.keys()
    second = max(tmp_path.rglob("syncer*/*-payloads-*"), key=lambda path: path.stat().st_mtime_ns)

    def forget(frames: list[Frame]) -> list[Frame]:
        left = [one for one in frames if not isinstance(one, Base) or one.part not in MERGED_PARTS]
        assert len(left) < len(frames)
        return left

    alter(second, forget)
    with pytest.raises(Diverged, match="the echoes came out differently"):
        again(tmp_path)


def test_without_payloads_rounds_are_audited_only(tape: Path) -> None:
    for path in tape.rglob("*-payloads-*"):
        path.unlink()
    whole = again(tape)
    assert whole.audited == whole.rounds.keys()
    assert not whole.merged
    assert whole.untried["merge"] == {"pushes were not kept": len(whole.rounds)}


def test_until_looks_at_nothing_behind_a_round(recorded: tuple[Path, Ledger]) -> None:
    whole = again(recorded[0], until=7)
    first = whole.audits[0]
    assert first.is_cut_short
    # Rounds overlap: a later one may be committed just before.
    assert 7 <= max(merged.round for merged in first.rounds.values()) <= 9


def test_a_round_is_explained(
    recorded: tuple[Path, Ledger], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code = replay_command.run(recorded[0], home=Home(tmp_path), explain=9)
    assert code == 0
    told = capsys.readouterr().out
    assert told.startswith("round 9: fragment ")
    assert "committed" in told
    for word in ("learner-0", "weight", "share", "merged"):
        assert word in told


def test_who_was_in_a_merge_is_explained(recorded: tuple[Path, Ledger]) -> None:
    whole = again(recorded[0], levels=("audit",))
    looked_at = 0
    for done in whole.audits:
        for history in done.histories.all:
            in_merge = {part.learner for part in history.parts.values() if part.weight is not None}
            merged = [one for one in done.rounds.values() if one.round == history.round]
            if merged and history.global_step is not None:
                assert in_merge == {one.learner for one in merged[-1].contributions}
                looked_at += 1
    assert looked_at > 20


def test_a_learner_that_was_late_is_explained_in_both_rounds(
    recorded: tuple[Path, Ledger], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """In the one that did not wait for it, and in the one that it was counted in."""
    whole = again(recorded[0], levels=("audit",))
    histories = {history.round: history for done in whole.audits for history in done.histories.all}
    late = [
        (history, part)
        for history in histories.values()
        for part in history.parts.values()
        if part.why.startswith("counted in round ")
    ]
    assert late
    for history, part in late:
        assert part.fate == "late"
        assert part.weight is None
        later = histories[int(part.why.split()[-1])]
        assert (later.fragment, later.round > history.round) == (history.fragment, True)
        its = later.parts[part.learner]
        assert its.why == f"asked for in round {history.round}, which did not wait for it"
        assert its.lag >= 1
        assert its.weight == its.tokens**2 / its.steps / (1 + its.lag)
        assert its.asked_s == part.asked_s < later.opened_s
    first, later_number = late[0][0], int(late[0][1].why.split()[-1])
    for number, words in (
        (first.round, f"late: counted in round {later_number}"),
        (later_number, f"asked for in round {first.round}, which"),
    ):
        assert replay_command.run(recorded[0], home=Home(tmp_path), explain=number) == 0
        told = " ".join(capsys.readouterr().out.split())
        assert words in told, told


# Tapes that lost their beginning.


@pytest.fixture(scope="module")
def rotated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Ledger]:
    """A small tape of a long run, by a syncer that keeps little at hand."""
    folder = tmp_path_factory.mktemp("rotated")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("host.tape.tape_file.MIB_MIN", 1)
        patch.setattr("syncer_node.machine.telling.recent_entries.RECENT_RECORDS", 16)
        patch.setattr("syncer_node.raft.log.ENTRIES_KEPT", 16)
        return folder, record_swarm(folder, 11, until_s=660.0, mib_max=1).ledger


@pytest.mark.slow
def test_a_tape_that_lost_its_beginning_is_replayed_from_a_state_on_it(
    rotated: tuple[Path, Ledger], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder, ledger = rotated
    assert not any(life.has_begin() for life in find_tapes(folder / "syncer"))
    whole = again(folder)
    total = len(ledger.merges)
    assert whole.rounds_before + len(whole.rounds) == total
    assert 50 < len(whole.rounds) < total - 50
    assert whole.audited == whole.rounds.keys()
    assert len(whole.merged) > 50
    figures = tmp_path / "figures.json"
    assert replay_command.run(folder, home=Home(tmp_path), level="audit", json=figures) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert f"audit {len(whole.rounds)} of {total}" in told
    assert f"The first {whole.rounds_before} of {total} rounds were dropped by rotation" in told
    assert json.loads(figures.read_text())["rounds_before"] == whole.rounds_before


@pytest.mark.slow
def test_a_round_behind_the_state_is_explained_and_one_before_it_is_not(
    rotated: tuple[Path, Ledger], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    rounds = sorted(merged.round for merged in again(rotated[0], levels=("audit",)).rounds.values())
    assert replay_command.run(rotated[0], home=Home(tmp_path), explain=rounds[20]) == 0
    assert "learner-0" in capsys.readouterr().out
    with pytest.raises(UserError, match=r"begins with round \d+"):
        replay_command.run(rotated[0], home=Home(tmp_path), explain=3)


def only_with_state(tape: Path) -> Path:
    """The first file of events that has a state of the machine; all others are gone."""
    files = sorted(tape.glob("syncer*/*-events-*"))
    kept = next(
        path
        for path in files
        if any(isinstance(frame, MachineState) for frame in frames_of(file_of(path)))
    )
    for path in files:
        if path != kept:
            path.unlink()
    return kept


def with_field(name: str, value: object) -> Callable[[bytes], bytes]:
    """The state with another value in this place."""

    def changed(state: bytes) -> bytes:
        parts = msgspec.msgpack.decode(state)
        parts[VoterState.__struct_fields__.index(name)] = value
        return msgspec.msgpack.encode(parts)

    return changed


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda state: b"no state", "not a machine's state"),
        (with_field("jobs", {7: ["Gossip", {}]}), "asks for no 'Gossip'"),
        (with_field("jobs", {7: ["subprocess:Popen", ["true"]]}), "asks for no 'subprocess:Popen'"),
        (with_field("jobs", {7: ["WriteSnapshot", {}]}), "missing required field `snapshot`"),
        (with_field("last_job", "many"), "Expected `int`, got `str`"),
        (lambda state: msgspec.msgpack.encode(msgspec.msgpack.decode(state)[:-1]), "Expected `arr"),
    ],
)
@pytest.mark.slow
def test_an_altered_state_is_damage(
    rotated: tuple[Path, Ledger], tmp_path: Path, change: Callable[[bytes], bytes], words: str
) -> None:
    tape = Path(shutil.copytree(rotated[0], tmp_path / "tape"))

    def spoil(frames: list[Frame]) -> list[Frame]:
        return [
            msgspec.structs.replace(one, machine=change(one.machine))
            if isinstance(one, MachineState)
            else one
            for one in frames
        ]

    alter(only_with_state(tape), spoil)
    with pytest.raises(TapeDamaged, match=words):
        again(tape)


@pytest.mark.slow
def test_a_state_that_was_another_does_not_come_to_the_same(
    rotated: tuple[Path, Ledger], tmp_path: Path
) -> None:
    """Its learners have done less than they had."""
    tape = Path(shutil.copytree(rotated[0], tmp_path / "tape"))

    def forget(frames: list[Frame]) -> list[Frame]:
        at = next(at for at, one in enumerate(frames) if isinstance(one, MachineState))
        one = frames[at]
        assert isinstance(one, MachineState)
        signer = ReplaySigner(bytes(32), sim_verify)
        genesis = msgspec.msgpack.decode(one.genesis, type=Genesis)
        machine = read_machine(
            one.machine,
            project=project_id(one.genesis),
            genesis=genesis,
            signer=signer,
            verify=sim_verify,
        )
        assert write_machine(machine) == one.machine
        assert machine.leadership is not None
        machine.leadership.rounds.last_round += 1
        frames[at] = msgspec.structs.replace(one, machine=write_machine(machine))
        return frames

    alter(only_with_state(tape), forget)
    with pytest.raises(Diverged, match="diverged at event"):
        again(tape)


def test_a_tape_of_another_project_is_refused(tape: Path) -> None:
    with pytest.raises(UserError, match=r"is a tape of project .* not of"):
        again(tape, project=b"x" * 32)


def test_a_tape_of_an_older_shoal_is_refused_and_passed_over_beside_others(
    tape: Path, caplog: pytest.LogCaptureFixture
) -> None:
    old = events(tape).with_name(f"0-{bytes(8).hex()}-events-000000.tape")
    preface = msgspec.structs.replace(find_tapes(events(tape))[0].preface, version=1, life=bytes(8))
    old.write_bytes(TapeWriting(preface).first)
    assert again(tape, levels=("audit",)).rounds
    assert "written by an older Shoal (tape version 1" in caplog.text
    for path in tape.rglob("*.tape"):
        if path != old:
            path.unlink()
    with pytest.raises(TapeDamaged, match=r"replay it with the version that wrote it$"):
        again(tape)


def test_damage_names_file_and_offset(tape: Path) -> None:
    path = events(tape)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content + b"more")
    with pytest.raises(TapeDamaged, match=rf"{path.name}, at byte \d+"):
        again(tape)


def test_the_verb_says_how_many_rounds_reached_which_level(
    recorded: tuple[Path, Ledger], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    figures = tmp_path / "figures.json"
    assert replay_command.run(recorded[0], home=Home(tmp_path), json=figures) == 0
    count = len(recorded[1].merges)
    told = capsys.readouterr().out
    words = [line.split()[:4] for line in told.splitlines()[1:4]]
    assert words[2] == ["retrain", str(count), "of", str(count)]
    assert words[0] == ["audit", str(count), "of", str(count)]
    assert words[1] == ["merge", str(count), "of", str(count)]
    found = json.loads(figures.read_text())
    assert (found["rounds"], found["audit"], found["merge"]) == (count, count, count)
    assert found["retrain"] == count


def test_the_verb_fails_where_a_tape_diverges(
    tape: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def lose(frames: list[Frame]) -> list[Frame]:
        return frames[:200] + frames[250:]  # One alone may have changed nothing.

    alter(events(tape), lose)
    assert replay_command.run(tape, home=Home(tmp_path)) == 1
    assert "error: diverged at event" in capsys.readouterr().err


def test_the_verb_refuses_a_damaged_tape_as_wrong_input(tape: Path, tmp_path: Path) -> None:
    path = events(tape)
    path.write_bytes(path.read_bytes()[:200] + b"x" + path.read_bytes()[201:])
    with pytest.raises(UserError, match=r"The tape cannot be read: .*at byte"):
        replay_command.run(tape, home=Home(tmp_path))


def test_the_terminal_view_says_what_a_tape_is(tape: Path) -> None:
    with pytest.raises(UserError, match=r"is a tape of a daemon's events.* shoal replay"):
        Recording(events(tape))


def test_a_torn_tail_is_cut_and_told(tape: Path) -> None:
    path = events(tape)
    path.write_bytes(path.read_bytes()[:-7])
    whole = again(tape)
    ((cut, _, size),) = [one for life in whole.tapes for one in life.cuts()]
    assert cut == path
    assert size > 0


def test_what_the_log_says_is_enough_to_explain_a_round_led_elsewhere() -> None:
    merged = builders.merged()
    history = history_of(merged)
    assert set(history.parts) == {one.learner for one in merged.contributions}


def test_every_answer_that_a_job_names_can_be_read_from_a_tape():
    kinds = [*vars(jobs).values(), *vars(raft_jobs).values()]
    words = " ".join(kind.__doc__ or "" for kind in kinds if isinstance(kind, type))
    answers = set(re.findall(r"[Aa]nswer: `(\w+)`(?:, or `(\w+)`)?", words))
    named = {name for pair in answers for name in pair if name}
    assert len(named) > 8
    assert named <= set(tape_recorder._RESULTS)
