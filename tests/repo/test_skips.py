"""Tests that cannot run on a machine are skipped, and the run says so."""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PR_CAPBSET_DROP = 24
CAP_SYS_ADMIN = 21


def test_without_the_rights_for_it_the_network_lab_is_skipped_visibly():
    libc = ctypes.CDLL(None)
    options = ("-n", "0", "-p", "no:cacheprovider")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "tests/net/test_netlab.py"],
        cwd=ROOT,
        # Refused where there are no rights to begin with, which is just as good.
        preexec_fn=lambda: libc.prctl(PR_CAPBSET_DROP, CAP_SYS_ADMIN, 0, 0, 0),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert re.search(r"^\d+ skipped: no network lab without root", done.stdout, re.MULTILINE)
    assert "passed" not in done.stdout
