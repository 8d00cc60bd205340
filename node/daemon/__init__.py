"""The learner daemon: builds everything once, wires it, and ends it in order.
Not here: decisions, which are made in `node.machine`, `node.download` and `node.governor`.
"""
