"""The `shoal` command of a learner that hands in everything backwards and ten times as long.

python lying_shoal.py ARGUMENTS...
"""

from __future__ import annotations

import sys

from node.trainer_client import fragment_bank
from shoal.__main__ import main

FACTOR = 10

honest = fragment_bank.encode_with_feedback


def backwards(codec, values, residual, *, minus):
    payload, _ = honest(codec, FACTOR * (minus - values), 0 * residual)
    return payload, 0 * residual


fragment_bank.encode_with_feedback = backwards
sys.exit(main())
