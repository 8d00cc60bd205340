"""The learner daemon: what a volunteer runs. What lies in `node.host` serves all daemons."""

__project__ = "shoal"
