"""What stands in for a model and for tensors where a simulation needs none.
Not here: real inner loops (`simulator.compare`).
"""
