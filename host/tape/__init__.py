"""A daemon's tape on disk: files of bounded size, and the thread that writes them.
Not here: what a tape says (`protocol.tape`) and replaying it (`simulator.replay`).
"""
