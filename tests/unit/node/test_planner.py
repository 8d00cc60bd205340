"""Downloads of weights against donors in virtual time."""

from __future__ import annotations

import random

import numpy as np
import pytest

from node.download import donors as donors_module
from node.download import syncer_help
from node.download.assembly import Assembly
from node.download.planner import GRACE_S, LEARNERS_MAX, PART_FAILURES_MAX, SLOW_S, Planner, Trouble
from protocol import limits
from protocol.errors import InternalError
from protocol.numerics import chunks
from protocol.numerics.versions import state_manifests
from tests.support.builders import digest_of
from tests.support.donors import FakeDonor, FakeNet, a_state, is_whole

SYNCER = digest_of("syncer")


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(limits, "STATE_CHUNK_BYTES", 4096)
    monkeypatch.setattr(donors_module, "FIRST_BYTES", 3 * 4096)


def donors(count, *states, **how):
    made = [FakeDonor(digest_of("donor", at), **{"bytes_per_s": 1e5, **how}) for at in range(count)]
    for donor in made:
        donor.hold(*states)
    return made


def a_syncer(*states, bytes_per_s=1e5):
    syncer = FakeDonor(SYNCER, bytes_per_s=bytes_per_s)
    syncer.hold(*states)
    return syncer


def fetched(net, assembly, state):
    assert net.outcomes == [(assembly, None)]
    assert is_whole(assembly, state)
    return True


# Manifests


def test_the_digest_of_a_state_is_that_of_its_manifest():
    theta, momentum = a_state(1, chunks=3)
    manifests = state_manifests(theta, momentum)
    assert len(manifests.theta) == 3 * 32 == chunks.manifest_bytes(4 * theta.size)
    assert manifests.digests.theta == chunks.root(manifests.theta)
    names = [name for name, _ in manifests.blobs(theta, momentum)]
    assert names[0] == manifests.digests.theta
    assert names[1:4] == chunks.digests(manifests.theta)


def test_chunks_are_borrowed_and_cover_the_state_once():
    theta, _ = a_state(2, chunks=3)
    parts = [blob for _, blob in chunks.blobs(chunks.manifest(theta), theta)][1:]
    assert b"".join(parts) == theta.tobytes()
    assert [len(part) for part in parts] == [4096, 4096, 2048]
    theta[0] += 1
    assert bytes(parts[0][:4]) == theta[:1].tobytes()


def test_a_manifest_of_another_length_is_a_bug_of_ours():
    theta, _ = a_state(2, chunks=3)
    with pytest.raises(InternalError, match="a manifest of 32 bytes"):
        list(chunks.blobs(bytes(32), theta))


# Downloads


def test_three_donors_are_three_sources_and_the_syncer_is_none():
    state = a_state(3, chunks=12)
    net = FakeNet(donors(3, state), a_syncer(state))
    assembly = net.want(0, state)
    seconds = net.run()
    assert fetched(net, assembly, state)
    assert set(assembly.sources) == set(net.learners)
    assert max(assembly.sources.values()) <= 2 * min(assembly.sources.values())
    assert seconds < 1.3 * (assembly.total_bytes / 3e5) + 0.1
    assert SYNCER not in {ask.donor for ask in net.asked}


def test_small_fragments_also_come_from_all_three():
    states = [a_state(at, chunks=1) for at in range(8)]
    net = FakeNet(donors(3, *states), a_syncer(*states))
    assemblies = [net.want(at, state) for at, state in enumerate(states)]
    net.run()
    assert all(is_whole(one, state) for one, state in zip(assemblies, states, strict=True))
    assert {source for one in assemblies for source in one.sources} == set(net.learners)


def test_a_donor_that_dies_costs_nothing_that_has_arrived():
    state = a_state(4, chunks=20)
    team = donors(3, state, bytes_per_s=8000)
    team[1].dies_s = 4.0
    net = FakeNet(team, a_syncer(state))
    assembly = net.want(0, state)
    net.run()
    assert fetched(net, assembly, state)
    assert set(assembly.sources) == set(net.learners)
    assert SYNCER not in {ask.donor for ask in net.asked}
    assert sum(assembly.sources.values()) == assembly.total_bytes


