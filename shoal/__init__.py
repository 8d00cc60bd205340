"""The `shoal` command: verbs, exit codes, and nothing that could live elsewhere."""

__project__ = "shoal"
