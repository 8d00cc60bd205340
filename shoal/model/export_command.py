"""The `export` verb: a checkpoint of the syncer as a model folder that the usual tools load."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from host.files.home import DEFAULT_INSTANCE, Home
from host.files.signed_project import OpenedProject, newest_of
from node.trainer.tools.dtypes import Dtype, dtypes_of, in_words
from protocol.errors import RemoteError, ShoalError, UserError
from protocol.project import Genesis, hub_source
from shoal.common import extras
from shoal.common.choices import HomeHere, Instance, NotNegative, option, switch
from shoal.common.writing import writing
from shoal.model import hub_push
from shoal.project import file_commands

if TYPE_CHECKING:
    from protocol.numerics.buffers import F32
    from protocol.project import Genesis
    from shoal.model.export_choice import Choice

WHICH = ("best", "latest")

ROUNDED_MAX = 0.05
"""Less than that nobody needs to hear of."""


def export(
    project: Annotated[
        Path | None, option("A signed project; not needed where the syncer has served only one.")
    ] = None,
    *,
    to: Annotated[Path, option("Directory for the model; must not hold one yet.")],
    checkpoint: Annotated[str, option("best, latest, or the log index of a checkpoint.")] = "best",
    step: Annotated[
        int | None, option("A checkpoint by its global step instead.", NotNegative)
    ] = None,
    ema: Annotated[
        bool, switch("The moving average of the versions until then; needs outer.ema.")
    ] = False,
    dtype: Annotated[
        Dtype | None, option("Number format; that of the base model's files, f32 without one.")
    ] = None,
    push: Annotated[
        str | None, option("Also publish it on the Hugging Face hub, as OWNER/NAME.")
    ] = None,
    private: Annotated[
        bool, switch("With --push: a new repository is for its owner only.")
    ] = False,
    adapter: Annotated[
        bool, switch("Only the adapter that the project trains, as a folder that peft loads.")
    ] = False,
    merged: Annotated[
        bool, switch("An adapter merged into its model, as without any of the two.")
    ] = False,
    untrained: Annotated[bool, switch("Also if nothing was merged into it yet.")] = False,
    instance: Instance = DEFAULT_INSTANCE,
    home: HomeHere,
) -> list[str]:
    """Writes the model to the directory `to` and returns what to say.

    UserError if the directory is in use, the project or its checkpoint cannot be found, nobody has
    trained what is in it, or it cannot be published.
    """
    _check(to, checkpoint, step)
    if push is not None:
        hub_push.check(push)
    opened = file_commands.to_export(project, home, instance=instance)
    _check_dtype(opened.genesis, dtype, is_adapter=adapter, is_merged=merged)

    from shoal.model.export_choice import choose

    store = home.syncer_store(opened.id, instance)
    chosen = choose(
        store, checkpoint, opened, step=step, is_average=ema, is_untrained_wanted=untrained
    )
    genesis, weights = opened.genesis, chosen.weights()
    what, stored, loader, notes = _write(genesis, weights, to, home, dtype, is_adapter=adapter)
    lines = [f"wrote the {what} of {opened.genesis.name} to {to}, weights as {stored}", *notes]
    if not chosen.is_trained:
        lines.append("these are the first weights: nobody has trained them")
    card = _describe(opened, chosen, store, to, stored, home, adapter)
    lines += [*chosen.lines, *card, f"load it with {loader}"]
    if push is not None:
        summary = f"{opened.genesis.name}, global step {chosen.step:,}"
        lines += hub_push.push(to, push, is_private=private, summary=summary)
    return lines


def _write(
    genesis: Genesis,
    fragments: list[F32],
    to: Path,
    home: Home,
    dtype: Dtype | None,
    *,
    is_adapter: bool,
) -> tuple[str, str, str, list[str]]:
    """Writes the weights: what they are, how they are stored, and what loads them, in words; and
    what else there is to say."""
    if is_adapter:
        from node.trainer.tools.export_adapter import write_adapter

        write_adapter(genesis, fragments, to)
        return "adapter", "f32", adapter_loader(genesis, to), []
    from node.trainer.tools.export import export_model

    rounded = export_model(genesis, fragments, to, home.data_cache(), dtype)
    stored = in_words(dtypes_of(genesis, dtype))
    if genesis.trainer is not None:
        loader = f"safetensors.torch.load_file({str(to / 'model.safetensors')!r})"
    else:
        loader = f"transformers.{_loader(genesis)}.from_pretrained({str(to)!r})"
    if rounded <= ROUNDED_MAX:
        return "model", stored, loader, []
    note = (
        f"note: rounding to {stored} moved the weights {100 * rounded:.0f} % as far as the adapter "
        "did; with --dtype f32 nothing is lost"
    )
    return "model", stored, loader, [note]


def adapter_loader(genesis: Genesis, to: Path) -> str:
    """What loads an adapter: with the published model where `peft` finds it by itself, on the hub;
    else beside the model, wherever its folder is."""
    base = genesis.base
    if base is None or hub_source(base.source) is not None:
        return f"peft.AutoPeftModelForCausalLM.from_pretrained({str(to)!r})"
    folder = base.source.partition(":")[2]
    return (
        f"peft.PeftModel.from_pretrained(base, {str(to)!r}), where base is what"
        f" transformers.AutoModelForCausalLM.from_pretrained loads from the folder {folder}"
    )


def _loader(genesis: Genesis) -> str:
    """The class of transformers that knows what the model says."""
    if genesis.images is not None:
        return "AutoModelForImageClassification"
    return "AutoModelForCausalLM" if genesis.masked is None else "AutoModelForMaskedLM"


def _check(to: Path, checkpoint: str, step: int | None) -> None:
    """UserError if what is asked for contradicts itself, or the directory is in use."""
    if checkpoint not in WHICH and not checkpoint.isdecimal():
        raise UserError(f"--checkpoint is best, latest or a log index, not {checkpoint!r}.")
    if step is not None and checkpoint != "best":
        raise UserError("--step and --checkpoint both say which weights to write. Use one of them.")
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise UserError(f"{to} is in use. Name a new or an empty directory with --to.")


def _check_dtype(
    genesis: Genesis, dtype: Dtype | None, *, is_adapter: bool, is_merged: bool
) -> None:
    """UserError if the weights that are asked for are written as f32 only."""
    if is_adapter and (is_merged or dtype is not None):
        raise UserError("--adapter writes the adapter alone, in f32: no --merged, no --dtype.")
    if genesis.trainer is not None and dtype not in (None, "f32"):
        raise UserError("Weights of somebody's own training code are written as f32 only.")


def _describe(
    opened: OpenedProject,
    chosen: Choice,
    store: Path,
    to: Path,
    stored: str,
    home: Home,
    is_adapter: bool,
) -> list[str]:
    """Writes the card and the picture of the run; a line on why there is no picture."""
    from shoal.model import model_card
    from shoal.project.charter_delivery import kept_charters

    charter = newest_of(opened, *kept_charters(home, opened)).charter
    reason = _draw(opened, store, to / model_card.PICTURE_FILE)
    text = model_card.card(
        opened, charter, chosen, stored, has_picture=reason is None, is_adapter=is_adapter
    )
    path = to / model_card.CARD_FILE
    with writing(path):
        path.write_text(text, encoding="utf-8")
    return [] if reason is None else [f"no picture of the run: {reason}"]


def _draw(opened: OpenedProject, store: Path, path: Path) -> str | None:
    """The run as a picture; or why there is none, which is no reason to have no model."""
    from shoal.machine import run_plot
    from syncer_node.storage.history import read_history

    if find_spec("matplotlib") is None:
        return f"matplotlib is not installed. {extras.remedy('plots')}"
    try:
        history = read_history(store, opened)
    except (OSError, RemoteError, ShoalError) as error:
        return f"the log cannot be read ({error})"
    if not history.samples and not history.measured:
        return "nothing is merged or measured yet"
    with writing(path):
        run_plot.draw(history, path)
    return None
