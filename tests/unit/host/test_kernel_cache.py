"""Compiled kernels are kept until a kernel source changes, where nobody else can write."""

import os
import subprocess
import sys

import pytest

from host.runtime import kernel_cache

COUNT = """
from pathlib import Path
import numpy as np
from host.runtime import kernel_cache
folder = kernel_cache.use(Path("{root}"))
from protocol.numerics.compiled import kernels
kernels.scales(np.zeros(4, np.uint16), np.zeros(4, np.float32))
print(folder, sum(kernels.scales.stats.cache_hits.values()))
"""


@pytest.fixture(autouse=True)
def unset(monkeypatch):
    monkeypatch.delenv(kernel_cache.VARIABLE, raising=False)


def test_a_second_process_finds_what_the_first_compiled(tmp_path):
    pytest.importorskip("numba")
    command = [sys.executable, "-c", COUNT.format(root=tmp_path / "kernels")]
    told = [
        subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
        for _ in range(2)
    ]
    assert told[0][0] == told[1][0] == str(next((tmp_path / "kernels").iterdir()))
    assert [hits for _, hits in told] == ["0", "1"]


def test_every_change_of_a_source_is_another_folder(tmp_path):
    (tmp_path / "one.py").write_text("a")
    names = {kernel_cache.digest_of(tmp_path)}
    (tmp_path / "one.py").write_text("b")
    names.add(kernel_cache.digest_of(tmp_path))
    (tmp_path / "two.py").write_text("")
    names.add(kernel_cache.digest_of(tmp_path))
    assert len(names) == 3


def test_a_folder_that_others_may_write_to_is_not_used(tmp_path):
    tmp_path.chmod(0o777)
    assert kernel_cache.use(tmp_path) is None
    assert kernel_cache.VARIABLE not in os.environ


def test_what_the_environment_says_stays(tmp_path, monkeypatch):
    monkeypatch.setenv(kernel_cache.VARIABLE, "elsewhere")
    assert kernel_cache.use(tmp_path / "kernels") is None
    assert os.environ[kernel_cache.VARIABLE] == "elsewhere"


def test_only_the_newest_folders_stay(tmp_path):
    for age in range(6):
        (tmp_path / f"old-{age}").mkdir()
        os.utime(tmp_path / f"old-{age}", (1000 - age, 1000 - age))
    assert kernel_cache.use(tmp_path) is not None
    assert {one.name for one in tmp_path.iterdir()} == {"old-0", "old-1", "old-2"}
