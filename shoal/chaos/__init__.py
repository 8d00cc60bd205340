"""`shoal demo --chaos`: a small real swarm, one fault after another, and a verdict on each.
Not here: faults in virtual time (`simulator.scenarios`).
"""
