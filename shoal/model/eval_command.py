"""The `eval` verb: a checkpoint, or a model that was exported, on tasks of lm-eval."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import msgspec
from cyclopts import validators

from host.files.home import DEFAULT_INSTANCE, Home
from protocol.errors import UserError
from shoal.common import extras, writing
from shoal.common.choices import HomeHere, Instance, NotNegative, option, several, switch
from shoal.common.exit_codes import ExitCode
from shoal.project import file_commands


def evaluate(
    project: Annotated[
        Path | None, option("A signed project; not needed where the syncer has served only one.")
    ] = None,
    *,
    tasks: Annotated[Path, option("Folder with task files of lm-eval (.yaml).")],
    only: Annotated[list[str] | None, several("Names of tasks; all in the folder.")] = None,
    model: Annotated[
        Path | None, option("A folder that `shoal export` wrote, instead of a checkpoint.")
    ] = None,
    checkpoint: Annotated[str, option("best, latest, or the log index of a checkpoint.")] = "best",
    step: Annotated[
        int | None, option("A checkpoint by its global step instead.", NotNegative)
    ] = None,
    ema: Annotated[
        bool, switch("The moving average of the versions until then; needs outer.ema.")
    ] = False,
    limit: Annotated[
        int | None, option("Questions of each task at most.", validators.Number(gte=1))
    ] = None,
    batch: Annotated[int, option("Sequences at once.", validators.Number(gte=1, lte=4096))] = 8,
    chat: Annotated[bool, switch("Write questions with the tokenizer's chat template.")] = False,
    json: Annotated[Path | None, option("Also write everything that lm-eval says as JSON.")] = None,
    instance: Instance = DEFAULT_INSTANCE,
    home: HomeHere,
) -> int:
    """Prints the scores. UserError if model or tasks cannot be found, or lm-eval is missing."""
    if find_spec("lm_eval") is None:
        raise UserError(f"lm-eval is not installed. {extras.remedy('eval')}")
    writing.check_folder(json)
    if model is not None and (project or ema or step is not None or checkpoint != "best"):
        raise UserError("--model names the weights already. Leave out project and checkpoint.")
    from node.trainer.tools import benchmark
    from node.trainer.tools.export import export_model, require_writing
    from shoal.model.export_choice import choose

    manager, names = benchmark.tasks_in(tasks, only or [])
    with ExitStack() as stack:
        if model is None:
            folder = stack.enter_context(_room(home))
            model = Path(folder)
            opened = file_commands.to_export(project, home, instance=instance)
            require_writing(opened.genesis)
            store = home.syncer_store(opened.id, instance)
            chosen = choose(
                store, checkpoint, opened, step=step, is_average=ema, is_untrained_wanted=True
            )
            export_model(opened.genesis, chosen.weights(), model, home.data_cache())
            lines = [f"the model of {opened.genesis.name}", *chosen.lines]
            print("\n".join(lines), flush=True)
        elif not (model / "config.json").is_file():
            raise UserError(f"{model} holds no model. Write one with: shoal export --to DIR")
        scores = benchmark.run(model, manager, names, limit=limit, batch=batch, is_chat=chat)
    print(scores.table)
    if json is not None:
        writing.write_json(json, _plain(scores.results))
    return ExitCode.DONE


def _room(home: Home) -> tempfile.TemporaryDirectory[str]:
    """In the home, which has room for models; /tmp may be memory."""
    return tempfile.TemporaryDirectory(prefix="eval-", dir=home.data_cache())


def _plain(results: dict[str, Any]) -> Any:
    """Without what JSON cannot say: functions and types that are part of a task's description."""
    return msgspec.to_builtins(results, str_keys=True, enc_hook=str)
