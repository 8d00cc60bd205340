"""The syncer daemon: merges what learners push and publishes what was committed."""

__project__ = "shoal"
