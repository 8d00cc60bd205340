"""What a daemon's loop tells of errors that nobody waits for."""

from __future__ import annotations

import asyncio
import gc

import pytest

from host.network.hivemind_parts import ValidationError
from host.runtime.lifecycle import live, quiet_about_peers

MESSAGE = "Unhandled exception in client_connected_cb"
UNSEEN = "Task exception was never retrieved"


@pytest.mark.parametrize(
    ("message", "error", "is_told"),
    [
        (MESSAGE, asyncio.IncompleteReadError(b"", 1), False),
        (MESSAGE, RuntimeError("something else"), True),
        (UNSEEN, asyncio.IncompleteReadError(b"", 1), True),
        (UNSEEN, ValidationError("another host refused"), False),
        (MESSAGE, ValidationError("a host refused"), True),
    ],
)
def test_only_what_peers_do_before_anything_began_is_no_news(message, error, is_told):
    told = []
    loop = asyncio.new_event_loop()
    loop.default_exception_handler = told.append
    try:
        quiet_about_peers(loop, {"message": message, "exception": error})
    finally:
        loop.close()
    assert bool(told) is is_told


def test_a_daemon_does_not_look_through_its_code_for_garbage():
    gc.freeze()
    aside, loaded = gc.get_freeze_count(), [[] for _ in range(10_000)]

    async def main(_):
        return gc.get_freeze_count() - aside

    assert live(main) >= len(loaded) // 2
