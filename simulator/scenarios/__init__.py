"""What a simulated swarm is made of and what happens to it: faults, sweeps, soaks.
Not here: the hosts themselves (`simulator.hosts`).
"""
