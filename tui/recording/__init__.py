"""Recordings of a swarm: written, read, and played back.
Not here: live daemons (`tui.frames.sources`).
"""
