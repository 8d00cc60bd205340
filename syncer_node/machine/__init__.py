"""Syncer and witness as sans-IO state machines, one part a file: rounds, leases, snapshots.
Not here: elections (`syncer_node.raft`), tensors and disk (`syncer_node.storage`).
"""
