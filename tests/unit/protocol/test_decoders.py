"""Decoders that several threads ask for at once."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import msgspec
import pytest

from protocol import decoders
from protocol.messages import Goodbye
from protocol.status import StatusAnswer

RACE = """
    import sys
    import threading

    import msgspec

    from protocol import decoders, status

    KINDS = [
        *(status.StatusAnswer, status.SyncerStatus, status.NodeStatus, status.WitnessStatus),
        *(status.SeatStatus, status.NetworkStatus, status.ProjectStatus, status.SnapshotStatus),
    ]
    CONTENTS = [
        msgspec.msgpack.encode(content)
        for content in ({"status": {"type": "node"}, "ok": True}, {"ok": True})
    ]
    sys.setswitchinterval(1e-6)
    together = threading.Barrier(len(KINDS))

    def first(at):
        together.wait()
        for kind in (KINDS[at], status.StatusAnswer):
            for content in CONTENTS:
                try:
                    decoders.msgpack_decoder(kind).decode(content)
                except msgspec.ValidationError:
                    pass

    threads = [threading.Thread(target=first, args=(at,)) for at in range(len(KINDS))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


def test_many_threads_that_decode_for_the_first_time_do_not_crash_the_process():
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(RACE)], capture_output=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, b"")


def test_a_type_has_one_decoder_for_each_format():
    assert decoders.msgpack_decoder(Goodbye) is decoders.msgpack_decoder(Goodbye)
    assert decoders.json_decoder(StatusAnswer) is decoders.json_decoder(StatusAnswer)
    assert decoders.json_decoder(list[int]).decode(b"[1]") == [1]


def test_what_does_not_fit_is_refused_as_msgspec_does():
    with pytest.raises(msgspec.ValidationError):
        decoders.convert("one", int)
