"""Optional parts of the installation: which verb needs which, and how to install a missing one.

A machine that only watches or witnesses does without them.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import util
from typing import Final, Literal

from host.runtime.software import DISTRIBUTION
from protocol.errors import UserError

Extra = Literal["train", "plots", "browser", "eval", "4bit"]

PACKAGES: Final[dict[Extra, tuple[str, ...]]] = {
    "train": ("accelerate", "aiohttp", "datasets", "jinja2", "tokenizers", "transformers"),
    "plots": ("matplotlib",),
    "browser": ("textual_serve",),
    "eval": ("lm_eval",),
    "4bit": ("bitsandbytes",),
}


NEEDS_TRAIN: Final = {
    ("join",), ("run",), ("demo",), ("export",), ("eval",), ("try",), ("syncer", "run"),
    ("host",), ("project", "sign"), ("sim", "compare"),
}  # fmt: skip
"""Verbs that build or load a model, here or in a child process."""


def require_for(tokens: Sequence[str]) -> None:
    """Raises UserError if the verb that these arguments begin with needs what is not installed."""
    verb = next((one for one in (tuple(tokens[:1]), tuple(tokens[:2])) if one in NEEDS_TRAIN), None)
    if verb is None or "--help" in tokens:
        return
    missing = [name for name in PACKAGES["train"] if util.find_spec(name) is None]
    if missing:
        raise UserError(f"`shoal {' '.join(verb)}` needs {_named(missing)}. {remedy('train')}")


def explain(module: str) -> str | None:
    """What to say where this module could not be imported; None if no extra has it."""
    root = module.partition(".")[0]
    for extra, names in PACKAGES.items():
        if root in names:
            return f"{root} is not installed. {remedy(extra)}"
    return None


def remedy(extra: Extra) -> str:
    """The command that installs the extra."""
    return f"Install with: pip install '{DISTRIBUTION}[{extra}]'"


def _named(names: list[str]) -> str:
    if len(names) == 1:
        return f"{names[0]}, which is not installed"
    return f"{', '.join(names[:-1])} and {names[-1]}, which are not installed"
