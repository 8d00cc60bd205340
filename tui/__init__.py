"""What people look at. Speaks to the protocol only, so it starts fast."""

__project__ = "shoal"
