"""The daemon's side of its trainer: the child process, fragments in host memory, suspend, tape.
Not here: torch, which only the child process imports (`node.trainer`).
"""
