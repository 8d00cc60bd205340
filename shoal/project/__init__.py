"""Project files, charters, and the verbs by which an owner rules a project.
Not here: verbs about this machine (`shoal.machine`).
"""
