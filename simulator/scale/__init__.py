"""Whole clusters: what failures, links, mixed speeds and borrowed machines cost, by formulas and
draws, and by the machines themselves (`machines`).
Not here: the scenarios that break those machines (`simulator.scenarios`).
"""
