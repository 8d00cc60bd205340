"""From what a syncer says to what its page says."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from host.files import keystore
from host.files.home import Home
from host.join_link import format_link, parse_link
from protocol import decoders
from protocol.invites import Invite, seal_invite
from protocol.project import MixedSource, PublishedSpec
from protocol.status import SampleStatus
from shoal.common.verdicts import verdicts
from shoal.page import facts as shape
from shoal.page.drawn_up import page_facts, thinned
from shoal.page.facts import PageFacts
from shoal.page.joining import joining, model_words
from tests.support import pages, recordings
from tests.support.daemon_double import LINK


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    home = Home(tmp_path_factory.mktemp("home"))
    return pages.project(home, about="Folk tales.\n\nFor a library.")


def replaced(opened, **changes):
    return opened._replace(genesis=msgspec.structs.replace(opened.genesis, **changes))


def test_what_a_page_says_can_be_read_back_by_whoever_checks_every_bound(opened):
    made = pages.facts(opened, pages.syncer(opened))
    content = msgspec.json.encode(made)
    assert decoders.json_decoder(PageFacts).decode(content) == made
    assert len(content) < shape.BYTES_MAX
    assert made.project.about == ["Folk tales.", "For a library."]
    assert (made.state.level, made.run.learners_training, made.run.voters_here) == ("WELL", 8, 3)
    assert made.run.left == "1.9 to 2.2 h"


def test_shares_are_the_whole_with_those_that_are_not_named(opened):
    given = pages.facts(opened, pages.syncer(opened)).given
    assert [one.permille for one in given.shown] == [400, 300, 200, 60]
    assert given.others_permille == 40
    assert [(one.name, one.permille, one.members) for one in given.teams] == [
        ("north", 700, 2),
        ("south", 200, 1),
    ]
    assert [one.key for one in given.shown][:2] == ["00000000", "00000001"]


def test_of_many_contributors_the_rest_is_one_line(opened):
    rows = [pages.contributor(at, f"gull-{at}", 100 - at) for at in range(64)]
    total = sum(one.fragment_tokens for one in rows)
    status = pages.syncer(opened, contributors=rows, contributor_fragment_tokens=total)
    given = pages.facts(opened, status).given
    assert len(given.shown) == shape.GIVERS_MAX
    assert sum(one.permille for one in given.shown) + given.others_permille == 1000


def test_before_the_first_merge_nobody_has_a_share(opened):
    rows = [pages.contributor(0, "ada", 0)]
    status = pages.syncer(
        opened, 0, contributors=rows, contributors_all=1, contributor_fragment_tokens=0
    )
    made = pages.facts(opened, status)
    assert (made.given.shown[0].permille, made.given.others_permille) == (0, 0)
    assert (made.run.curve, made.run.best) == ([], None)


@given(st.lists(st.floats(0.5, 9.0), min_size=1, max_size=2000))
def test_a_long_curve_keeps_its_ends_and_its_best(losses):
    swarm = recordings.swarm(1)
    swarm.curve = [(at, at * 1000, loss) for at, loss in enumerate(losses)]
    kept = thinned(swarm)
    assert len(kept) <= shape.CURVE_MAX
    assert kept == sorted(kept)
    assert {kept[0], kept[-1]} == {swarm.curve[0], swarm.curve[-1]}
    assert min(losses) == min(loss for _, _, loss in kept)


def test_a_standby_does_not_say_how_many_train(opened):
    status = pages.syncer(opened)
    status.seat.role, status.seat.leader = "following", "ab" * 32
    status.peers = []
    run = pages.facts(opened, status).run
    assert (run.learners_training, run.learners_here) == (None, None)
    assert run.tokens == status.swarm.tokens


def test_every_field_of_the_format_is_written_down():
    manual = (Path(__file__).parents[3] / "docs" / "project-page.md").read_text()
    structs = [one for one in vars(shape).values() if isinstance(one, type) and one is not Struct]
    names = {name for one in structs if issubclass(one, Struct) for name in one.__struct_fields__}
    assert len(names) > 40
    assert sorted(name for name in names if f"`{name}`" not in manual) == []


# How to join.


@pytest.mark.parametrize("rule", ["invite", "list"])
def test_where_a_link_brings_nobody_in_there_is_none(tmp_path, rule):
    opened = pages.project(Home(tmp_path), admission=rule)
    made = pages.facts(opened, pages.syncer(opened))
    assert (made.join.admission, made.join.link) == (rule, "")
    assert b"shoal:" not in msgspec.json.encode(made)


@pytest.mark.parametrize("rule", ["invite", "list"])
def test_the_rule_in_force_counts_where_the_charter_here_is_older(opened, rule):
    status = pages.syncer(opened)
    status.project.admission = rule
    join = pages.facts(opened, status).join
    assert (join.admission, join.link) == (rule, "")
    by_link = page_facts(status, None, verdicts([status], [])[status.key], at_s=1.0, seen_s=1.0)
    assert (by_link.join.admission, by_link.join.link) == (rule, "")


def test_an_invite_never_gets_onto_a_page(opened, tmp_path):
    owner = keystore.load_or_create(tmp_path / "owner.key")
    found = parse_link(LINK)
    made = Invite(
        project=found.project, id=b"i" * 16, name="friends", uses=1, expires_s=2 * 10**9, key=None
    )
    link = format_link(msgspec.structs.replace(found, invite=seal_invite(made, owner)))
    shown = pages.facts(opened, pages.syncer(opened, join_link=link)).join.link
    assert shown == LINK != link


def test_what_must_be_at_hand_follows_the_data(opened):
    def hand(**data):
        genesis = opened.genesis
        spec = msgspec.structs.replace(genesis.data, **data)
        return joining(msgspec.structs.replace(genesis, data=spec), opened.charter, LINK).at_hand

    assert hand(source="python-stdlib") == "Nothing else: Python brings the text."
    assert "same folder of texts" in hand(source="folder", location="/home/ada/secret")
    assert "owner/stories is fetched" in hand(source="hub", location="owner/stories:small")


def test_a_mixture_names_what_must_be_at_hand_and_no_place(opened):
    def said(*kinds):
        mixture = tuple(
            MixedSource(
                one, "/home/ada/secret" if one == "jsonl" else "", "text", 1.0, 9, bytes(32)
            )
            for one in kinds
        )
        made = replaced(opened, mixture=mixture)
        return joining(made.genesis, made.charter, LINK).at_hand, model_words(made.genesis)

    hand, words = said("jsonl", "python-stdlib")
    assert "copies of 1 of the 2 sources" in hand
    assert "a mixture of 2 sources of text" in words
    assert "secret" not in hand + words
    assert said("hub", "python-stdlib")[0].startswith("Nothing else")


def test_published_text_takes_disk_and_nothing_needs_to_be_at_hand(opened):
    published = PublishedSpec(manifest=bytes(32), manifest_bytes=10, shard_blocks=4, token_bytes=2)
    made = replaced(opened, published=published)
    data = made.genesis.data
    join = joining(made.genesis, made.charter, LINK)
    assert join.disk_bytes == 2 * data.blocks * data.block_sequences * (data.sequence_tokens + 1)
    assert join.at_hand == "Nothing else: the text comes from the project's hosts."


def test_a_model_is_described_without_a_place_on_the_owners_disk(opened):
    data = msgspec.structs.replace(
        opened.genesis.data, source="folder", location="/home/ada/secret"
    )
    said = model_words(msgspec.structs.replace(opened.genesis, data=data))
    assert "secret" not in said
    assert said.endswith("trained from scratch on text that the owner has chosen.")


def test_a_sentence_with_an_address_or_a_path_is_withheld(opened):
    said = "Merging paused: /home/ada/log is full; 9 learners come from 203.0.113.0/24."
    made = pages.facts(opened, pages.syncer(opened, sentence=said))
    assert made.state.level == "TROUBLE"
    assert "ada" not in made.state.sentence
    assert "203" not in made.state.sentence


def test_a_sample_is_shown_as_text(opened):
    sample = SampleStatus("Once\x1b[2J", "upon\u202e a time\n", 7, recordings.START_S)
    made = pages.facts(opened, pages.syncer(opened), sample=sample)
    assert (made.sample.prompt, made.sample.text) == ("Once[2J", "upon a time\n")


def test_the_verdict_is_that_of_status(opened):
    status = pages.syncer(opened)
    status.seat.voters[1].is_here = False
    verdict = verdicts([status], [])[status.key]
    made = page_facts(status, opened, verdict, at_s=1.0, seen_s=1.0)
    assert (made.state.level, made.state.sentence) == ("CARE", verdict.sentence)
