"""Voters alone in virtual time: elections, replication, disks that fail, an owner who intervenes.
Not here: learners (`simulator.hosts`).
"""
