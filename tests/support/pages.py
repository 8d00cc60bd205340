"""Pages made to order: a status, a signed project, and what becomes of both."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from host.files.home import Home
from host.files.signed_project import OpenedProject, read_signed
from protocol.status import ContributorRow, PaceStatus, SeatStatus, SyncerStatus, VoterRow
from shoal.common.verdicts import verdicts
from shoal.page.drawn_up import page_facts
from shoal.page.facts import PageFacts
from tests.support import recordings
from tests.support.daemon_double import LINK
from tests.support.owned_project import owned_project

AT_S = recordings.START_S
NAMES = ("north/heron", "north/dunlin", "south/osprey", "kestrel")
TOKENS = (400, 300, 200, 60)


def project(home: Home, **changes: Any) -> OpenedProject:
    """A signed project that this home has a copy of. changes: to its charter."""
    with tempfile.TemporaryDirectory() as folder:
        path = owned_project(home, Path(folder), **changes)
        opened = read_signed(path)
        shutil.copy(path, home.project_file(opened.id))
    return opened


def contributor(at: int, name: str, tokens: int) -> ContributorRow:
    return ContributorRow(
        key=f"{at:08x}" + 56 * "0",
        name=name,
        tokens=tokens,
        fragment_tokens=tokens * recordings.FRAGMENTS,
        merges=at,
        is_here=at == 0,
    )


def syncer(opened: OpenedProject, step: int = 900, **changes: Any) -> SyncerStatus:
    """What a syncer of this project says that leads two other voters and eight learners."""
    status = recordings.syncer(step, [recordings.peer(at, step) for at in range(8)])
    rows = [contributor(at, *one) for at, one in enumerate(zip(NAMES, TOKENS, strict=True))]
    voters = [
        VoterRow(key=status.key, role="syncer", priority=9, is_self=True, is_leader=True,
                 is_here=True),
        VoterRow(key="ab" * 32, role="syncer", priority=5, is_here=True, heard_s=0.1, lag=0),
        VoterRow(key="cd" * 32, role="witness", priority=0, is_here=True, heard_s=0.1, lag=0),
    ]  # fmt: skip
    seat = SeatStatus(
        role="leading", epoch=1, term=7, leader=status.key, leader_heard_s=0.0, voters=voters,
        standbys=1,
    )  # fmt: skip
    pace = PaceStatus(still_s=0.4, gap_s=1.4, tokens_per_s=231_400.0, left_s=(6800.0, 7900.0))
    status.project = msgspec.structs.replace(
        status.project, id=opened.id.hex(), name=opened.genesis.name
    )
    return msgspec.structs.replace(
        status,
        **{
            "join_link": LINK,
            "swarm": msgspec.structs.replace(status.swarm, pace=pace),
            "seat": seat,
            "contributors": rows,
            "contributors_all": 40,
            "contributor_fragment_tokens": 1000 * recordings.FRAGMENTS,
            **changes,
        },
    )


def facts(opened: OpenedProject, status: SyncerStatus, **changes: Any) -> PageFacts:
    """What its page says."""
    verdict = verdicts([status], [])[status.key]
    return page_facts(status, opened, verdict, at_s=AT_S, seen_s=AT_S, **changes)
