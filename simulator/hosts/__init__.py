"""Simulated hosts: the daemons' machines and banks with virtual IO around them.
Not here: time and network (`simulator.virtual`), faults (`simulator.scenarios`).
"""
