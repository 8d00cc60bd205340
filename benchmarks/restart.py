"""How soon a syncer of a large model merges again after it was ended, and that nothing is lost.

    python benchmarks/restart.py [--sizes 1b] [--learners 8] [--times 2] [--away-s S]
        [--json FILE]

The syncer and the learners are those of `capacity.py`. When it has lived for a while, and so has
the addresses of its learners in its file of known hosts, in the middle of merging, the syncer is
ended, by turns with SIGKILL and as `shoal stop` asks, and started at once with the same disk. Told
are the seconds from the end of the old process until the new one leads, until its first merge, and
until a merge has all learners in it; and how many of the records and versions that the old one had
told of are missing afterwards. Prints a line for each end.

With `--away-s` it is started so much later, and without its file of known hosts: as if no learner
could be dialled from outside, like those behind a router, so that they have to come back to it.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.capacity import SIZES, Case, Learners, Prepared, Syncer
from protocol.status import SyncerStatus

LIVED_S = 60.0
"""Without that file learners come back to it when their network engines try a host again that did
not answer: after five seconds or more."""


@dataclass(frozen=True, slots=True)
class Restart:
    """What one end of the syncer cost."""

    how: str
    parameters: int
    learners: int
    away_s: float
    """Between its end and its start; those below do not count it."""
    stop_s: float
    """Until the old process had ended."""
    lead_s: float
    merge_s: float
    whole_s: float
    """Until a merge with all learners in it."""
    lost: int
    """Records and versions that had been told of and are not there."""


def restart(
    syncer: Syncer, learners: Learners, how: str, case: Case, away_s: float = 0.0
) -> Restart:
    """Ends the syncer in the middle of merging and starts it again."""
    learners.until_whole(1, case.learners)
    time.sleep(max(0.0, LIVED_S - syncer.status().uptime_s))
    before = syncer.status()
    asked_s = time.monotonic()
    if how == "killed":
        syncer.kill("syncer")
    else:
        syncer.tell("syncer", "stop")
        syncer.ended("syncer")
    stop_s = time.monotonic() - asked_s
    if away_s:
        time.sleep(away_s)
        for known in syncer.folder.rglob("peers-syncer-*.json"):
            known.unlink()
    ended_s = time.monotonic()
    syncer.start_syncer("syncer", *(["--weights-on-disk"] if case.on_disk else []))

    def merging() -> SyncerStatus | None:
        status = syncer.syncer()
        return status if status is not None and status.merges_here > 0 else None

    syncer.until(syncer.leader, "its lead")
    lead_s = time.monotonic()
    after = syncer.until(merging, "merges")
    merge_s = time.monotonic()
    # Learners still tell of merges of the old one after its end.
    whole_s = learners.until_merge(lead_s, case.learners)
    return Restart(
        how=how,
        parameters=after.project.parameters,
        learners=case.learners,
        away_s=away_s,
        stop_s=stop_s,
        lead_s=lead_s - ended_s,
        merge_s=merge_s - ended_s,
        whole_s=whole_s - ended_s,
        lost=max(0, before.swarm.log_index - after.swarm.log_index)
        + sum(max(0, a - b) for a, b in zip(before.fragments, after.fragments, strict=True)),
    )


def measure(case: Case, cache: Path, times: int, away_s: float) -> list[Restart]:
    """So many ends of each kind, with one set of processes."""
    prepared = Prepared(case, cache)
    prepared.make()
    found = []
    with (
        tempfile.TemporaryDirectory(prefix="case-", dir=cache) as folder,
        prepared.syncer(Path(folder)) as syncer,
    ):
        learners = Learners(case, syncer, prepared.payloads)
        try:
            learners.until_up(case.learners)
            for how in ("killed", "stopped") * times:
                found.append(restart(syncer, learners, how, case, away_s))
                print(_line(found[-1]), flush=True)
        finally:
            learners.close()
    return found


def _line(one: Restart) -> str:
    return (
        f"{one.parameters / 1e6:.0f} M parameters, {one.learners} learners, {one.how}"
        f" within {one.stop_s:.1f} s, away for {one.away_s:.0f} s: leads after {one.lead_s:.1f} s,"
        f" merges after {one.merge_s:.1f} s, with all after {one.whole_s:.1f} s, {one.lost} lost"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", default="1b", help=f"of {', '.join(SIZES)}")
    parser.add_argument("--learners", type=int, default=8)
    parser.add_argument("--times", type=int, default=2, help="ends of each kind")
    parser.add_argument("--away-s", type=float, default=0.0, help="from its end to its start")
    parser.add_argument("--on-disk", action="store_true", help="the syncer's weights in files")
    parser.add_argument(
        "--cache", type=Path, default=Path(tempfile.gettempdir()) / "shoal-capacity"
    )
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    chosen.cache.mkdir(parents=True, exist_ok=True)
    found = []
    for size in chosen.sizes.split(","):
        case = Case(
            parameters=size,
            learners=chosen.learners,
            participants=0,
            fragments=24,
            overlap=4,
            downloads=True,
            is_light=False,
            step_s=0.25,
            syncs=0,
            warm=0,
            seconds=0.0,
            profile=None,
            on_disk=chosen.on_disk,
        )
        found += measure(case, chosen.cache, chosen.times, chosen.away_s)
        if chosen.json is not None:
            chosen.json.write_text(json.dumps([asdict(one) for one in found], indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
