"""What an observer tells happened between two reports."""

from __future__ import annotations

import msgspec

from host.control.event_log import EventLog
from host.network.round_trips import RoundTrips, path_of
from node.daemon.report_diff import between
from protocol.status import PeerRow, SyncerStatus
from protocol.trace import SessionClosed
from tests.support import recordings


def report(*peers: PeerRow, step: int = 100, **changes: object) -> SyncerStatus:
    return recordings.syncer(step, list(peers), **changes)


def texts(before: SyncerStatus, now: SyncerStatus) -> list[str]:
    return [one.text for one in between(before, now)]


def row(number: int, **changes: object) -> PeerRow:
    return recordings.peer(number, 100, **changes)


def test_the_first_report_says_how_things_are():
    (one,) = between(None, report(row(0), row(1, state="left")))
    assert one.text == "first report: phase training, 1 learners here, global step 100"


def test_nothing_new_is_no_news():
    assert between(report(row(0)), report(row(0))) == []


def test_learners_come_leave_are_lost_and_come_back():
    before = report(row(0), row(1), row(2), row(3), row(4, state="gone"))
    now = report(
        row(0, state="left", left="finished"), row(1, state="gone"),
        row(2, state="silent", heard_s=16.0), row(4), row(5),
    )  # fmt: skip
    told = between(before, now)
    assert [(one.text.split(" (")[0] + one.text.split(")")[1], one.is_fault) for one in told] == [
        ("avocet left: finished", False),
        ("curlew was lost", True),
        ("dunlin was not heard for 16 s", True),
        ("kestrel is back", False),
        ("osprey joined", False),
        ("heron is no longer listed", False),
    ]
    assert texts(report(row(2, state="silent")), report(row(2))) == [
        f"dunlin ({recordings.key('dunlin')[:8]}) is heard again"
    ]


def test_one_that_was_gone_before_the_first_look_is_not_told():
    assert between(report(), report(row(0, state="gone"), row(1, state="left"))) == []


def test_merges_losses_phases_and_faults():
    before = report(step=119)
    now = report(step=123, phase="draining", faults={"bad-signature": 2})
    assert texts(before, now) == [
        "phase draining, was training",
        "merged 4: global step 123",
        f"held-out loss {now.swarm.curve[-1][2]:.4f} at global step 120",
        "2 times bad-signature",
    ]


def test_another_leader_takes_nobody_for_lost():
    before = report(row(0), row(1), faults={"stale": 3})
    now = report(key=recordings.key("reserve"), faults={"stale": 9})
    now.swarm.leader, now.swarm.term = recordings.key("reserve"), 8
    assert texts(before, now) == [f"{recordings.key('reserve')[:8]} leads in term 8"]


def test_rows_of_before_have_no_link_and_did_not_leave():
    old = {key: value for key, value in msgspec.to_builtins(row(0)).items()
           if key not in ("left", "path", "rtt_s")}  # fmt: skip
    read = msgspec.convert(old, PeerRow)
    assert (read.left, read.path, read.rtt_s) == ("", "", None)


def test_leaving_on_purpose_is_no_fault():
    feed = EventLog()
    feed.tell(SessionClosed(b"k" * 32, "heron", "finished", has_left=True))
    feed.tell(SessionClosed(b"k" * 32, "heron", "silent"))
    left, lost = feed.answer({})["events"]
    assert (left["is_fault"], lost["is_fault"]) == (False, True)
    assert left["text"].endswith("left: finished")
    assert lost["text"].endswith("was lost: silent")


def test_the_shortest_of_the_latest_answers_is_the_round_trip():
    trips = RoundTrips()
    assert trips.of(b"a") is None
    for seconds in (0.5, 0.02, *[0.3] * 7):
        trips.note(b"a", seconds)
    assert trips.of(b"a") == 0.02
    trips.note(b"a", 0.4)
    assert trips.of(b"a") == 0.3


def test_a_host_is_direct_if_one_connection_is():
    relayed = "/ip4/203.0.113.7/tcp/1/p2p/Q/p2p-circuit/p2p/R"
    assert path_of([relayed]) == "relayed"
    assert path_of([relayed, "/ip4/203.0.113.8/tcp/2/p2p/R"]) == "direct"
    assert path_of([]) == ""
