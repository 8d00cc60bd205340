"""After the warm-up nothing is left to compile when pushes are merged."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from protocol.numerics.compiled import kernels

ROOT = Path(__file__).parents[3]

MERGE = """
import json
import numpy as np
from protocol.fragments import BLOCK, Fragment, TensorSpan
from protocol.numerics import codecs
from protocol.numerics.compiled import kernels, sum_kernels
from protocol.numerics.merge import Contribution, Reference, merge_fragment
from protocol.numerics.warm_up import warm_up

def compiled():
    made = {**vars(kernels), **vars(sum_kernels)}.items()
    return {name: len(one.signatures) for name, one in made if hasattr(one, "signatures")}

blocks = 1000
size = blocks * BLOCK
fragment = Fragment(0, (TensorSpan("t", (size - 5,), size - 5, "rda", 0),), size)
values = np.random.default_rng(0).standard_normal(size).astype(np.float32)
fixed = values.copy()
fixed.flags.writeable = False
payloads = {codec: bytes(codecs.encode(codec, values)) for codec in ("int4", "int8")}
warm_up()
before = compiled()
for codec, payload in payloads.items():
    parts = [Contribution((bytes(32), 0, at), payload, codec, 1.0) for at in range(9)]
    for count in (1, 2, 3, 9):
        for momentum in (values, fixed):
            merge_fragment(parts[:count], fragment, 10.0)
            merge_fragment(parts[:count], fragment, 10.0, Reference(momentum, 0.0, ()))
after = compiled()
print(json.dumps([name for name in after if after[name] != before[name]]))
"""


@pytest.mark.skipif(not kernels.IS_COMPILED, reason="numba is not installed")
def test_no_merge_waits_for_a_compiler():
    said = subprocess.run(
        [sys.executable, "-c", MERGE], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert json.loads(said.stdout) == []
