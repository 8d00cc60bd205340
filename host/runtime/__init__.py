"""A daemon as a process: event loop, logs, compute threads, atomic files.
Not here: anything that knows of a network.
"""
