"""Calls that only Linux has stand where each has a stand-in, or where their lack is no failure."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from shoal.__main__ import PACKAGES

ROOT = Path(__file__).parents[2]
STAND_INS = "host/runtime/stand_ins.py"

CALLS = {
    r"\bmemfd_create\b|\bF_ADD_SEALS\b": {"host/runtime/memory_files.py"},
    r"\bposix_fallocate\b": {"host/runtime/memory_files.py"},
    r"\bPR_SET_PDEATHSIG\b|\.prctl\b": {"host/runtime/parent_death.py"},
    # The fork server runs where the system has all that it needs, and nowhere else.
    r"\bpidfd_open\b": {"host/runtime/process_end.py", "host/runtime/fork_server.py"},
    r"\bpidfd_send_signal\b|\bSOCK_SEQPACKET\b": {"host/runtime/fork_server.py"},
    r"\bsched_getaffinity\b": {"host/runtime/compute_pool.py"},
    r"\bO_PATH\b": {"host/runtime/short_paths.py"},
    r"\bMSG_CMSG_CLOEXEC\b": {"host/runtime/received.py"},
    r"IP(?:V6)?_MULTICAST_ALL\b": {"host/nearby/lan_sockets.py"},
    r"\bRLIMIT_FSIZE\b": {"shoal/chaos/faults.py"},
}
"""Names of Linux's own calls, and the files that may use them."""

PROC = {
    "host/files/crash_marker.py": "then it cannot tell a restart from a killing",
    "host/nat/router.py": "then no router is asked",
    "host/runtime/memory_files.py": "has a stand-in",
    "host/runtime/process_status.py": "has a stand-in",
    "host/runtime/processor.py": "then it has no name, and no instructions for bf16",
    "host/runtime/short_paths.py": "has a stand-in",
    "node/governor/accelerators.py": "then there is no such device",
    "node/trainer/micro_batch.py": "then the peak since the start counts",
    "shoal/doctor/probes.py": "then neither device nor container is found",
    "shoal/machine/service_command.py": "then what runs first is unknown",
}
"""Files that read what Linux tells of itself, and what happens where it does not."""


def lines_of(name: str) -> str:
    return (ROOT / name).read_text()


def product() -> list[str]:
    found = [path for one in PACKAGES for path in sorted((ROOT / one).rglob("*.py"))]
    return [str(path.relative_to(ROOT)) for path in found]


@pytest.mark.parametrize(("call", "allowed"), CALLS.items())
def test_a_call_of_linux_is_made_in_its_own_file_only(call, allowed):
    found = {name for name in product() if re.search(call, lines_of(name))}
    assert found - {STAND_INS} == allowed


def test_what_linux_tells_of_itself_is_read_where_its_lack_is_no_failure():
    found = {name for name in product() if re.search(r'"[^" ]*/(?:proc|sys)/', lines_of(name))}
    assert found - {STAND_INS} == set(PROC)


def test_the_files_with_stand_ins_are_chosen_by_one():
    chosen = {name for name in product() if "stand_ins.uses(" in lines_of(name)}
    assert chosen == {
        "host/nearby/lan_sockets.py",
        "host/runtime/compute_pool.py",
        "host/runtime/fork_server.py",
        "host/runtime/memory_files.py",
        "host/runtime/parent_death.py",
        "host/runtime/process_end.py",
        "host/runtime/process_status.py",
        "host/runtime/received.py",
        "host/runtime/short_paths.py",
    }
