"""`shoal demo --liar`: one learner of four lies, and what that does to the model.

Three runs, one after the other, of one project: three honest learners; the same and a liar, which
joins once something of each of them was merged; and the same four where pushes are merged by their
plain mean. Everything lies in a temporary directory,
removed at the end without `--keep`, and no process is left, however it ends.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from msgspec import Struct

from protocol.log.records import FragmentMerged
from protocol.standing import DOUBTED_BELOW
from shoal.common import failures
from shoal.common.exit_codes import ExitCode
from shoal.common.writing import check_folder, write_json
from shoal.demo.command import begin, ended_by_signals
from shoal.demo.liar import FACTOR, spawning
from shoal.demo.project import NAME, SETTINGS, Learner
from shoal.demo.report import held_out_note
from shoal.demo.screen import Screen
from shoal.demo.watched import WatchedSwarm
from shoal.local_swarm.processes import Deadline, SwarmFailed
from shoal.project.template import Value
from tui.text import fmt
from tui.views.demo import results

MINUTES: Final = 20.0
LIAR: Final = Learner("mallory", 1.0, f"hands in the opposite, {FACTOR} times as long")
HONEST: Final = (
    Learner("kestrel", 1.0, ""),
    Learner("osprey", 1.0, ""),
    Learner("tern", 1.0, ""),
)
BUDGET_TOKENS: Final = 1_200_000
RATIO_MAX: Final = 1.02
"""Of the held-out loss with the liar to that without."""

ALIKE: Final[Mapping[str, Value]] = {"rounds.quorum": len(HONEST)}
"""So that runs can be compared: where the first push is enough, whoever starts first trains alone
for a while, and how long changed the loss of equal runs by a tenth."""

PLAIN: Final[Mapping[str, Value]] = {
    "outer.trust": "all",
    "outer.clip_to_median": 1e6,
    "guard.rule": "off",
    "model.merge.matrices": "mean",
    "model.merge.vectors": "mean",
    # What the liar hands in counts there, and ends the run as much sooner.
    "limits.tokens": BUDGET_TOKENS * 4 // 3,
}


@dataclass(frozen=True, slots=True)
class Act:
    """One of the three runs."""

    name: str
    words: str
    cast: Sequence[Learner]
    settings: Mapping[str, Value]


ACTS: Final = (
    Act("honest", "three honest learners", HONEST, {}),
    Act("liar", "the same three, and one that lies", (*HONEST, LIAR), {}),
    Act("plain", "the same four, merged by their plain mean", (*HONEST, LIAR), PLAIN),
)


class LiarReport(Struct, kw_only=True):
    """The three runs in numbers. The first five names are promised; others may come and go."""

    loss_without_liar: float
    loss_with_liar: float
    loss_plain_with_liar: float | None
    """None where the model was so far gone that no loss could be measured."""
    liar_named_after_pushes: int | None
    """Of its pushes that were in a merge, those until one counted less than half; None: never."""
    liar_share_max: float
    """Most that one push of it added to a merge."""
    loss_start: float
    liar_pushes: int
    honest_doubted: int
    """Pushes of the others that counted less than half."""
    honest_pushes: int
    said: str
    """How the syncer named it."""
    wall_s: float


@dataclass(frozen=True, slots=True)
class _Run:
    """What an act came to."""

    loss: float | None
    loss_start: float
    merges: Sequence[FragmentMerged]
    liar: bytes
    said: str


def run(*, report: Path | None, minutes: float | None, keep: bool = False) -> int:
    """Shows the three runs; DONE only if the liar was named and did no harm.

    report: a JSON file to write. minutes: give up after this long. keep: leave the directory.
    """
    check_folder(report)
    with ended_by_signals():
        folder = Path(tempfile.mkdtemp(prefix="shoal-liar-"))
        screen, deadline = Screen(), Deadline.after(60 * (minutes or MINUTES))
        try:
            with screen.showing():
                begin(screen, folder, keep=keep)
                runs = [_play(act, folder, deadline, screen) for act in ACTS]
        except KeyboardInterrupt:
            return failures.interrupted()
        finally:
            if not keep:
                shutil.rmtree(folder, ignore_errors=True)
    return _tell(make_report(runs, screen.elapsed_s), screen, report)


def _tell(made: LiarReport, screen: Screen, path: Path | None) -> int:
    screen.console.print()
    screen.console.print(results(rows(made), sample="", note=held_out_note()))
    if path is not None:
        write_json(path, made)
        screen.console.print(f"\nwrote {path}")
    wrong = shortfalls(made)
    for sentence in wrong:
        failures.complain(sentence)
    return ExitCode.FAILED if wrong else ExitCode.DONE


def _play(act: Act, folder: Path, deadline: Deadline, screen: Screen) -> _Run:
    """One run from the first command to the end of its last process."""
    screen.tell(f"{act.words}, {fmt.count(BUDGET_TOKENS)} honest tokens", style="bold")
    place = folder / act.name
    place.mkdir()
    swarm = _LiarSwarm(place, deadline, screen, act.cast, spawn=spawning(LIAR.name))
    try:
        settings = {**SETTINGS, **ALIKE, "limits.tokens": BUDGET_TOKENS, **act.settings}
        swarm.write_project(NAME, settings)
        swarm.sign()
        swarm.start_first("--exit-when-done")
        for learner in HONEST:
            swarm.join(learner)
        if LIAR in act.cast:
            swarm.watch(swarm.is_under_way)
            # It lies about what it learned only: who measures is drawn among the others.
            swarm.join(LIAR, "--no-evaluate")
        swarm.finish()
        return swarm.found()
    except SwarmFailed as error:
        screen.quote(error.lines)
        raise
    finally:
        swarm.close()


class _LiarSwarm(WatchedSwarm):
    """Remembers how the syncer named somebody."""

    said = ""

    def is_under_way(self) -> bool:
        """Whether something of each honest learner was merged: pushes are compared with others, and
        where nobody has handed in anything there is nothing to compare the first with."""
        merged = {one.name for one in self.host.peers if one.merges} if self.host else set()
        return merged >= {one.name for one in HONEST}

    def on_wait(self) -> None:
        super().on_wait()
        if self.host is not None and "Not counted" in self.host.sentence and not self.said:
            self.said = self.host.sentence.partition(".")[0] + "."
            self._screen.tell(self.said, style="bold red")

    def found(self) -> _Run:
        """What the log says, once all have ended."""
        host = self.host
        if host is None or not host.swarm.curve:
            raise SwarmFailed("No held-out loss was measured during the run.")
        step, _, loss = host.swarm.curve[-1]
        is_final = step == host.swarm.global_step
        liar = self.nodes.get(LIAR.name)
        return _Run(
            loss=loss if is_final else None,
            loss_start=host.swarm.curve[0][2],
            merges=self.merges(self.syncers[0]),
            liar=bytes.fromhex(liar.key) if liar is not None else b"",
            said=self.said,
        )


def make_report(runs: Sequence[_Run], wall_s: float) -> LiarReport:
    """The report of three acts, in their order. SwarmFailed if a loss is missing that must be."""
    honest, lied, plain = runs
    if honest.loss is None or lied.loss is None:
        raise SwarmFailed("The last held-out loss of a run was not measured.")
    parts = [part for merge in lied.merges for part in merge.contributions]
    theirs = [part for part in parts if part.learner == lied.liar]
    others = [part for part in parts if part.learner != lied.liar]
    doubts = [at for at, part in enumerate(theirs, 1) if part.trust < DOUBTED_BELOW]
    return LiarReport(
        loss_without_liar=honest.loss,
        loss_with_liar=lied.loss,
        loss_plain_with_liar=plain.loss,
        liar_named_after_pushes=doubts[0] if doubts else None,
        liar_share_max=max((part.share for part in theirs), default=0.0),
        loss_start=honest.loss_start,
        liar_pushes=len(theirs),
        honest_doubted=sum(part.trust < DOUBTED_BELOW for part in others),
        honest_pushes=len(others),
        said=lied.said,
        wall_s=round(wall_s, 1),
    )


def rows(made: LiarReport) -> list[tuple[str, str]]:
    """The table at the end: what was measured, and what the number is."""
    ratio = made.loss_with_liar / made.loss_without_liar
    named = "never"
    if made.liar_named_after_pushes is not None:
        named = f"after {fmt.plural(made.liar_named_after_pushes, 'push', 'pushes')} of it"
    return [
        ("held-out loss, start", fmt.loss(made.loss_start)),
        ("without a liar", fmt.loss(made.loss_without_liar)),
        ("one of four lies", f"{fmt.loss(made.loss_with_liar)}  {ratio:.3f} times that"),
        ("the same, plain mean", _plain(made.loss_plain_with_liar)),
        ("the liar was named", f"{named}; {made.liar_pushes:,} were handed in"),
        ("its largest share", f"{fmt.percent(made.liar_share_max)} of one merge"),
        ("honest pushes doubted", f"{made.honest_doubted:,} of {made.honest_pushes:,}"),
        ("the syncer said", made.said or "nothing"),
        ("wall clock", fmt.duration(made.wall_s)),
    ]


def _plain(loss: float | None) -> str:
    return fmt.loss(loss) if loss is not None else "none: the model is no model any more"


def shortfalls(made: LiarReport) -> list[str]:
    """One sentence for each thing that was to be shown and was not; empty is success."""
    said = []
    ratio = made.loss_with_liar / made.loss_without_liar
    # Written so that a loss which is no number fails too.
    if not ratio <= RATIO_MAX:
        said.append(
            f"With the liar the held-out loss is {ratio:.3f} times that without, "
            f"more than {RATIO_MAX}."
        )
    if made.liar_named_after_pushes is None or LIAR.name not in made.said:
        said.append("The liar was not named.")
    plain = made.loss_plain_with_liar
    if plain is not None and plain < made.loss_with_liar:
        said.append("The plain mean took no harm from the liar: nothing was shown.")
    return said
