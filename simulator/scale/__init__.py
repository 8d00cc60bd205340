"""Models of whole clusters: what failures, links, mixed speeds and borrowed machines cost.
Not here: the machines themselves; these are formulas and draws.
"""
