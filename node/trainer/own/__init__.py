"""Training code of somebody's own: what it must offer, how it is found, its samples, its state.
Not here: the trainer that Shoal brings (`node.trainer.builtin`), which offers the same.
"""
