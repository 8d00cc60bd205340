"""`shoal doctor`: probes of this machine, what they mean, and whether a project suits it.
Not here: the trials that need torch or the network (`node.trainer.tools`, `node.daemon`).
"""