def test_a_second_try_goes_on_where_the_first_ended():
    state = a_state(5, chunks=10)
    team = donors(1, state)
    team[0].dies_s = 0.5
    net = FakeNet(team)
    assembly = net.want(0, state)
    net.run()
    assert net.outcomes[0][1] is not None
    held = assembly.done_bytes
    assert 0 < held < assembly.total_bytes
    helper = FakeDonor(digest_of("helper"))
    helper.hold(state)
    net.donors[helper.key] = helper
    net.planner.know([helper.key], None, net.now_s)
    net.planner.want(assembly)
    net.run()
    assert is_whole(assembly, state)
    assert assembly.sources[helper.key] == assembly.total_bytes - held


def test_wrong_bytes_blame_their_sender_and_nothing_else_suffers():
    state = a_state(6, chunks=8)
    team = donors(3, state)
    team[2].lies = True
    net = FakeNet(team, a_syncer(state))
    assembly = net.want(0, state)
    net.run()
    assert fetched(net, assembly, state)
    assert set(net.faults) == {team[2].key}
    assert set(assembly.sources) == {team[0].key, team[1].key}
    assert SYNCER not in {ask.donor for ask in net.asked}


def test_the_syncer_gives_what_no_learner_holds():
    held, fresh = a_state(7), a_state(8)
    net = FakeNet(donors(2, held), a_syncer(held, fresh))
    one, two = net.want(0, held), net.want(1, fresh)
    net.run()
    assert is_whole(one, held)
    assert is_whole(two, fresh)
    assert set(one.sources) <= set(net.learners)
    assert set(two.sources) == {SYNCER}
    first = next(ask for ask in net.asked if ask.donor == SYNCER)
    assert first.asked_s >= GRACE_S


def test_without_learners_the_syncer_is_asked_at_once():
    state = a_state(9)
    net = FakeNet([], a_syncer(state))
    assembly = net.want(0, state)
    assert net.run() < GRACE_S
    assert fetched(net, assembly, state)


def test_a_learner_that_is_about_to_hold_it_is_asked_again():
    state = a_state(10)
    team = donors(2)
    net = FakeNet(team, a_syncer(state))
    assembly = net.want(0, state)
    net.at(0.4, lambda: team[0].hold(state))
    net.run()
    assert fetched(net, assembly, state)
    assert set(assembly.sources) == {team[0].key}


def test_nobody_holds_it_and_that_is_said():
    state = a_state(11)
    net = FakeNet(donors(2), a_syncer())
    assembly = net.want(0, state)
    assert net.run() < 5
    ((ended, trouble),) = net.outcomes
    assert ended is assembly
    assert "does not hold it" in trouble


def test_busy_donors_are_waited_for():
    state = a_state(12)
    net = FakeNet(donors(2, state, is_busy_until_s=3.0), a_syncer(state))
    assembly = net.want(0, state)
    assert net.run() < 8
    assert fetched(net, assembly, state)
    assert SYNCER not in assembly.sources


def test_a_slow_donor_does_not_hold_up_the_end():
    state = a_state(13, chunks=12)
    team = donors(3, state)
    team[0].bytes_per_s = 500
    net = FakeNet(team)
    assembly = net.want(0, state)
    assert net.run() < 6
    assert fetched(net, assembly, state)


def test_on_slow_lines_hardly_anything_is_fetched_twice():
    state = a_state(19, chunks=7)
    team = donors(3, state, bytes_per_s=2000)
    net = FakeNet(team, a_syncer(state))
    assembly = net.want(0, state)
    seconds = net.run()
    assert fetched(net, assembly, state)
    chunks_asked = [ask.digest for ask in net.asked if not ask.is_manifest]
    assert len(set(chunks_asked)) == 14
    assert len(chunks_asked) <= 15, "a donor that is done may take one from one that has many"
    assert seconds < 1.3 * assembly.total_bytes / 6000


