"""The `shoal` command: verbs, exit codes, messages for people.
Not here: anything that a daemon needs to run.
"""

__project__ = "shoal"
