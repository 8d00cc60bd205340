"""What every Shoal process speaks: messages, records, machines. No clock, no randomness, no IO.
Not here: anything that one kind of process alone needs.
"""

__project__ = "shoal"
