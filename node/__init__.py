"""The learner daemon: what a volunteer runs. Everything below `node.host` is shared by all daemons."""

__project__ = "shoal"
