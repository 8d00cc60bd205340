"""The base model that a project file names: where it lies here, and what the genesis says of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from protocol import project as specs
from protocol.errors import UserError
from protocol.fragments import Layout, build_layout
from protocol.numerics.payload_sizes import payload_bytes
from shoal.project.template import Value

if TYPE_CHECKING:
    from node.trainer.architectures import Task

FRAGMENT_PARAMETERS: Final = 8_000_000
"""Of a fragment in a suggested project: 4 MB a push, and tables are larger anyway."""

FRAGMENTS_MIN, FRAGMENTS_MAX = 4, 64
SEQUENCE_TOKENS_MAX: Final = 1024
SEQUENCE_TOKENS_MIN: Final = 8
ADAPTER_RANK: Final = 8
ADAPTER_FRAGMENTS_MIN: Final = 2
"""An adapter is small: more fragments than rounds in flight would only mean more messages."""

SLOW_UPLINK_BYTES_PER_S: Final = 1_250_000
"""10 Mbit/s: what a volunteer at home may have."""

PULL_TIMEOUT_S_MIN: Final = 20

TRAINER_BYTES: Final = 16
DAEMON_BYTES: Final = 12
STATE_BYTES: Final = 8
"""Of a parameter: in the trainer at least, in the daemon, and of what a newcomer downloads."""


class StartingPoint(NamedTuple):
    """A base model on this machine."""

    folder: Path
    source: str
    """As the genesis names it: a revision of the hub by its commit, a folder by its last part."""
    architecture: str
    config: dict[str, specs.ConfigValue]
    dropped: tuple[str, ...]
    """Keys of its configuration that nothing in the model reads."""

    @property
    def task(self) -> Task:
        """What it is trained to say."""
        from node.trainer import architectures

        return architectures.find(self.architecture).task

    @property
    def has_tokenizer(self) -> bool:
        """Whether a tokenizer lies beside the weights."""
        return (self.folder / "tokenizer.json").is_file()

    def model(
        self, changes: Mapping[str, specs.ConfigValue], rules: specs.MergeRules
    ) -> specs.ModelSpec:
        """With its tensor table, under a changed configuration. UserError for a refused value."""
        from node.trainer.model import describe_model

        return describe_model(self.architecture, {**self.config, **changes}, rules)

    def normalisation(self, channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Mean and standard deviation of the images that it is shown. UserError if unreadable."""
        from node.trainer.base_model import normalisation

        return normalisation(self.folder, channels)

    def adapted(
        self,
        changes: Mapping[str, specs.ConfigValue],
        rules: specs.MergeRules,
        adapter: specs.AdapterSpec,
    ) -> tuple[specs.ModelSpec, specs.AdapterSpec]:
        """The model with the table of an adapter, and the adapter with its frozen tensors.

        UserError for a refused value, or if no such adapter fits.
        """
        from node.trainer.adapters.table import describe

        if self.task != "causal":
            raise UserError(
                f"An adapter can stand beside a causal decoder only, and {self.architecture} is"
                " none. Train the whole model: leave the adapter out."
            )
        bare = specs.ModelSpec(self.architecture, {**self.config, **changes}, ())
        table = describe(bare, adapter, rules)
        adapter = msgspec.structs.replace(adapter, targets=table.targets, frozen=table.frozen)
        return msgspec.structs.replace(bare, tensors=table.tensors), adapter

    def frozen(self, genesis: specs.Genesis, cache: Path) -> specs.Genesis:
        """The genesis with digests of the frozen base, which is in `cache` from now on."""
        from host.files.held_base import HeldBase
        from node.trainer.base_model import freeze

        made, held = freeze(self.folder, genesis, self.source)
        HeldBase(cache, made).keep_all(memoryview(held))
        return made

    def pinned(self, model: specs.ModelSpec, layout: Layout) -> specs.BaseSpec:
        """Digests of all its weights. UserError if they are not this model's."""
        from node.trainer.base_model import pin

        return pin(self.folder, model, layout, self.source)


def of(named: str) -> StartingPoint:
    """What `hub:OWNER/NAME@REVISION` or a path names; the hub is asked for what is not cached.

    UserError if it is not here, or not a model that a project can start from.
    """
    from node.trainer.base_model import describe
    from node.trainer.base_source import FOLDER, HUB, fetch

    if named.startswith(HUB):
        folder = fetch(named)
        # A branch may move, the commit that it stands for now does not.
        source = f"{named.partition('@')[0]}@{folder.name}"
    else:
        folder = Path(named)
        if not folder.is_dir():
            raise UserError(
                f"There is no folder {folder} to start from. Name a folder as `save_pretrained` of"
                " transformers writes it, or hub:OWNER/NAME@REVISION."
            )
        source = FOLDER + folder.resolve().name
    said = describe(folder)
    return StartingPoint(folder, source, said.architecture, said.config, said.dropped)


class Suggestion(NamedTuple):
    """What `shoal project create --from` makes of a base model."""

    named: str
    """With the commit where a branch or a tag was named."""
    values: dict[str, Value]
    """By dotted key of the project file."""
    facts: list[str]
    """Size, memory and traffic, for whoever starts the project."""


