"""What several verbs share: exit codes, failures in words, options, the daemons of a home.
Not here: anything that only one verb needs.
"""
