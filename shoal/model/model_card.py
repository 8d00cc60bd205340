"""The card of an exported model: what it was made of, by whom, how well, and how to make it again.

Names come from strangers: whatever could be more than a name is written as a character reference.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from host.files.signed_project import OpenedProject
from host.runtime import software
from protocol.ids import short
from protocol.limits import WIRE_VERSION
from protocol.log.accounts import Account
from protocol.project import Charter, DataSpec, Genesis, MixedSource, hub_data, hub_source, on_hub
from shoal.common import versions
from tui.text import fmt

if TYPE_CHECKING:
    from shoal.model.export_choice import Choice

CARD_FILE: Final = "README.md"
PICTURE_FILE: Final = "run.png"
ROWS_MAX: Final = 64
"""Contributors in the table; the others are one row."""

_ACTIVE: Final = re.compile(r"(?!(?<=\d)\.(?=\d)|: )[^\w \-,;()']|_")
"""Whatever might be Markdown, HTML or an address, but for the point in a number and a colon."""

Row = tuple[str, str]


def card(
    project: OpenedProject,
    charter: Charter,
    chosen: Choice,
    stored: str,
    *,
    has_picture: bool,
    is_adapter: bool = False,
) -> str:
    """The text of `README.md`, with the metadata that hubs read at its beginning.

    charter: the newest. stored: the number format in words. has_picture: of the run, beside it.
    is_adapter: an adapter is described, and not the model with it.
    """
    genesis = project.genesis
    facts = _table(("", ""), _facts(project, chosen, stored))
    accounts = chosen.summary.accounts if chosen.summary is not None else {}
    parts = [
        _metadata(genesis, "peft" if is_adapter else "transformers"),
        f"# {plain(genesis.name)}",
        _opening(genesis, accounts),
        facts,
        *([_curve(chosen)] if has_picture else []),
        "## Load it",
        loading(genesis, is_adapter=is_adapter),
        "## Who trained it",
        *_contributors(accounts, genesis.fragments),
        "## Make it again",
        _again(project, chosen, " --adapter" if is_adapter else ""),
        _table(("setting", ""), _settings(charter)),
    ]
    return "\n\n".join(parts) + "\n"


CLASSES_SHOWN: Final = 20
"""In the card; `config.json` has all of them."""

_LOAD: Final = """\
```python
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained(".")  # this folder, or its name on the hub
tokenizer = AutoTokenizer.from_pretrained(".")
```"""

_LOAD_MASKED: Final = """\
```python
from transformers import pipeline

fill = pipeline("fill-mask", model=".")  # this folder, or its name on the hub
fill(f"a text with a {fill.tokenizer.mask_token} in it")
```"""

_LOAD_IMAGES: Final = """\
```python
from PIL import Image
from transformers import AutoImageProcessor, AutoModelForImageClassification

model = AutoModelForImageClassification.from_pretrained(".")  # this folder, or its name on the hub
processor = AutoImageProcessor.from_pretrained(".")
shown = processor(Image.open("picture.png").convert("MODE"), return_tensors="pt")
print(model.config.id2label[int(model(**shown).logits.argmax())])
```"""

_LOAD_TENSORS: Final = """\
```python
from safetensors.torch import load_file

tensors = load_file("model.safetensors")  # by name; the training code has the model
```"""


_LOAD_ADAPTER: Final = """\
```python
from peft import AutoPeftModelForCausalLM

model = AutoPeftModelForCausalLM.from_pretrained(".")  # this folder, or its name on the hub
```

