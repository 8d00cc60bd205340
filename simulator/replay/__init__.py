"""Replays tapes: the recorded daemon's own machines, banks and trainers, fed what was recorded."""
