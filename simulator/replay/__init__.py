"""Replays tapes: the recorded daemon's own machines, banks and trainers, fed what was recorded.
Not here: writing tapes (`host.tape`, `syncer_node.storage.tape_recorder`).
"""
