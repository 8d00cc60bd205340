"""A joiner's progress in words."""

from __future__ import annotations

import pytest

from node.daemon.status import fetching
from protocol.status import DownloadStatus
from protocol.trace import WeightsReady
from tests.support.builders import digest_of


def a_download(**changes):
    given = {
        "done_bytes": 5_040_000,
        "total_bytes": 12_000_000,
        "rate": 8.1e6,
        "learners": 3,
        "is_from_syncer": False,
        "left_s": 0.86,
        **changes,
    }
    return DownloadStatus(**given)


@pytest.mark.parametrize(
    ("download", "words"),
    [
        (a_download(), "42 % of 12.0 MB from 3 learners, 8.1 MB/s, 1 s left."),
        (a_download(learners=1), "from 1 learner, "),
        (a_download(learners=0, is_from_syncer=True), "from the syncer, "),
        (a_download(is_from_syncer=True), "from 3 learners and the syncer, "),
        (a_download(learners=0, rate=0.0, left_s=None), "from nobody yet, 0.0 MB/s."),
    ],
)
def test_a_download_in_words(download, words):
    assert words in fetching(download)


def test_the_end_names_who_sent_how_much():
    sources = tuple((digest_of("donor", at), (at + 1) * 1_000_000) for at in range(10))
    text = WeightsReady(8, 0, 3.21, sources).text
    assert text.startswith(
        "weights verified: 8 fragments from learners, 0 from the syncer, 3.2 s; "
    )
    assert f"10.0 MB from {digest_of('donor', 9)[:4].hex()}" in text
    assert text.endswith("3.0 MB from 2 others")
    assert WeightsReady(8, 0, 3.21).text.endswith("3.2 s")
