"""The public log: records, the state folded from them, leases, accounts, receipts.
Not here: how voters agree on it (`syncer_node.raft`).
"""
