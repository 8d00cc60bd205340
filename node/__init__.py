"""The learner: its state machine, its trainer, and the daemon that a volunteer runs.
Not here: what all daemons share (`host`) and the syncer (`syncer_node`).
"""

__project__ = "shoal"