def test_little_is_lost_with_a_donor_on_a_slow_line():
    state = a_state(19, chunks=7)
    team = donors(3, state, bytes_per_s=2000)
    team[1].dies_s = 6.0
    net = FakeNet(team)
    assembly = net.want(0, state)
    net.run()
    assert fetched(net, assembly, state)
    sent = sum(donor.sent_bytes for donor in team)
    assert sent < assembly.total_bytes + 4 * limits.STATE_CHUNK_BYTES


@pytest.mark.parametrize("bytes_per_s", [2000, 1e5])
def test_a_donor_of_which_nothing_comes_any_more_is_found_out(bytes_per_s):
    state = a_state(19, chunks=7)
    team = donors(3, state, bytes_per_s=bytes_per_s)
    hangs_s = team[1].hangs_s = 6000 / bytes_per_s
    net = FakeNet(team)
    assembly = net.want(0, state)
    seconds = net.run()
    assert fetched(net, assembly, state)
    fair_s = assembly.total_bytes / (2 * bytes_per_s) + hangs_s
    assert seconds < fair_s + SLOW_S + 0.5


def test_a_chunk_at_a_slow_donor_comes_from_one_that_is_sure_to_be_faster():
    state = a_state(19, chunks=7)
    slow, fast = donors(2, state, bytes_per_s=4000)
    slow.bytes_per_s = 200
    net = FakeNet([slow, fast])
    assembly = net.want(0, state)
    seconds = net.run()
    assert fetched(net, assembly, state)
    assert seconds < 1.5 * assembly.total_bytes / 4000
    assert fast.sent_bytes <= assembly.total_bytes + 2 * 14 * 32


@pytest.mark.parametrize("count", [3, LEARNERS_MAX, 200])
@pytest.mark.parametrize(
    "how",
    [
        {"hangs_s": 0.0},
        {"hangs_s": 0.2, "bytes_per_s": 8000},
        {"bytes_per_s": 1.0},
        {"bytes_per_s": 500.0 / LEARNERS_MAX},
        {"is_busy_until_s": 1e9},
        {"dies_s": 0.0},
    ],
    ids=["silent", "stalling", "trickling", "a little more", "busy", "away"],
)
def test_though_all_learners_hold_a_newcomer_up_it_is_done_within_ten_seconds(how, count):
    state = a_state(9, chunks=40)
    net = FakeNet(donors(count, state, **how), a_syncer(state))
    assembly = net.want(0, state)
    net.keep_knowing()
    needed_s = assembly.total_bytes / 1e5
    assert net.run() < needed_s + 10.0
    assert fetched(net, assembly, state)


def test_an_honest_learner_among_silent_ones_spares_the_syncer():
    state = a_state(9, chunks=40)
    honest = donors(1, state)[0]
    honest.key = digest_of("honest")
    team = [*donors(5, state, hangs_s=0.0), honest]
    net = FakeNet(team, a_syncer(state))
    assembly = net.want(0, state)
    net.keep_knowing()
    assert net.run() < assembly.total_bytes / 1e5 + 10.0
    assert fetched(net, assembly, state)
    assert assembly.sources[honest.key] == assembly.total_bytes
    assert SYNCER not in {ask.donor for ask in net.asked}


@pytest.mark.parametrize("count", [1, 3])
def test_a_newcomer_is_not_hostage_to_learners_on_slow_lines(count, monkeypatch):
    """A chunk takes each of them 16 s, as one of a mebibyte does at 64 kB/s."""
    monkeypatch.setattr(limits, "STATE_CHUNK_BYTES", 1 << 16)
    monkeypatch.setattr(donors_module, "FIRST_BYTES", 3 << 16)
    states = [a_state(at, chunks=10) for at in range(8)]

    def needs_s(team):
        net = FakeNet(team, a_syncer(*states, bytes_per_s=1e6))
        assemblies = [net.want(at, state) for at, state in enumerate(states)]
        net.run()
        assert all(is_whole(one, state) for one, state in zip(assemblies, states, strict=True))
        return net.now_s

    assert needs_s(donors(count, *states, bytes_per_s=4000)) < 1.2 * needs_s([])


