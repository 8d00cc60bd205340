"""The picture of the swarm, what travels in it, and when it moves."""

from __future__ import annotations

import dataclasses

import msgspec
import pytest

from protocol.status import PaceStatus, SyncerStatus
from tests.support import recordings
from tests.support.screens import screen_lines
from tests.support.staged import LARGE, Staged, drive, settle
from tui.app import ShoalApp
from tui.frames.frame import Frame
from tui.frames.history import History, sample
from tui.frames.scene import Scene
from tui.frames.traffic import GAP_S_MIN, LANES_MAX, TRAVEL_S, Packet, Traffic
from tui.views import overview, picture

AT_S = recordings.START_S


def scene(frame: Frame, *moving: Packet) -> Scene:
    history = History.of([sample(frame)])
    return Scene(frame, history, moving=moving)


def syncer_of(frame: Frame) -> SyncerStatus:
    status = frame.statuses[0]
    assert isinstance(status, SyncerStatus)
    return status


def drawn(now: Scene, width: int = 118, height: int = 12) -> list[str]:
    return [line.plain for line in picture.render(now, width, height)]


def later(status: SyncerStatus, merges: dict[str, int], steps: int) -> SyncerStatus:
    """The status after so many global steps, with so many pushes more of each of these."""
    peers = [
        msgspec.structs.replace(one, merges=one.merges + merges.get(one.key, 0))
        for one in status.peers
    ]
    swarm = msgspec.structs.replace(status.swarm, global_step=status.swarm.global_step + steps)
    return msgspec.structs.replace(status, peers=peers, swarm=swarm)


# What travels.


def test_a_merged_push_travels_in_and_what_was_merged_travels_out_to_all():
    first = syncer_of(recordings.frame(0))
    giver = first.peers[2].key
    traffic = Traffic()
    traffic.observe(first, AT_S)
    assert traffic.is_idle
    traffic.observe(later(first, {giver: 1}, 1), AT_S + 0.5)
    seen = [traffic.moving(AT_S + 0.5 + tenth / 10) for tenth in range(30)]
    packets = [packet for moment in seen for packet in moment]
    assert {one.lane for one in packets if one.is_push} == {giver}
    assert {one.lane for one in packets if not one.is_push} == {one.key for one in first.peers}
    places = [one.place for one in packets if one.is_push]
    assert places == sorted(places)
    assert places[-1] > 0.85
    assert not list(traffic.moving(AT_S + 60))
    assert traffic.is_idle


def test_packets_set_out_evenly_over_the_time_until_there_is_news_again():
    first = syncer_of(recordings.frame(0))
    giver = first.peers[0].key
    traffic = Traffic()
    traffic.observe(first, AT_S)
    traffic.observe(later(first, {giver: 5}, 0), AT_S + 10)
    under_way = [
        sum(one.is_push for one in traffic.moving(AT_S + 10 + second)) for second in range(13)
    ]
    assert max(under_way) == 1
    assert sum(under_way) == 5


def test_a_swarm_that_merges_faster_than_eyes_see_is_a_steady_stream():
    first = syncer_of(recordings.frame(0))
    giver = first.peers[0].key
    traffic = Traffic()
    traffic.observe(first, AT_S)
    traffic.observe(later(first, {giver: 1000}, 1000), AT_S + 0.5)
    most = max(
        sum(one.is_push for one in traffic.moving(AT_S + 0.5 + tenth / 10)) for tenth in range(20)
    )
    assert 0 < most <= TRAVEL_S / GAP_S_MIN + 1


@pytest.mark.parametrize("change", ["jump", "other leader", "went back"])
def test_nothing_travels_between_two_histories(change):
    first = syncer_of(recordings.frame(0))
    traffic = Traffic()
    traffic.observe(first, AT_S)
    second = later(first, {first.peers[0].key: 3}, -5 if change == "went back" else 5)
    if change == "other leader":
        second = msgspec.structs.replace(second, key=recordings.key("reserve"))
    traffic.observe(second, AT_S + 0.5, is_jump=change == "jump")
    assert traffic.is_idle


def test_what_was_merged_while_nobody_looked_does_not_travel_afterwards():
    first = syncer_of(recordings.frame(0))
    giver = first.peers[2].key
    traffic = Traffic()
    traffic.observe(first, AT_S)
    traffic.observe(later(first, {giver: 1}, 1), AT_S + 0.5)
    traffic.look_away()
    assert traffic.is_idle
    traffic.observe(later(first, {giver: 900}, 900), AT_S + 60)
    assert traffic.is_idle
    traffic.observe(later(first, {giver: 901}, 901), AT_S + 60.5)
    assert not traffic.is_idle


def test_of_a_crowd_only_some_are_followed():
    first = syncer_of(recordings.thousand(1)[0])
    traffic = Traffic()
    traffic.observe(first, AT_S)
    traffic.observe(later(first, {one.key: 1 for one in first.peers}, 1), AT_S + 0.5)
    packets = [*traffic.moving(AT_S + 1.0), *traffic.moving(AT_S + 2.0)]
    assert 0 < len({one.lane for one in packets}) <= LANES_MAX


# How it is drawn.


