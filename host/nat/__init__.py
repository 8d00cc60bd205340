"""Hosts that cannot be dialled: finding out, relays, the peers to dial first.
Not here: the network engine itself (`host.network`).
"""
