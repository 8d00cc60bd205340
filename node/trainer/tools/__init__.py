"""Programs beside the trainer: initialise, train alone, score, export, trial of this machine.
Not here: the process that trains in a swarm (`node.trainer.main`).
"""
