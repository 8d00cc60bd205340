"""A voter's disk and a syncer's tensors: log, ballot, checkpoints, snapshots, recovery.
Not here: what is decided from it.
"""
