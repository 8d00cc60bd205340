"""How a joiner gets the weights: whom to ask for which chunk, and carrying it out.
Not here: proving what was downloaded (`node.machine.index_proof`).
"""
