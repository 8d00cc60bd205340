"""Projects on the same network: a host that answers whoever asks, and asking.
Not here: what the datagrams say and who believes them (`protocol.peers.nearby`).
"""