@pytest.mark.slow
@pytest.mark.parametrize("chunks", [6, 10])
@pytest.mark.parametrize("count", [1, 2])
def test_a_donor_at_50_kilobytes_a_second_costs_little_beside_a_syncer_at_100_megabits(
    count, chunks, monkeypatch
):
    """Weights of 25 and 42 MB in chunks of a mebibyte: at most 1.3 times as long."""
    monkeypatch.setattr(limits, "STATE_CHUNK_BYTES", 1 << 20)
    monkeypatch.setattr(donors_module, "FIRST_BYTES", 3 << 20)
    states = [a_state(at, chunks=chunks // 2) for at in range(8)]

    def needs_s(team, seed=0):
        net = FakeNet(team, a_syncer(*states, bytes_per_s=100e6 / 8), seed=seed)
        for at, state in enumerate(states):
            net.want(at, state)
        return net.run()

    alone_s = needs_s([])
    slowest_s = max(needs_s(donors(count, *states, bytes_per_s=50e3), seed) for seed in range(3))
    assert slowest_s < 1.3 * alone_s


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_donors_that_hold_all_of_a_small_model_keep_nobody_waiting_for_a_fast_syncer(
    count, monkeypatch
):
    """Everything is asked of slow learners before anybody knows that they are slow."""
    monkeypatch.setattr(limits, "STATE_CHUNK_BYTES", 1 << 20)
    monkeypatch.setattr(donors_module, "FIRST_BYTES", 3 << 20)
    states = [a_state(at, chunks=1) for at in range(4)]
    team = donors(count, *states, bytes_per_s=50e3)
    net = FakeNet(team, a_syncer(*states, bytes_per_s=100e6 / 8))
    for at, state in enumerate(states):
        net.want(at, state)
    took_s = net.run()
    assert took_s < 6.0


def test_learners_are_judged_early_only_where_no_line_opens_up_that_far():
    times = (0.1, 0.3, 0.5, 0.9, 1.1)
    fed = [syncer_help.patience_s(waited_s, is_fed=True) for waited_s in times]
    assert fed == [None, None, syncer_help.HOPELESS_S, syncer_help.HOPELESS_S, syncer_help.LONG_S]
    starved = [syncer_help.patience_s(waited_s, is_fed=False) for waited_s in (4.9, 5.1)]
    assert starved == [None, syncer_help.LONG_S]


def test_the_syncer_is_left_alone_again_where_it_is_no_faster_than_the_learners():
    state = a_state(9, chunks=500)
    net = FakeNet(donors(3, state, bytes_per_s=2.5e4), a_syncer(state, bytes_per_s=2.5e4))
    assembly = net.want(0, state)
    net.run()
    assert net.now_s > syncer_help.HELP_S
    assert fetched(net, assembly, state)
    assert 0 < assembly.sources[SYNCER] < 0.1 * assembly.total_bytes


def test_a_syncer_that_helps_is_left_alone_once_learners_are_as_fast():
    state = a_state(9, chunks=240)
    (donor,) = donors(1, state, bytes_per_s=100)
    net = FakeNet([donor], a_syncer(state, bytes_per_s=2.5e4))
    assembly = net.want(0, state)
    net.at(10.0, lambda: setattr(donor, "bytes_per_s", 3e4))
    net.run()
    assert fetched(net, assembly, state)
    asked_s = [ask.asked_s for ask in net.asked if ask.donor == SYNCER and not ask.is_manifest]
    last_s = syncer_help.STARVED_S + syncer_help.TRY_S + syncer_help.HELP_S
    assert 10.0 < max(asked_s) < last_s + 1.0 < net.now_s


def test_the_rarest_version_goes_first():
    common, rare = a_state(14, chunks=16), a_state(15, chunks=16)
    team = donors(3, common, bytes_per_s=5e4)
    team[0].hold(rare)
    net = FakeNet(team)
    one, two = net.want(0, common), net.want(1, rare)
    while not two.is_complete:
        net.step()
    chunks_of_donor = [ask for ask in net.asked if ask.donor == team[0].key and not ask.is_manifest]
    assert [ask.fragment for ask in chunks_of_donor].count(0) <= 6
    net.run()
    assert one.is_complete


def test_fragments_are_completed_one_after_the_other():
    states = [a_state(20 + at, chunks=20) for at in range(4)]
    net = FakeNet(donors(2, *states))
    assemblies = [net.want(at, state) for at, state in enumerate(states)]
    while not any(one.is_complete for one in assemblies):
        net.step()
    done = sorted((one.done_bytes for one in assemblies), reverse=True)
    assert done[0] == assemblies[0].total_bytes
    assert done[2] == done[3] == 0
    assert len({ask.fragment for ask in net.asked if not ask.is_manifest}) <= 3


def test_what_no_learner_has_is_asked_of_the_syncer_and_what_a_joiner_has_of_the_joiner():
    states = [a_state(40 + at, chunks=12) for at in range(4)]
    (joiner,) = donors(1, states[1], states[2])
    net = FakeNet([joiner], a_syncer(*states))
    net.planner.know([], SYNCER, 0.0, joiners=[joiner.key])
    assemblies = [net.want(at, state) for at, state in enumerate(states)]
    seconds = net.run()
    assert all(is_whole(one, state) for one, state in zip(assemblies, states, strict=True))
    assert assemblies[0].sources.keys() == assemblies[3].sources.keys() == {SYNCER}
    for at in (1, 2):
        assert assemblies[at].sources[joiner.key] >= 0.7 * assemblies[at].total_bytes
    # Nobody waited for the other: both lines were full.
    assert seconds < 1.3 * sum(one.total_bytes for one in assemblies) / 2e5 + 1.0


def test_joiners_of_which_none_has_anything_keep_nobody_from_the_syncer():
    state = a_state(44, chunks=12)
    net = FakeNet(donors(7), a_syncer(state))
    net.planner.know([], SYNCER, 0.0, joiners=net.learners)
    assembly = net.want(0, state)
    assert net.run() < assembly.total_bytes / 1e5 + 1.0


def test_joiners_begin_with_different_fragments():
    states = [a_state(50 + at, chunks=20) for at in range(6)]
    first = set()
    for seed in range(12):
        net = FakeNet([], a_syncer(*states), seed=seed)
        assemblies = [net.want(at, state) for at, state in enumerate(states)]
        while not any(one.is_complete for one in assemblies):
            net.step()
        first.add(next(one.fragment for one in assemblies if one.is_complete))
    assert len(first) >= 4


def test_what_was_not_begun_fails_at_once_when_a_newer_version_is_committed():
    states = [a_state(30 + at, chunks=20) for at in range(4)]
    net = FakeNet(donors(2, *states))
    for at, state in enumerate(states):
        net.want(at, state)
    net.step()
    for fragment in range(4):
        net.planner.supersede(fragment, 2)
    net.run()
    for assembly, trouble in net.outcomes:
        if trouble is None:
            assert is_whole(assembly, states[assembly.fragment])
        else:
            assert (trouble, assembly.done_bytes) == ("a newer version is committed", 0)
    troubles = [trouble for _, trouble in net.outcomes]
    assert len(troubles) == 4
    assert 0 < troubles.count(None) < 4


def test_zeros_need_not_be_fetched():
    state = a_state(16, chunks=20, is_fresh=True)
    net = FakeNet(donors(2, state))
    assembly = net.want(0, state)
    net.run()
    assert is_whole(assembly, state)
    assert sum(assembly.sources.values()) == assembly.size_bytes
    assert assembly.done_bytes == assembly.total_bytes


def test_two_arrays_of_the_same_content():
    theta, _ = a_state(17)
    state = (theta, theta.copy())
    net = FakeNet(donors(2, state))
    assembly = net.want(0, state)
    net.run()
    assert is_whole(assembly, state)


def test_our_own_network_going_down_is_nobodys_fault():
    state = a_state(18)
    (donor,) = donors(1, state)
    net = FakeNet([donor], a_syncer(state))
    assembly = net.want(0, state)
    for ask in net.planner.asks(0.0):
        net.planner.failed(ask.number, Trouble.OURS, "down", 0.0)
    assert net.planner.asks(0.5) == []
    net.run()
    assert set(assembly.sources) == {donor.key}


def test_a_newer_version_takes_the_place_of_the_older_and_its_requests_are_cancelled():
    older, newer = a_state(40, chunks=8), a_state(41, chunks=8)
    net = FakeNet(donors(2, older, newer))
    net.want(0, older, version=1)
    for _ in range(6):
        net.step()
    under_way = set(net.planner.asked)
    assembly = net.want(0, newer, version=2)
    net.run()
    assert under_way <= net.cancelled
    assert is_whole(assembly, newer)
    assert net.outcomes == [(assembly, None)]


def test_one_piece_that_never_comes_lets_the_version_fail():
    planner = Planner(random.Random(0))
    theta, momentum = a_state(42, chunks=1)
    state = state_manifests(theta, momentum).digests
    assembly = Assembly(0, 1, state, theta.size)
    planner.want(assembly)
    planner.know([digest_of("donor", at) for at in range(LEARNERS_MAX)], None, 0.0)
    now_s = 0.0
    while not planner.is_idle:
        now_s += 0.01
        for ask in planner.asks(now_s):
            planner.failed(ask.number, Trouble.WRONG, "sent something else", now_s)
        ended = planner.ended(now_s)
        assert now_s < 60
    assert 2 * PART_FAILURES_MAX < LEARNERS_MAX
    assert ended[0][0] is assembly
    assert "sent something else" in ended[0][1]


def test_a_donor_that_stays_away_says_nothing_of_a_piece():
    planner = Planner(random.Random(0))
    theta, momentum = a_state(45, chunks=1)
    assembly = Assembly(0, 1, state_manifests(theta, momentum).digests, theta.size)
    planner.want(assembly)
    planner.know([digest_of("donor")], None, 0.0)
    tries = 0
    for now_s in range(2000):
        for ask in planner.asks(now_s):
            tries += 1
            planner.failed(ask.number, Trouble.GONE, "is gone", now_s)
    assert tries > 2 * PART_FAILURES_MAX
    assert sum(part.failures for part in assembly.parts.values()) == 1


def test_a_syncer_that_was_away_is_asked_as_soon_as_it_is_heard_of_again():
    """After minutes a donor that stays away is asked once a minute."""
    planner = Planner(random.Random(0))
    theta, momentum = a_state(45, chunks=1)
    assembly = Assembly(0, 1, state_manifests(theta, momentum).digests, theta.size)
    for now_s in range(300):
        planner.want(assembly)
        planner.know([], SYNCER, now_s)
        for ask in planner.asks(now_s):
            planner.failed(ask.number, Trouble.GONE, "is gone", now_s)
        planner.ended(now_s)
    planner.want(assembly)
    assert not planner.asks(300.0)
    planner.reached(SYNCER)
    (ask, *_) = planner.asks(300.0)
    planner.failed(ask.number, Trouble.WRONG, "sent something else", 300.0)
    planner.reached(SYNCER)
    assert not planner.asks(301.0), "what it sent wrong is not forgiven"


def test_of_very_many_learners_some_are_asked_and_liars_make_room():
    state = a_state(44, chunks=10)
    team = donors(3 * LEARNERS_MAX, state, lies=True)
    team[-1].lies = False
    net = FakeNet(team)
    assembly = net.want(0, state)
    while not net.planner.is_idle:
        net.step()
        net.planner.know(net.learners, None, net.now_s)
        if net.outcomes and net.outcomes[-1][1] is not None:
            net.outcomes.clear()
            net.planner.want(assembly)
        assert len(net.planner._donors) <= len(set(net.faults)) + LEARNERS_MAX
    assert fetched(net, assembly, state)
    assert set(assembly.sources) == {team[-1].key}


def test_progress_counts_bytes_and_who_sends_them():
    state = a_state(43, chunks=12)
    net = FakeNet(donors(3, state, bytes_per_s=1e4))
    assembly = net.want(0, state)
    while assembly.done_bytes < assembly.total_bytes / 2:
        net.step()
    progress = net.planner.progress(net.now_s)
    assert progress.total_bytes == 8 * np.size(state[0])
    assert progress.done_bytes == assembly.done_bytes
    assert progress.sources == set(net.learners)
    assert progress.rate == pytest.approx(3e4, rel=0.3)
