"""The retrain level: learners' local steps done again, push by push, each in its own process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from host.runtime.python_path import python_path
from host.tape.tape_file import TapeLife
from protocol import decoders
from protocol.ids import short
from simulator.replay.audit import Audit
from simulator.replay.divergence import Diverged
from simulator.replay.retrainer import PushOutcome, version_path
from simulator.replay.tiny_retrainer import TinyRetrainer
from syncer_node.machine.jobs import PushId
from syncer_node.storage.merge_bank import Version


@dataclass(slots=True)
class Retrained:
    """What training again came to."""

    pushes: set[PushId] = field(default_factory=set)
    """Those that came to the digest that their learner signed."""
    untried: Counter[str] = field(default_factory=Counter)
    """Pushes that could not be made again, by reason."""
    steps: int = 0


@dataclass(slots=True)
class VersionSpool:
    """Global values on disk, for the processes that train."""

    folder: Path

    def keep(self, fragment: int, version: Version) -> None:
        """Raises OSError where the disk is full."""
        path = version_path(self.folder, fragment, version.number)
        if not path.exists():
            version.theta.astype("<f4", copy=False).tofile(path)


def retrain(
    lives: list[TapeLife],
    audits: list[Audit],
    spool: VersionSpool,
    data_cache: Path,
    tell: Callable[[str], None] = lambda words: None,
) -> Retrained:
    """Repeat every learner's training. Raises Diverged.

    A push counts as the same if it has the digest of its signed header, as a syncer recorded it.
    """
    found = Retrained()
    signed = {
        part.push: part.header.digest
        for audit in audits
        for merge in audit.merges
        for part in merge.job.parts
    }
    whole = [life for life in lives if life.has_begin()]
    if len(whole) < len(lives):
        found.untried["the beginning of a learner's tape is gone"] = len(lives) - len(whole)
    with ThreadPoolExecutor(min(len(whole), os.cpu_count() or 1) or 1) as pool:
        every = pool.map(lambda one: _outcomes(one, spool.folder, data_cache), whole)
        for life, outcomes in zip(whole, every, strict=True):
            for outcome in outcomes:
                _take(found, life, outcome, signed)
            tell(f"{life.preface.name} is trained again, {found.steps:,} local steps so far")
    return found


def _take(
    found: Retrained,
    life: TapeLife,
    outcome: PushOutcome,
    signed: dict[PushId, bytes],
) -> None:
    preface = life.preface
    push = (preface.key, outcome.incarnation, outcome.sequence)
    name = f"push {outcome.sequence} of {preface.name} ({short(preface.key)})"
    match outcome.kind:
        case "push":
            if push in signed and signed[push].hex() != outcome.digest:
                raise Diverged(name, outcome.place, "it is not what the learner signed")
            if push in signed:
                found.pushes.add(push)
        case "untried":
            found.untried[outcome.text] += 1
        case "diverged":
            raise Diverged(name, outcome.place, outcome.text)
        case "done":
            found.steps += outcome.number


def _outcomes(life: TapeLife, spool: Path, data_cache: Path) -> list[PushOutcome]:
    """What one retrainer says of its pushes; one that failed is a reason, not an end."""
    if life.preface.scheme == "simulated":
        return list(TinyRetrainer(life, spool).outcomes())
    path = life.files["events"][0].path
    command = [sys.executable, "-P", "-m", "simulator.replay.torch_retrainer"]
    done = subprocess.run(
        [*command, str(path), str(spool), str(data_cache)],
        env={**os.environ, "PYTHONPATH": python_path()},
        capture_output=True,
        check=False,
    )
    outcomes = [
        decoders.json_decoder(PushOutcome).decode(line) for line in done.stdout.splitlines()
    ]
    if done.returncode != 0:
        words = done.stderr.decode(errors="replace").strip().splitlines() or ["it printed nothing"]
        outcomes.append(PushOutcome("untried", text=f"training again failed: {words[-1]}"))
    return outcomes
