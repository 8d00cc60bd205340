"""Models of whole clusters: what failures, links, mixed speeds and borrowed machines cost.

Numbers only, vectorised over learners and replicas. The published values stand in `published`.
"""
