"""What lies on a machine's disk for every daemon: home, keys, memberships, settings, receipts.
Not here: a syncer's log and checkpoints (`syncer_node.storage`).
"""
