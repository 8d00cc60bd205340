"""The arithmetic that replicas must agree on, bit for bit: codecs, merge, outer step.
Not here: torch, and which fragments to merge when.
"""
