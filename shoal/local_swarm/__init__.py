"""A small swarm of real `shoal` processes on this machine: started, asked, killed and ended.
Not here: what is done to it (`shoal.demo`, `shoal.chaos`), nor networks between hosts (tests).
"""
