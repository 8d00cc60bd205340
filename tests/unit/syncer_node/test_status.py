"""What a syncer says of its swarm in one sentence."""

from __future__ import annotations

import msgspec
import pytest
from msgspec import structs

from protocol import limits, wire
from protocol.log.accounts import Account, Refusal
from protocol.log.records import (
    AccountsNoted,
    CharterAdopted,
    CheckpointEvaluated,
    CheckpointMarked,
)
from protocol.messages import Settled
from protocol.peers.membership import Session
from protocol.status import PeerRow, SyncerStatus
from syncer_node.daemon.status import (
    nobody_trains,
    outcomes,
    peer_row,
    peer_rows,
    report,
    sentence,
    unfit_words,
)
from tests.support.builders import (
    ONE,
    TWO,
    SyncerBench,
    contribution,
    founded,
    heartbeat,
    merged,
    project,
    rounds,
    sealed_charter,
    weights,
)
from tests.support.daemon_double import STATUS


@pytest.mark.parametrize(
    ("row_bytes", "most", "named"), [(500, 1024, 1024), (3000, 1024, 256), (500, 64, 64)]
)
def test_a_report_names_as_many_learners_as_a_message_has_room_for(row_bytes, most, named):
    ada = PeerRow(key="a" * 64, name="ada", device="cpu", state="training", heard_s=1.0)
    room = row_bytes - len(msgspec.msgpack.encode(ada))
    rows = 2000 * [structs.replace(ada, refused={"x" * room: 1})]

    def public(shown):
        return SyncerStatus(
            key="s",
            name="syncer",
            pid=0,
            version="0.1.0",
            uptime_s=1.0,
            phase="training",
            sentence="All is well.",
            join_link="",
            project=STATUS.project,
            swarm=STATUS.swarm,
            network=STATUS.network,
            peers=rows[:shown],
        )

    made = report(public, most)
    assert wire.decode_message(wire.encode(made)) == made
    assert len(msgspec.msgpack.decode(made.status, type=SyncerStatus).peers) == named


@pytest.mark.parametrize(
    ("learners", "said"),
    [
        ([("ada", "paused")], "Nobody trains: ada paused."),
        (
            [("ada", "starting"), ("bob", "paused"), ("eve", "starting")],
            "Nobody trains: ada, eve starting; bob paused.",
        ),
        ([("ada", "unfit")], "Nobody trains: ada unable to train."),
        ([("ada", "")], "Nobody trains: ada connecting."),
        ([("ada", "finishing")], "Nobody trains: ada handing in before leaving."),
        (
            [("ada", "paused"), ("bob", "paused"), ("eve", "syncing"), ("wes", "starved")],
            "Nobody trains: 1 fetching weights; 1 out of text; 2 paused.",
        ),
    ],
)
def test_who_does_not_train_is_named_with_what_they_do_instead(learners, said):
    assert nobody_trains(learners) == said


def test_who_cannot_train_is_named_with_the_reason_and_is_no_learner_of_a_quorum():
    session = Session(bytes([1]) * 32, 1, "ada", evaluates=False, since_s=0.0, heard_s=0.0)
    session.hear(heartbeat(state="starting", unfit="data"), 1.0)
    assert peer_row(session, [0] * 4, (32, 32), 1.0).state == "unfit"
    assert not session.is_training
    assert unfit_words([session]) == (
        "Cannot train, because their text is missing, too short or cannot be read: ada (01010101)."
    )
    session.hear(heartbeat(state="training"), 2.0)
    assert unfit_words([session]) == ""


def test_how_long_a_learner_was_silent_does_not_begin_anew_when_it_counts_as_lost():
    bench = SyncerBench(project()).start(ONE)
    bench.train(ONE)
    heard = []
    for _ in range(int(limits.GONE_AFTER_S) + 10):
        bench.wait(1.0)
        (row,) = peer_rows(bench.seat, [0] * 4, bench.now_s)
        heard.append((row.state, row.heard_s))
    states = [state for state, _ in heard]
    assert states.index("silent") < states.index("gone")
    assert [s for _, s in heard] == sorted(s for _, s in heard)
    assert heard[-1][1] > limits.GONE_AFTER_S


def test_merges_are_those_of_the_log_whoever_leads_and_whichever_session_it_is():
    session = Session(ONE.key, 2, "ada", evaluates=False, since_s=0.0, heard_s=0.0)
    assert peer_row(session, [0] * 4, (32, 32), 1.0, account=Account(merges=412)).merges == 412


def test_what_became_of_pushes_goes_on_where_another_leads():
    late = Refusal(ONE.key, "late", 3)
    false = Refusal(ONE.key, "rejected: false-claim", 1)
    parts = (contribution(), contribution(learner=TWO.key))
    log = founded(weights(), merged(contributions=parts), AccountsNoted((), (late, false)))
    bench = SyncerBench(project(rounds(quorum=1)), recovered=log.recovered()).start(ONE, TWO)
    assert outcomes(bench.machine) == {"merged": 2, "late": 3, "false-claim": 1}
    bench.say(ONE.key, Settled(1, 1, "late", ""))
    rows = peer_rows(bench.seat, [0] * 4, bench.now_s)
    refused = {row.key: row.refused for row in rows}
    assert refused[ONE.key.hex()] == {"late": 3, "false-claim": 1, "unexpected-message": 1}
    assert refused[TWO.key.hex()] == {}


def test_what_this_leader_refused_shows_at_once_and_is_counted_once():
    bench = SyncerBench(project(rounds(quorum=1))).start(ONE, TWO)
    pulls = bench.train(ONE, TWO)
    bench.push(ONE, pulls[ONE.key], steps=0)
    for _ in range(12):  # A leader writes down what it refused every ten seconds.
        assert outcomes(bench.machine) == {"false-claim": 1}
        bench.wait(1.0)
    assert bench.machine.state.accounts[ONE.key].refusals == 1


def test_an_account_says_what_became_of_its_pushes():
    account = Account(merges=5, clipped=2, refused={"late": 3, "rejected: false-claim": 1})
    assert account.fates() == {"merged": 3, "clipped": 2, "late": 3, "false-claim": 1}
    assert Account().fates() == {}


def test_who_disputes_a_loss_is_named_before_the_log_has_its_name():
    log = founded(weights())
    log.add(CheckpointMarked(0, ONE.key, TWO.key))
    at = log.state.index
    log.add(CheckpointEvaluated(at, 0, 0, ONE.key, 0.0))
    log.add(CheckpointEvaluated(at, 0, 0, TWO.key, 4.0))
    bench = SyncerBench(recovered=log.recovered()).start(ONE, TWO)
    bench.train(ONE, TWO)
    names = {key: one.name for key, one in bench.seat.members.sessions.items()}
    said = sentence(bench.machine, bench.now_s)
    for learner in (ONE, TWO):
        assert f"{names[learner.key]} ({learner.key.hex()[:8]}) says" in said


def test_a_leader_of_a_run_that_its_owner_paused_says_since_when_and_how_it_goes_on():
    log = founded(weights())
    charter = msgspec.structs.replace(log.tiny.charter, revision=2, paused_at_s=1.7e9)
    log.add(CharterAdopted(sealed_charter(charter, log.tiny)))
    bench = SyncerBench(recovered=log.recovered(), charter=charter).start(ONE, TWO)
    assert sentence(bench.machine, bench.now_s) == (
        "Paused by the project's owner since 2023-11-14 22:13 UTC. 2 learners here. "
        "`shoal project resume PROJECT` goes on."
    )
