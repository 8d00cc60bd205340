from __future__ import annotations

import pytest

from host.network.token_bucket import BURST_S, PIECE_BYTES, TokenBucket


def test_bytes_leave_at_the_stated_rate():
    bucket = TokenBucket(1000.0)
    waits = [bucket.take(100, 50.0) for _ in range(5)]
    assert waits == pytest.approx([0.1 - BURST_S + 0.1 * at for at in range(5)])


def test_what_was_not_used_is_not_saved_up_for_long():
    bucket = TokenBucket(1000.0)
    bucket.take(100, 0.0)
    later = bucket.take(1000, 100.0)
    assert later == pytest.approx(1.0 - BURST_S)


def test_a_slow_donor_with_every_stream_in_use_is_not_taken_for_stalled():
    from host.network.blobs import READ_S
    from protocol.limits import STREAMS_SERVED_MAX

    bucket = TokenBucket(1e6 / 8)
    waits = [bucket.take(PIECE_BYTES, 0.0) for _ in range(STREAMS_SERVED_MAX)]
    assert waits[-1] < READ_S
