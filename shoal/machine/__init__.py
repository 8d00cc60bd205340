"""Verbs about this machine: run, status, logs, settings, identities, services, contributions.
Not here: verbs by which an owner rules a project (`shoal.project`).
"""
