"""The `demo` verb: a whole project on this machine, by the commands that anybody would type.

It only starts processes and reads what they say. Everything lies in a temporary directory, which is
removed at the end unless `--keep` was given, and no process is left, however it ends.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Final, TypeVar

import msgspec

from host.files.home import TAPES, Home
from host.files.signed_project import read_signed
from host.runtime import software
from protocol import decoders
from protocol.numerics.warm_up import warm_up
from protocol.project import encode
from shoal.common import failures
from shoal.common.exit_codes import ExitCode
from shoal.common.writing import check_folder, write_json
from shoal.demo import report as reports
from shoal.demo.project import CAST, HELDOUT_SEQUENCES, NAME, SETTINGS, VOTERS
from shoal.demo.screen import Screen
from shoal.demo.swarm import DemoSwarm
from shoal.local_swarm.processes import Deadline, SwarmFailed, shown
from shoal.local_swarm.swarm import LocalSwarm
from tui.views.demo import results

MINUTES: Final = 20.0
PROMPT: Final = "def "
SAMPLE_TOKENS: Final = 200
ALONE_THREADS: Final = 2
ENDING_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

S = TypeVar("S", reports.Scored, reports.Alone)


def run(*, report: Path | None, minutes: float | None, keep: bool = False) -> int:
    """Shows the demo; DONE only if it showed all that it set out to show.

    report: a JSON file to write. minutes: give up after this long. keep: leave the directory.
    """
    check_folder(report)
    with ended_by_signals():
        folder = Path(tempfile.mkdtemp(prefix="shoal-demo-"))
        screen = Screen()
        swarm = DemoSwarm(folder, Deadline.after(60 * (minutes or MINUTES)), screen)
        try:
            return _show(swarm, screen, report, keep=keep)
        except KeyboardInterrupt:
            return failures.interrupted()
        finally:
            tidy_up(swarm, keep=keep)


def _show(swarm: DemoSwarm, screen: Screen, path: Path | None, *, keep: bool) -> int:
    with screen.showing():
        begin(screen, swarm.folder, keep=keep)
        try:
            made = Demo(swarm, screen).play()
        except SwarmFailed as error:
            screen.quote(error.lines)
            raise
    note = reports.held_out_note()
    screen.console.print()
    screen.console.print(results(reports.rows(made), sample=made.sample, note=note))
    if path is not None:
        write_json(path, made)
        screen.console.print(f"\nwrote {path}")
    _offer_replay(screen, swarm.folder)
    screen.console.print("\nTo go on:\n")
    for typed, does in reports.NEXT_STEPS:
        screen.console.print(f"    {typed:<32}{does}", soft_wrap=True)
    wrong = reports.failures(made)
    for sentence in wrong:
        failures.complain(sentence)
    return ExitCode.FAILED if wrong else ExitCode.DONE


def _offer_replay(screen: Screen, folder: Path) -> None:
    """Keeps the tapes in place of those of the last demo, and says how to replay them."""
    kept = Home().demo_tape()
    shutil.rmtree(kept, ignore_errors=True)
    try:
        shutil.copytree(folder / "home" / TAPES, kept)
    except OSError as error:
        failures.complain(f"The tapes of this demo were not kept: {error}.")
        return
    screen.console.print(
        "\nAll of it is on tape, until the next demo. To merge and train it again, bit for bit:"
        f"\n\n    {shown('shoal', 'replay', os.fspath(kept))}",
        soft_wrap=True,
    )


@dataclass(frozen=True, slots=True)
class Demo:
    """One demo from the first command to the last."""

    _swarm: DemoSwarm
    _screen: Screen

    def play(self) -> reports.Report:
        """Everything, in order. SwarmFailed if something fails on the way."""
        self._prepare()
        self._swarm.open()
        self._swarm.train()
        scored = self._export_and_score()
        alone = self._train_alone()
        leaders = list(self._swarm.leaders.values())
        if not leaders or not leaders[-1].swarm.curve:
            raise SwarmFailed("No held-out loss was measured during the run.")
        return reports.make_report(
            reports.Evidence(
                leaders=leaders,
                learners={one.name: self._swarm.nodes[one.name] for one in CAST},
                comeback=self._swarm.comeback,
                succession=self._swarm.succession,
                scored=scored,
                alone=alone,
                wall_s=self._screen.elapsed_s,
                memory_bytes=self._swarm.processes.memory_peak_bytes,
                version=software.version(),
                left_behind=self._swarm.left_behind,
            )
        )

    def _prepare(self) -> None:
        name = f"{NAME}.toml"
        self._shoal("project create", "project", "create", name, "--name", NAME)
        self._swarm.write_project(NAME, SETTINGS, VOTERS)
        changed = ", ".join(f"{key} = {value}" for key, value in SETTINGS.items())
        voters = ", ".join(f"{name} ({role})" for name, role in VOTERS.items())
        self._screen.tell(f"edited {name}: {changed}; voters: {voters}")
        self._shoal("project sign", "project", "sign", name)
        signed = read_signed(self._swarm.signed)
        (self._swarm.folder / "genesis").write_bytes(signed.genesis_bytes)
        (self._swarm.folder / "charter").write_bytes(encode(signed.charter))

    def _export_and_score(self) -> reports.Scored:
        """The held-out loss of the model as others get it."""
        last = list(self._swarm.leaders)[-1]
        self._shoal("export", "export", "--to", "model", "--instance", last)
        arguments = ["--genesis", "genesis", "--model", "model", "--json", "score.json"]
        arguments += ["--data-cache", str(self._swarm.home.data_cache())]
        arguments += ["--sequences", str(HELDOUT_SEQUENCES), "--threads", str(ALONE_THREADS)]
        arguments += ["--prompt", PROMPT, "--tokens", str(SAMPLE_TOKENS)]
        self._screen.tell("loading the exported model with transformers and evaluating it")
        self._finish(
            *("score", "node.trainer.tools.score", arguments, "Evaluating the exported model."),
            why="It is a model as transformers loads it, measured on text that nobody trained on.",
        )
        return self._result("score.json", reports.Scored)

    def _train_alone(self) -> reports.Alone:
        """The baseline: the same project without a swarm."""
        name, steps = reports.busiest(reports.local_steps(self._swarm.nodes, self._swarm.comeback))
        self._screen.tell(f"training alone, {steps:,} local steps: as many as {name} did")
        arguments = ["--genesis", "genesis", "--charter", "charter", "--json", "alone.json"]
        arguments += ["--steps", str(steps), "--threads", str(ALONE_THREADS), "--device", "cpu"]
        arguments += ["--data-cache", str(self._swarm.home.data_cache())]
        self._finish(
            *("alone", "node.trainer.tools.alone", arguments, "One learner trains alone."),
            why=f"As many local steps as {name} took, without a swarm: what the swarm has to beat.",
        )
        return self._result("alone.json", reports.Alone)

    def _shoal(self, name: str, *arguments: str) -> None:
        self._screen.tell(f"$ {shown('shoal', *arguments)}")
        self._finish(name, "shoal", list(arguments), f"Waiting for shoal {name}.")

    def _finish(
        self, name: str, module: str, arguments: list[str], sentence: str, why: str = ""
    ) -> None:
        self._swarm.processes.finish(
            name,
            module,
            *arguments,
            tick=lambda said: self._screen.show(self._swarm.now(f"{sentence} {said}".strip(), why)),
        )

    def _result(self, name: str, kind: type[S]) -> S:
        try:
            return decoders.json_decoder(kind).decode((self._swarm.folder / name).read_bytes())
        except (OSError, msgspec.MsgspecError) as error:
            raise SwarmFailed(f"The result {name} cannot be read ({error}).") from error


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """Inside, the first signal that ends a program is told as KeyboardInterrupt, so that it tidies
    up; later ones are ignored, so that they do not stop the tidying.

    SIGINT too: a shell starts what it puts into the background with Ctrl-C ignored.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        _ignore_signals()
        raise KeyboardInterrupt

    former = {number: signal.signal(number, interrupt) for number in ENDING_SIGNALS}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def _ignore_signals() -> None:
    for number in ENDING_SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def begin(screen: Screen, folder: Path, *, keep: bool) -> None:
    """Tells where to look, and compiles what merges need, which each of the first processes on this
    machine would do for itself, and learners would train on for half a minute before they merge."""
    screen.tell(f"all files are in {folder} and are {'kept' if keep else 'removed at the end'}")
    screen.tell("compiling the loops of merging; the first time on a machine that takes a while")
    warm_up()


def tidy_up(swarm: LocalSwarm, *, keep: bool) -> None:
    """Ends every process and removes the directory, in bounded time; Ctrl-C does not stop that."""
    _ignore_signals()
    swarm.close()
    if keep:
        print(f"everything is kept in {swarm.folder}; use it with --home {swarm.home.root}")
    else:
        shutil.rmtree(swarm.folder, ignore_errors=True)
