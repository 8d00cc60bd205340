"""The learner as a sans-IO state machine, one part a file: events in, effects out.
Not here: tensors, clocks, sockets; effects name work that the daemon carries out.
"""
