"""Training loops of their own for a Shoal swarm; nothing in here imports Shoal."""
