"""The verbs of the `shoal` command: names, options, help. What a verb does lives elsewhere.
Heavy libraries are imported inside the verbs, so that `shoal --help` starts at once.
"""
