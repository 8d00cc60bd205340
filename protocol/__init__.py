"""What every Shoal process speaks: messages, records, machines. Pure: no clock, no IO, no task."""

__project__ = "shoal"
