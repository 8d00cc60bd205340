"""Ways of training together, compared on a real model: same text, inner loop and token budget.
Not here: swarms without a model (`simulator.hosts`).
"""
