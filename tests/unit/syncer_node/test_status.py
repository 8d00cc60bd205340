"""What a syncer says of its swarm in one sentence."""

from __future__ import annotations

import pytest

from syncer_node.daemon.status import nobody_trains


@pytest.mark.parametrize(
    ("learners", "said"),
    [
        ([("ada", "paused")], "Nobody trains: ada paused."),
        (
            [("ada", "starting"), ("bob", "paused"), ("eve", "starting")],
            "Nobody trains: ada, eve starting; bob paused.",
        ),
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
