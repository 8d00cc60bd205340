"""Virtual time: the very machines the daemons run, driven by a heap instead of a network."""

__project__ = "shoal"
