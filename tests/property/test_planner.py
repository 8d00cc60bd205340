"""Whatever donors do, a download ends, and it ends with the right bytes or a reason."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from node.download.donors import IN_FLIGHT_PER_DONOR_MAX
from protocol import limits
from protocol.numerics.versions import state_manifests
from tests.support.builders import digest_of
from tests.support.donors import FakeDonor, FakeNet, a_state, is_whole

SYNCER = digest_of("syncer")
CHUNK_BYTES = 1024

BEHAVIOURS = st.fixed_dictionaries(
    {
        "bytes_per_s": st.sampled_from([300.0, 2e3, 2e4]),
        "delay_s": st.sampled_from([0.0, 0.05, 0.4]),
        "dies_s": st.one_of(st.just(float("inf")), st.floats(0.0, 4.0)),
        "lies": st.booleans(),
        "is_busy_until_s": st.sampled_from([0.0, 0.0, 1.0, 30.0]),
    }
)
HELD = st.sets(st.integers(0, 2))


@pytest.fixture(autouse=True)
def small_chunks():
    former, limits.STATE_CHUNK_BYTES = limits.STATE_CHUNK_BYTES, CHUNK_BYTES
    yield
    limits.STATE_CHUNK_BYTES = former


STATES = []


def states():
    if not STATES:
        STATES.extend(
            a_state(at, chunks=size, is_fresh=at == 2) for at, size in enumerate((9, 1, 5))
        )
    return STATES


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(
    team=st.lists(st.tuples(BEHAVIOURS, HELD), max_size=6),
    has_syncer=st.booleans(),
    are_joiners=st.booleans(),
    seed=st.integers(0, 99),
)
def test_every_download_ends_with_the_certified_bytes_or_a_reason(
    team, has_syncer, are_joiners, seed
):
    donors = []
    for at, (behaviour, held) in enumerate(team):
        donor = FakeDonor(digest_of("donor", at), **behaviour)
        donor.hold(*(states()[fragment] for fragment in held))
        donors.append(donor)
    syncer = FakeDonor(SYNCER, bytes_per_s=2e4) if has_syncer else None
    if syncer is not None:
        syncer.hold(*states())
    net = FakeNet(donors, syncer, seed)
    if are_joiners:  # Every second one.
        net.planner.know(net.learners[::2], net.last_resort, 0.0, net.learners[1::2])
    assemblies = [net.want(at, state) for at, state in enumerate(states())]
    net.run(until_s=3000.0)
    troubles = {assembly.fragment: trouble for assembly, trouble in net.outcomes}
    assert set(troubles) == {0, 1, 2}
    for assembly, state in zip(assemblies, states(), strict=True):
        if troubles[assembly.fragment] is None:
            assert is_whole(assembly, state)
        else:
            assert not assembly.is_complete
    if has_syncer:
        assert not any(troubles.values()), "the syncer has everything"
    liars = {donor.key for donor in donors if donor.lies}
    assert not liars & {source for one in assemblies for source in one.sources}
    assert not net.planner.asked


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(
    team=st.lists(st.tuples(st.sampled_from([4e3, 2e4]), HELD), min_size=1, max_size=5),
    seed=st.integers(0, 99),
)
def test_the_syncer_is_never_asked_for_what_an_honest_learner_holds_and_soon_gives(team, seed):
    donors = []
    for at, (rate, held) in enumerate(team):
        donor = FakeDonor(digest_of("donor", at), bytes_per_s=rate)
        donor.hold(*(states()[fragment] for fragment in held))
        donors.append(donor)
    syncer = FakeDonor(SYNCER, bytes_per_s=2e4)
    syncer.hold(*states())
    net = FakeNet(donors, syncer, seed)
    for at, state in enumerate(states()):
        net.want(at, state)
    net.run(until_s=3000.0)
    held_somewhere = set().union(*(held for _, held in team))
    assert not {ask.fragment for ask in net.asked if ask.donor == SYNCER} & held_somewhere


@settings(max_examples=60, deadline=None)
@given(dies_s=st.floats(0.0, 3.0), victim=st.integers(0, 2), seed=st.integers(0, 99))
def test_no_chunk_that_arrived_is_fetched_again(dies_s, victim, seed):
    donors = [FakeDonor(digest_of("donor", at), bytes_per_s=3e3) for at in range(3)]
    for donor in donors:
        donor.hold(*states())
    donors[victim].dies_s = dies_s
    net = FakeNet(donors, None, seed)
    assemblies = [net.want(at, state) for at, state in enumerate(states())]
    net.run()
    assert all(is_whole(one, state) for one, state in zip(assemblies, states(), strict=True))
    names = {name for theta, momentum in states() for name, _ in manifest_blobs(theta, momentum)}
    chunks = [ask for ask in net.asked if not ask.is_manifest]
    assert {ask.digest for ask in chunks} <= names
    arrived = sum(sum(one.sources.values()) for one in assemblies)
    again = sum(ask.length for ask in chunks) - arrived
    in_flight_bytes = IN_FLIGHT_PER_DONOR_MAX * CHUNK_BYTES
    # Lost is only what was under way at the one that died; the rest is asked twice at the end.
    assert again <= 2 * in_flight_bytes


def manifest_blobs(theta, momentum):
    return state_manifests(theta, momentum).blobs(theta, momentum)
