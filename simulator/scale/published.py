"""What the paper prints about clusters (Decoupled DiLoCo, arXiv 2604.21428), as percentages."""

from __future__ import annotations

from typing import Final

YEAR_S: Final = 365.25 * 86_400.0
MTBI_S: Final = YEAR_S
"""Mean time between interruptions of one chip in table 1."""

CHIPS: Final = (150_000, 300_000, 600_000, 1_200_000, 2_400_000)
LEARNERS: Final = (1, 2, 4, 8, 16)

RIGID_GOODPUT: Final = (72, 57, 38, 27, 18)
"""Table 1a, data parallel without elasticity, over `CHIPS`."""

ELASTIC_GOODPUT: Final = {
    1: (88, 80, 69, 58, 40),
    2: (94, 88, 80, 70, 54),
    4: (96, 93, 89, 82, 73),
    8: (98, 96, 94, 88, 80),
    16: (99, 98, 96, 93, 86),
}
"""Table 1a by learners, over `CHIPS`; one learner is elastic data parallel."""

FULL_UPTIME_LEARNERS: Final = 4
"""Table 1b prints 100 % from this many learners on. Its other cells are not known to us."""

BANDWIDTH_GBPS: Final = {
    ("DP", "bf16"): 104.0,
    ("Decoupled", "bf16"): 1.7,
    ("Decoupled", "int4"): 0.43,
}
"""Table 13a by method and codec: 1 s steps, 90 % utilisation."""

BANDWIDTH_OF_EIGHT_GBPS: Final = (198.0, 0.84)
"""Data parallel and Decoupled between eight data centres, as the paper's announcement has it."""

HETEROGENEOUS_GOODPUT: Final = {"K = M": 84, "K = 1": 100, "K = 1 + grace": 100}
"""Four fast and four slow learners, 18 % apart, with 10 % variance."""

SCAVENGE: Final = {
    0.0: (1.00, 1.00),
    0.25: (1.07, 0.90),
    0.5: (1.09, 0.83),
    1.0: (1.02, 0.75),
    3.0: (0.80, 0.62),
}
"""By extra machines, which half of the token budget meets: relative training time of data parallel
and of decoupled."""
