"""The syncer and the witness: they merge what learners push and agree on one log.
Not here: what all daemons share (`host`) and learners (`node`).
"""

__project__ = "shoal"
