"""Real processes on loopback: what learners train on has the weights of a mixture, whoever dies."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from host.files.signed_project import read_signed
from node.trainer.setup import open_text
from protocol.log.leases import LeaseBook
from protocol.log.records import BlocksLeased, BlocksReturned, FragmentMerged
from tests.net.swarms import TINY, Elsewhere
from tests.support.mixtures import WEIGHTS, is_second, write_sources

pytestmark = [pytest.mark.net, pytest.mark.timeout(900)]

BLOCK = 4
ENOUGH = 4000
"""Sequences, of which one in a hundred is many."""


class MixedSwarm(Elsewhere):
    """A swarm on two sources that their letters tell apart."""

    def prepare_mixture(self, *, is_published):
        sources = self.folder / "sources"
        sources.mkdir()
        write_sources(sources, chars=(200_000, 400_000))
        changes = {
            "data.source": "mixture",
            "data.location": "",
            "data.block_sequences": BLOCK,
            "data.publish": is_published,
            "limits.lease_blocks": 64,
        }
        self.write_project("tiny", {**TINY, **changes})
        path = self.folder / "tiny.toml"
        tables = (
            f'\n[[data.sources]]\nsource = "jsonl"\nlocation = "{one}"\nweight = {weight}\n'
            for one, weight in zip(sorted(sources.iterdir()), WEIGHTS, strict=True)
        )
        path.write_text(path.read_text() + "".join(tables))
        self.sign()
        return sources

    def trained(self):
        """Position and first sequence not trained on, or the whole block, of all done."""
        book = LeaseBook()
        for body in self.bodies("syncer", object):
            match body:
                case BlocksLeased(learner, incarnation, spans):
                    book.lease((learner, incarnation), spans, 0.0, BLOCK)
                case BlocksReturned(learner, incarnation):
                    book.give_back((learner, incarnation))
                case FragmentMerged():
                    for one in body.contributions:
                        session = one.learner, one.incarnation
                        book.hand_in(session, body.fragment, one.cursor, one.tokens, BLOCK)
        done = dict.fromkeys(range(book.next_position), BLOCK)
        for span in [*book.returned, *(one for held in book.held.values() for one in held)]:
            for position in range(span.start, span.stop):
                done[position] = span.skip if position == span.start else 0
        return {position: count for position, count in done.items() if count}

    def reach(self, sequences):
        return self.until(
            lambda: (now := self.trained()) and sum(now.values()) >= sequences and now,
            f"{sequences} sequences handed in",
        )


@pytest.mark.parametrize("is_published", [True, False])
def test_shares_hold_across_learners_a_kill_and_a_restart(tmp_path, is_published):
    with MixedSwarm(tmp_path) as swarm:
        sources = swarm.prepare_mixture(is_published=is_published)
        options = ()
        if is_published:
            shutil.rmtree(sources)
        else:
            options = ("--data", str(shutil.copytree(sources, tmp_path / "copies")))
        swarm.begin()
        swarm.start_learner("ada", *options)
        swarm.start_learner("bob", *options)
        swarm.all_merge("ada", "bob")
        swarm.reach(ENOUGH // 3)
        swarm.kill("ada")
        before = sum(swarm.reach(2 * ENOUGH // 3).values())
        swarm.start_learner("ada", *options)
        swarm.all_merge("ada", "bob")
        assert swarm.learner("ada").notices == swarm.learner("bob").notices == []
        done = swarm.reach(max(ENOUGH, before + ENOUGH // 3))
        text = open_text(read_signed(swarm.signed).genesis, swarm.home.data_cache())
        rows = np.concatenate([text.sequences(at)[:count] for at, count in done.items()])
        share = is_second(rows).mean()
        print(f"{len(rows)} sequences, {share:.2%} of the second source")
        assert abs(share - WEIGHTS[1]) < 0.01
