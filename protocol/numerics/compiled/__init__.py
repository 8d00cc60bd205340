"""The inner loops of the arithmetic, compiled by numba: kernels, and the intrinsics they use.
Not here: their definition in NumPy, which stands in `protocol.numerics` and runs without numba.
"""
