"""The arithmetic that replicas must agree on, in NumPy."""
