"""The `shoal` command: a table of its verbs, and those that span several rooms.
A verb, its options and its help lie where its work is done; it is imported once it is asked for.
"""
