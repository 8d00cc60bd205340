"""What is put right in hivemind's parts."""

from __future__ import annotations

import asyncio

from host.network.hivemind_parts import DHTProtocol, dht_pb2


def test_a_ping_that_comes_before_the_protocol_is_whole_is_answered():
    """Its handlers are registered before it knows who it is."""
    protocol = DHTProtocol(_initialized_with_create=True)
    protocol.client_mode = True
    answer = asyncio.run(protocol.rpc_ping(dht_pb2.PingRequest(), None))
    assert answer.peer == dht_pb2.NodeInfo()
