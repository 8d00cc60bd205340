"""Virtual time: the very machines the daemons run, driven by a heap instead of a network.
Not here: any behaviour of a daemon; only stand-ins for its IO.
"""

__project__ = "shoal"