@pytest.mark.parametrize("width", [60, 80, 100, 118, 198])
@pytest.mark.parametrize("name", recordings.RECORDINGS)
def test_the_picture_is_as_large_as_it_may_be(name, width):
    frame = recordings.RECORDINGS[name]()[-1]
    now = scene(frame)
    for height in (6, 9, 24):
        made = picture.render(now, width, height)
        assert len(made) == height
        assert max(line.cell_len for line in made) <= width


def test_every_learner_has_a_lane_and_a_mark_for_its_state():
    frame = recordings.learner_killed()[-1]
    rows = drawn(scene(frame), height=18)
    for peer in syncer_of(frame).peers:
        row = next(row for row in rows if peer.name in row)
        assert ("✖" if peer.name == "osprey" else "●") in row
    assert any("gone, heard 39 s ago" in row for row in rows)


def test_packets_point_where_they_go():
    frame = recordings.frame(30)
    left, right = syncer_of(frame).peers[0], syncer_of(frame).peers[7]
    rows = drawn(
        scene(
            frame,
            Packet(left.key, is_push=True, place=0.1),
            Packet(left.key, is_push=False, place=0.8),
            Packet(right.key, is_push=True, place=0.1),
            Packet(right.key, is_push=False, place=0.8),
        )
    )
    lane = next(row for row in rows if left.name in row)
    assert lane.index("▸") < lane.index("◂") < len(lane) / 2
    lane = next(row for row in rows if right.name in row)
    assert len(lane) / 2 < lane.index("▸") < lane.index("◂")


def test_more_learners_than_lanes_are_dots_that_light_up():
    frame = recordings.thousand(1)[0]
    peers = syncer_of(frame).peers
    rows = drawn(scene(frame, Packet(peers[5].key, is_push=True, place=0.5)), height=16)
    text = "".join(rows)
    assert "1,000 learners, a dot for each" in text
    assert (text.count("●"), text.count("◆")) == (999, 1)
    text = "".join(drawn(scene(frame), width=60, height=9))
    assert "a dot for" in text
    assert "avocet" not in text


def test_a_doubted_learner_is_seen_as_one():
    frame = recordings.RECORDINGS["liar"]()[4]
    liar = next(one for one in syncer_of(frame).peers if one.trust < 1)
    row = next(row for row in drawn(scene(frame)) if liar.name in row)
    assert "counts 0 %" in row


def test_voters_stand_below_the_syncer_by_name_and_say_when_they_are_away():
    rows = drawn(scene(recordings.RECORDINGS["two-here"]()[4]))
    assert any("◇ syncer reserve" in row for row in rows)
    rows = drawn(scene(recordings.RECORDINGS["voters-away"]()[-1]))
    assert any("✖ witness 7363616c away" in row for row in rows)


def test_the_syncer_says_at_what_pace_it_merges():
    frame = recordings.frame(30)
    status = syncer_of(frame)
    status.swarm.pace = PaceStatus(gap_s=0.25)
    assert any("4.0 merges a second" in row for row in drawn(scene(frame)))
    status.swarm.pace = PaceStatus(gap_s=30.0)
    assert any("a merge every 30 s" in row for row in drawn(scene(frame)))


def test_without_a_leader_the_voters_are_shown():
    rows = drawn(scene(recordings.RECORDINGS["election"]()[19]))
    assert any("Waiting for a leader." in row for row in rows)


# When it moves.


def test_the_picture_moves_only_while_somebody_looks():
    first = recordings.frame(0)
    second = recordings.frame(1)
    second.statuses = (later(syncer_of(first), {syncer_of(first).peers[0].key: 4}, 4),)
    app = ShoalApp(Staged([first, second]))

    async def look(pilot):
        await settle(pilot)
        sheet = app.query_one("#picture")
        shown = sheet.show
        moves: list[Scene] = []

        def show(now: Scene) -> None:
            moves.append(now)
            shown(now)

        sheet.show = show
        app.draw_throttle.cpu = lambda: 0.0

        def is_moving():
            moves.clear()
            app.move()
            return bool(moves)

        app.on_app_blur()
        assert not is_moving()
        app.on_app_focus()
        assert is_moving()
        await app.action_view("peers")
        assert not is_moving()
        await app.action_view("overview")
        assert is_moving()
        app.draw_throttle.cpu = lambda: 1e6
        assert not is_moving()

    drive(app, look)


@pytest.mark.parametrize("size", [(80, 24), (120, 40), LARGE])
def test_the_picture_stands_on_top_at_every_size(size):
    app = ShoalApp(Staged(recordings.healthy(30)))

    async def look(pilot):
        rows = screen_lines(app)
        assert any("avocet" in row for row in rows)
        assert any("syncer default" in row and "╭" in row for row in rows)
        beside = any("held-out loss" in row and "latest events" in row for row in rows)
        assert beside is (size == LARGE) or any("latest events" in row for row in rows)
        assert any("latest events" in row for row in rows)

    drive(app, look, size)


def test_a_small_terminal_has_words_and_no_picture():
    now = dataclasses.replace(scene(recordings.frame(30)))
    assert overview.picture_rows(now, 80, 11) == 0
    assert 0 < overview.picture_rows(now, 78, 19) <= 9
