"""An exported model on tasks of lm-eval that lie in a folder of this machine.

The tasks are their owner's: a task file may name functions in Python files beside it, and lm-eval
runs them. Nothing of this comes from a project.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import lm_eval
import numpy as np
import torch
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
from lm_eval.utils import make_table

from node.trainer.tools.talk import give_way, threads
from protocol.errors import UserError

SEED: Final = 1234
"""As lm-eval's own command has it, for examples that stand before a question."""

BOOTSTRAPS: Final = 1000


class Scores(NamedTuple):
    """What came out."""

    table: str
    """For people, in Markdown."""
    results: dict[str, Any]
    """For programs: lm-eval's own dictionary."""


def tasks_in(folder: Path, only: Sequence[str]) -> tuple[TaskManager, list[str]]:
    """The tasks in a folder, or those of them that are named. UserError if there are none."""
    if not folder.is_dir():
        raise UserError(f"There is no folder {folder} with task files of lm-eval (.yaml).")
    manager = TaskManager(include_path=str(folder), include_defaults=False)
    known: list[str] = manager.all_tasks
    if not known:
        raise UserError(
            f"{folder} has no task files of lm-eval. A task is a .yaml file with `task:` and what "
            "lm-eval's guide on new tasks lists."
        )
    unknown = sorted(set(only) - set(known))
    if unknown:
        raise UserError(
            f"There is no task {', '.join(unknown)} in {folder}. Choose of: {', '.join(known)}."
        )
    return manager, list(only) or sorted(manager.all_subtasks)


def run(
    model: Path,
    manager: TaskManager,
    names: Sequence[str],
    *,
    limit: int | None,
    batch: int,
    is_chat: bool,
) -> Scores:
    """Scores of the model in a folder on these tasks.

    limit: questions of each task at most. batch: sequences at once. is_chat: questions are written
    with the tokenizer's chat template. UserError if a task cannot be read or its data not loaded.
    """
    give_way()
    torch.set_num_threads(threads())
    random.seed(0)
    np.random.seed(SEED)
    torch.manual_seed(SEED)
    try:
        loaded = manager.load(list(names))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ImportError) as error:
        words = " ".join(str(error).split())[:300]
        raise UserError(
            f"The tasks {', '.join(names)} cannot be loaded ({words}). Check their files, and "
            "that their data is on this machine."
        ) from error
    for task in loaded["tasks"].values():
        if task.get_config("num_fewshot") is None:
            task.set_config(key="num_fewshot", value=0)
        task.set_fewshot_seed(seed=SEED)
    judged = HFLM(pretrained=str(model), device="cpu", batch_size=batch)
    if is_chat and not judged.tokenizer.chat_template:
        raise UserError(f"The tokenizer in {model} has no chat template. Leave out --chat.")
    results = lm_eval.evaluate(
        lm=judged,
        task_dict=loaded,
        limit=limit,
        bootstrap_iters=BOOTSTRAPS,
        log_samples=False,
        apply_chat_template=is_chat,
    )
    return Scores(make_table(results), results)
