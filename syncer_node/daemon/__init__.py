"""The daemons of syncer and witness: wiring, jobs, status.
Not here: decisions (`syncer_node.machine`) and the disk (`syncer_node.storage`).
"""
