"""Several devices as one learner: rank 0, its followers, and the process group between them.
Not here: the inner loop, which is the same for one rank (`node.trainer.loop`).
"""