It loads the model that `adapter_config.json` names as `base_model_name_or_path`, from the hub."""

_LOAD_BESIDE_A_FOLDER: Final = """\
```python
from peft import PeftModel
from transformers import AutoModelForCausalLM

base = AutoModelForCausalLM.from_pretrained("FOLDER")  # the published model, wherever it lies
model = PeftModel.from_pretrained(base, ".")  # this folder, or its name on the hub
```"""


def loading(genesis: Genesis, *, is_adapter: bool) -> str:
    """The lines of Python that load what was exported, in Markdown."""
    if genesis.trainer is not None:
        return _LOAD_TENSORS
    if genesis.images is not None:
        return _LOAD_IMAGES.replace("MODE", "L" if genesis.images.channels == 1 else "RGB")
    if genesis.masked is not None:
        return _LOAD_MASKED
    if not is_adapter:
        return _LOAD
    base = genesis.base
    is_folder = base is not None and hub_source(base.source) is None
    return _LOAD_BESIDE_A_FOLDER if is_folder else _LOAD_ADAPTER


def plain(text: str) -> str:
    """The text as Markdown that shows it and does nothing else."""
    cleaned = fmt.clean(text, 256)
    return _ACTIVE.sub(lambda found: f"&#{ord(found[0])};", cleaned)


def _metadata(genesis: Genesis, library: str) -> str:
    """What a hub reads: the base model, the data set, the task."""
    from huggingface_hub import ModelCardData

    base = hub_source(genesis.base.source) if genesis.base is not None else None
    sources = genesis.mixture or (genesis.data,)
    named = [hub_data(on_hub(one.source, one.location) or "") for one in sources]
    found = ModelCardData(
        base_model=base[0] if base is not None else None,
        datasets=sorted({one.name for one in named if one is not None}) or None,
        library_name=library if genesis.trainer is None else None,
        pipeline_tag=_task(genesis),
        tags=["shoal", "decoupled-diloco"],
    )
    return f"---\n{found.to_yaml()}\n---"


def _task(genesis: Genesis) -> str | None:
    """As a hub calls it."""
    if genesis.trainer is not None:
        return None
    if genesis.images is not None:
        return "image-classification"
    return "text-generation" if genesis.masked is None else "fill-mask"


def _opening(genesis: Genesis, accounts: Mapping[bytes, Account]) -> str:
    given = sum(1 for one in accounts.values() if one.merges)
    if not given:
        return "These are first weights: nobody has trained them yet."
    who = fmt.plural(given, "contributor")
    where = "on a machine of their own" if given == 1 else "each on a machine of their own"
    what = "further trained" if genesis.base is not None else "trained"
    return (
        f"This model was {what} by {who}, {where}, with Shoal: learners train apart, and what they"
        " learned is merged fragment by fragment (Decoupled DiLoCo)."
    )


def _facts(project: OpenedProject, chosen: Choice, stored: str) -> Iterator[Row]:
    genesis = project.genesis
    yield "Started from", _origin(genesis)
    parameters = sum(one.numel for one in genesis.model.tensors)
    adapter = genesis.adapter
    if adapter is None:
        yield "Model", f"{_model(genesis)}, {parameters:,} parameters"
    else:
        frozen = sum(one.numel for one in adapter.frozen)
        yield "Model", f"{_model(genesis)}, {frozen:,} parameters, frozen"
        yield (
            "Adapter",
            f"LoRA, rank {adapter.rank}, alpha {adapter.alpha:g}, {parameters:,} trained"
            f" parameters, on {plain(', '.join(adapter.targets))}",
        )
    what = "the moving average of the versions until then, " if chosen.is_average else ""
    yield "Weights", f"{what}stored as {stored}, trained in f32"
    yield ("Images" if genesis.images is not None else "Text"), _text(genesis)
    if genesis.images is not None:
        names = ", ".join(genesis.images.classes[:CLASSES_SHOWN])
        rest = len(genesis.images.classes) - CLASSES_SHOWN
        yield "Classes", plain(names) + (f" and {rest:,} others" if rest > 0 else "")
    if genesis.masked is not None:
        yield "Hidden tokens", f"{genesis.masked.frac:.0%} of each sequence"
    yield "Trained on", f"{chosen.tokens:,} tokens of it"
    yield "Held-out loss", plain("; ".join(chosen.loss).removeprefix("held-out loss "))
    yield "Checkpoint", f"global step {chosen.step:,}, record {int(chosen.place.name):,} of the log"


def _model(genesis: Genesis) -> str:
    """Its architecture, or whose code makes it."""
    code = genesis.trainer
    if code is None:
        return plain(genesis.model.architecture)
    return f"of the training code {plain(f'{code.name}, package {code.package} {code.version}')}"


def _origin(genesis: Genesis) -> str:
    base = genesis.base
    if base is None:
        return f"random weights, seed {genesis.seed}"
    named = hub_source(base.source)
    if named is None:
        return f"a published model in the folder {plain(base.source.removeprefix('folder:'))}"
    return f"`{named[0]}`, revision `{named[1]}`"


def _text(genesis: Genesis) -> str:
    """Where the text is from; of a mixture every source, with its share."""
    digest = f"digest of the training part `{genesis.data.digest.hex()[:16]}`"
    if genesis.mixture is None:
        return f"{_source(genesis.data)}; {digest}"
    whole = sum(one.weight for one in genesis.mixture)
    parts = [f"{one.weight / whole:.1%} {_source(one)}" for one in genesis.mixture]
    return f"{'; '.join(parts)}; {digest}"


def _source(data: DataSpec | MixedSource) -> str:
    """Of a path its last part only, for the rest is private."""
    named = hub_data(on_hub(data.source, data.location) or "")
    if named is not None:
        words = f"`{named.name}`"
        words += f", {plain(named.configuration)}" if named.configuration else ""
        words += f", revision `{named.revision}`" if named.revision else ""
    elif data.source == "own":
        words = "data that the training code brings"
    elif data.source == "chats":
        words = f"{plain(Path(data.location).name)}, chats of its owner's, of which answers count"
    elif data.source == "python-stdlib":
        words = "the source code of Python's standard library"
    else:
        kind = "folder" if data.source == "images" else data.source
        words = f"{plain(Path(data.location).name)}, a {kind} of its owner's"
    return words


def _curve(chosen: Choice) -> str:
    return (
        f"![Held-out loss over tokens, and how the run went]({PICTURE_FILE})\n\n"
        f"The whole run; the weights here are those of global step {chosen.step:,}."
    )


def _contributors(accounts: Mapping[bytes, Account], fragments: int) -> Iterator[str]:
    """Those whose pushes are in these weights, as the log counts them."""
    given = {key: one for key, one in accounts.items() if one.merges}
    if not given:
        yield "Nobody has yet."
        return
    ordered = sorted(given.items(), key=lambda item: (-item[1].tokens, item[0]))
    rows = [
        (
            plain(one.name or short(key)),
            f"`{short(key)}`",
            f"{one.tokens // max(1, fragments):,}",
            f"{one.merges:,}",
        )
        for key, one in ordered[:ROWS_MAX]
    ]
    rest = [one for _, one in ordered[ROWS_MAX:]]
    if rest:
        tokens = sum(one.tokens for one in rest) // max(1, fragments)
        merges = sum(one.merges for one in rest)
        rows.append((f"{len(rest):,} others", "", f"{tokens:,}", f"{merges:,}"))
    yield _table(("name", "key", "tokens", "merges"), rows)
    yield (
        "Tokens and merges are what the signed log counts for each key; a name is what its owner"
        " chose."
    )


def _again(project: OpenedProject, chosen: Choice, flag: str) -> str:
    summary = chosen.summary
    head = f", whose hash is `{summary.head.hex()[:16]}`" if summary is not None else ""
    here = ", ".join(f"{name} {number}" for name, number in versions.training())
    return (
        f"Project `{project.id.hex()}`, Shoal {software.version() or 'from source'}, wire version"
        f" {WIRE_VERSION}; {here}. {_same(chosen, flag)} They are what the log says up to record"
        f" {int(chosen.place.name):,}{head}.\n\n"
        f"To train such a model again, `shoal project create{_create_options(project.genesis)}`,"
        " and give the project file the text above and these values. Which machines take part"
        " differs from run to run, so the result will be alike and not the same."
    )


def _same(chosen: Choice, flag: str) -> str:
    if chosen.is_average:
        # It begins anew where a syncer had to fetch a fragment.
        return (
            "A syncer of the project that averaged all versions up to this checkpoint writes the"
            f" same weights: `shoal export --ema --step {chosen.step}{flag} --to DIR`."
        )
    return (
        "Any syncer of the project that holds this checkpoint writes the same weights, bit for bit:"
        f" `shoal export --step {chosen.step}{flag} --to DIR`."
    )


def _create_options(genesis: Genesis) -> str:
    if genesis.base is None:
        return ""
    named = hub_source(genesis.base.source)
    where = "FOLDER" if named is None else f"hub:{named[0]}@{named[1]}"
    return f" --from {where}" + (" --adapter" if genesis.adapter is not None else "")


def _settings(charter: Charter) -> Iterator[Row]:
    inner, outer, rounds = charter.inner, charter.outer, charter.rounds
    yield "training.optimizer", f"{inner.optimizer}"
    yield "training.learning_rate", f"{inner.learning_rate:g}"
    yield "training.batch_sequences", f"{inner.batch_sequences}"
    yield "outer.learning_rate", f"{outer.learning_rate:g}"
    yield "outer.momentum", f"{outer.momentum:g}"
    yield "outer.ema", f"{outer.ema:g}"
    yield "rounds.local_steps", f"{rounds.local_steps}"
    yield "rounds.quorum", f"{rounds.quorum}"
    yield "rounds.up_codec, rounds.down_codec", f"{rounds.up_codec}, {rounds.down_codec}"
    yield "limits.tokens", f"{charter.limits.tokens:,}"


def _table(titles: Sequence[str], rows: Iterator[Row] | Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(titles)} |", f"|{'---|' * len(titles)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])
