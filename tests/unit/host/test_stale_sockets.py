"""Dead sockets of killed engines go; whatever somebody may still use stays."""

from __future__ import annotations

import os
import socket

from host.network.stale_sockets import AGE_S_MIN, sweep


def bound(path):
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    made.bind(str(path))
    return made


def age(path, seconds=2 * AGE_S_MIN):
    then = path.stat().st_mtime - seconds
    os.utime(path, (then, then))


def test_only_old_sockets_that_refuse_are_removed(tmp_path):
    names = ["p2pd-dead", "p2pclient-dead", "p2pd-alive", "p2pd-young", "p2pd-file"]
    places = {name: tmp_path / f"hivemind-{name}.sock" for name in names}
    foreign = tmp_path / "other.sock"
    for name in ("p2pd-dead", "p2pclient-dead", "p2pd-young"):
        bound(places[name]).close()
    bound(foreign).close()
    places["p2pd-file"].write_text("no socket")
    alive = bound(places["p2pd-alive"])
    alive.listen()
    for path in (*places.values(), foreign):
        if path != places["p2pd-young"]:
            age(path)
    assert sweep(tmp_path) == 2
    assert not places["p2pd-dead"].exists()
    assert not places["p2pclient-dead"].exists()
    assert all(places[name].exists() for name in ("p2pd-alive", "p2pd-young", "p2pd-file"))
    assert foreign.exists()
    alive.close()
    assert sweep(tmp_path) == 1
