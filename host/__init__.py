"""What every daemon needs on its machine: network, files, control socket, driver. Not here: what a
learner or a syncer does; `host` imports `protocol` alone.
"""

__project__ = "shoal"