def suggest(named: str, preset: Mapping[str, Value]) -> Suggestion:
    """Values that suit the base model, and what it will ask of a volunteer.

    preset: values that stand otherwise. UserError as in `of`.
    """
    start = of(named)
    model = start.model({}, specs.MergeRules())
    values, traffic = _suited(start, model, preset, FRAGMENTS_MIN)
    parameters = sum(tensor.numel for tensor in model.tensors)
    values["training.learning_rate"] = 0.0001
    facts = [
        f"model       {start.architecture}, {parameters:,} parameters in {len(model.tensors)} "
        f"tensors, {values['model.fragments']} fragments",
        f"memory      of a volunteer: {amount(TRAINER_BYTES * parameters)} and activations in the "
        f"trainer (on the accelerator, where there is one), {amount(DAEMON_BYTES * parameters)} "
        "beside it",
        f"traffic     of a volunteer: up to {amount(STATE_BYTES * parameters)} to join; {traffic}",
    ]
    return _suggestion(start, named, values, facts)


def suggest_adapter(named: str, preset: Mapping[str, Value]) -> Suggestion:
    """The same for an adapter beside the base model.

    UserError as in `of`, and if no adapter fits the model.
    """
    start = of(named)
    wanted = specs.AdapterSpec(
        ADAPTER_RANK, 2.0 * ADAPTER_RANK, 0.0, ("all-linear",), "both", "bf16"
    )
    model, adapter = start.adapted({}, specs.MergeRules(), wanted)
    values, traffic = _suited(start, model, preset, ADAPTER_FRAGMENTS_MIN)
    parameters = sum(tensor.numel for tensor in model.tensors)
    values |= {
        "model.adapter.rank": adapter.rank,
        "model.adapter.alpha": adapter.alpha,
        "training.learning_rate": 0.001,
        "training.weight_decay": 0.0,
    }
    frozen = sum(one.numel for one in adapter.frozen)
    trainer = adapter.held_bytes + TRAINER_BYTES * parameters
    facts = [
        f"model       {start.architecture}, {frozen:,} parameters, frozen as {adapter.base_dtype}",
        f"adapter     rank {adapter.rank} on {', '.join(adapter.targets)}: {parameters:,} "
        f"parameters in {values['model.fragments']} fragments",
        f"memory      of a volunteer: {amount(trainer)} and "
        "activations in the trainer (on the accelerator, where there is one), "
        f"{amount(DAEMON_BYTES * parameters)} beside it",
        f"disk        of a volunteer: {amount(adapter.held_bytes)}",
        f"traffic     of a volunteer: {amount(adapter.held_bytes)} once, from other hosts, for the "
        f"frozen model, and up to {amount(STATE_BYTES * parameters)} to join; {traffic}",
    ]
    return _suggestion(start, named, values, facts)


def _suited(
    start: StartingPoint, model: specs.ModelSpec, preset: Mapping[str, Value], least: int
) -> tuple[dict[str, Value], str]:
    """Values that suit what is trained, and its traffic in words.

    least: of fragments.
    """
    parameters = sum(tensor.numel for tensor in model.tensors)
    fragments = min(max(parameters // FRAGMENT_PARAMETERS, least), FRAGMENTS_MAX)
    fragments = min(fragments, len(model.tensors))
    layout = build_layout(model.tensors, "rows", fragments)
    sizes = [payload_bytes("int4", fragment.numel) for fragment in layout.fragments]
    local_steps = max(32, int(str(preset.get("rounds.local_steps", 0))))
    values: dict[str, Value] = {
        "model.fragments": fragments,
        **_suited_data(start),
        "training.beta1": 0.9,
        "rounds.local_steps": local_steps,
        "rounds.pull_timeout_s": float(
            max(PULL_TIMEOUT_S_MIN, 2 * max(sizes) // SLOW_UPLINK_BYTES_PER_S)
        ),
    }
    traffic = (
        f"then {amount(sum(sizes))} up and as much down in every {local_steps} local steps, "
        f"{amount(max(sizes))} in one piece at most"
    )
    return values, traffic


def _suited_data(start: StartingPoint) -> dict[str, Value]:
    """Of the section [data]."""
    from node.trainer import architectures

    bare = specs.ModelSpec(start.architecture, start.config, ())
    known = architectures.configuration(bare)
    if start.task == "images":
        side, patch = getattr(known, "image_size", None), getattr(known, "patch_size", None)
        patches = 0
        if isinstance(side, int) and isinstance(patch, int) and patch:
            patches = (side // patch) ** 2
        return {
            "data.source": "images",
            "data.location": "my-images",
            "data.sequence_tokens": max(SEQUENCE_TOKENS_MIN, patches),
            "data.heldout_frac": 0.1,
        }
    positions = architectures.positions_max(known)
    if positions is None or positions < SEQUENCE_TOKENS_MIN:
        positions = SEQUENCE_TOKENS_MAX
    return {
        "data.tokenizer": "base" if start.has_tokenizer else "bytes",
        "data.sequence_tokens": min(positions, SEQUENCE_TOKENS_MAX),
    }


def _suggestion(
    start: StartingPoint, named: str, values: dict[str, Value], facts: list[str]
) -> Suggestion:
    if start.dropped:
        facts.append(f"left out    of its configuration: {', '.join(start.dropped)}")
    named = start.source if named.startswith("hub:") else named
    return Suggestion(named, values, facts)


def amount(size_bytes: float) -> str:
    """An amount of bytes in MB or GB."""
    if size_bytes < 1e6:
        return f"{size_bytes / 1e3:.0f} kB"
    return f"{size_bytes / 1e9:.1f} GB" if size_bytes >= 1e9 else f"{size_bytes / 1e6:.0f} MB"
