"""Consistent snapshots of a swarm: the manifest, the cut, vector clocks.
Not here: files (`host.files.snapshot_files`, `syncer_node.storage`).
"""
