"""Models that a project describes, and their weights as flat fragments.

A project names an architecture and plain configuration values (`node.trainer.architectures`);
nothing here downloads weights or code. Weights are f32 masters; lower precision is the inner loop's
autocast.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from torch import Tensor, nn

from node.trainer import architectures
from node.trainer.failures import is_out_of_memory
from protocol import limits, project
from protocol.errors import InternalError, UserError
from protocol.fragments import Layout, TensorSpan, build_layout

Floats = NDArray[np.float32]

Values: TypeAlias = Floats | Tensor
"""f32 [numel] of a fragment; a tensor may be on the device already."""

PAPER_RULES: Final = project.MergeRules()
"""As published: embeddings by mean, all else radially."""

BUFFER_BYTES_MAX: Final = 1 << 30
"""Of what a model keeps besides its weights: tables of positions, mostly."""


def build_model(spec: project.ModelSpec, *, seed: int) -> transformers.PreTrainedModel:
    """The model with f32 weights drawn from `seed`, on the CPU, in training mode.

    The caller's random state is left as it was. If `spec.tensors` is not empty, it must agree with
    the model built. UserError if the architecture or a value is not accepted, or if it does not.
    """
    if spec.tensors:
        _check_table(spec)  # Before any memory is taken.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return _construct(spec)


def describe_model(
    architecture: str,
    config: Mapping[str, project.ConfigValue],
    rules: project.MergeRules = PAPER_RULES,
) -> project.ModelSpec:
    """The model's tensor table, without allocating its weights. UserError as in `build_model`."""
    bare = project.ModelSpec(architecture, dict(config), ())
    return project.ModelSpec(architecture, dict(config), tensor_specs(outline(bare), rules))


def _check_table(spec: project.ModelSpec) -> None:
    """UserError unless the configuration gives just the tensors that the project names."""
    if _shapes(tensor_specs(outline(spec))) != _shapes(spec.tensors):
        raise UserError(
            "The tensor table of the project is not the one that this version of transformers"
            f" ({transformers.__version__}) builds for {spec.architecture}. Install the version"
            " that the project's owner used."
        )


def outline(spec: project.ModelSpec) -> transformers.PreTrainedModel:
    """The model without memory for its weights."""
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        model = _construct(spec)
    kept = sum(one.numel() * one.element_size() for one in model.buffers())
    if kept > BUFFER_BYTES_MAX:
        raise UserError(
            f"{spec.architecture} keeps tables of {kept:,} bytes besides its weights; at most"
            f" {BUFFER_BYTES_MAX:,} are allowed. Lower the number of positions under"
            " [model.config]."
        )
    _require_no_running_means(model, spec)
    return model


def _require_no_running_means(model: nn.Module, spec: project.ModelSpec) -> None:
    """UserError for batch normalisation: it keeps means that no gradient moves."""
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._NormBase) and module.track_running_stats:
            raise UserError(
                f"{spec.architecture} normalises by batch, with means that it keeps beside its"
                " weights, and Shoal sends weights only. Name one that normalises by layer, such"
                " as ViTForImageClassification or ConvNextForImageClassification."
            )


def check_fits(model: project.ModelSpec, data: project.DataSpec, vocabulary_size: int) -> None:
    """UserError if the text's token ids or sequence length do not fit the model."""
    known = architectures.configuration(model)
    if architectures.find(model.architecture).task == "images":
        raise UserError(
            f'{model.architecture} says the class of an image. Set source = "images" under [data].'
        )
    positions = architectures.positions_max(known)
    if known.vocab_size < vocabulary_size:
        raise UserError(
            f"The tokenizer {data.tokenizer!r} has {vocabulary_size} tokens, the model's"
            f" vocab_size is {known.vocab_size}. Raise vocab_size to at least {vocabulary_size}."
        )
    if positions is not None and positions < data.sequence_tokens:
        raise UserError(
            f"Sequences of {data.sequence_tokens} tokens do not fit a model with {positions}"
            f" positions. Lower sequence_tokens or raise"
            f" {architectures.find(model.architecture).positions_key}."
        )


def check_sees(model: project.ModelSpec, images: project.ImageSpec) -> None:
    """UserError if the model is not one for images of this size and number of classes."""
    known = architectures.configuration(model)
    if architectures.find(model.architecture).task != "images":
        raise UserError(
            f"{model.architecture} is for text. Name a classifier of images, such as"
            " ViTForImageClassification, or another data.source."
        )
    if known.num_labels != len(images.classes):
        raise UserError(
            f"The model has {known.num_labels} classes, the images have {len(images.classes)}."
            f" Leave {architectures.NUM_LABELS} out of [model.config]: the images say it."
        )
    for key, wanted in (
        ("image_size", (images.height, images.width)),
        ("num_channels", images.channels),
    ):
        said = getattr(known, key, wanted)
        said = tuple(said) if isinstance(said, list | tuple) else said
        if said not in (wanted, images.height if wanted == (images.height,) * 2 else wanted):
            raise UserError(
                f"The model's {key} is {said}, and the images are of {wanted}. Correct the values"
                " under [model.config]."
            )
    if len(images.mean) != images.channels or len(images.std) != images.channels:
        raise UserError("The project has another number of means than its images have channels.")


def tensor_specs(
    model: transformers.PreTrainedModel, rules: project.MergeRules = PAPER_RULES
) -> tuple[project.TensorSpec, ...]:
    """Every trainable tensor once, tied ones under their first name, in the model's own order.

    Embeddings are the tables that map tokens or positions to vectors, or vectors to tokens.
    """
    tables = embedding_ids(model)
    return tuple(
        project.TensorSpec(
            name, tuple(tensor.shape), rule_of(tensor.dim(), id(tensor) in tables, rules)
        )
        for name, tensor in model.named_parameters()
        if tensor.requires_grad
    )


def embedding_ids(model: nn.Module) -> set[int]:
    """`id` of every table that maps tokens or positions to vectors, or vectors to tokens."""
    tables = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    if isinstance(model, transformers.PreTrainedModel):
        output = model.get_output_embeddings()
        if output is not None:
            tables.add(id(output.weight))
    return tables


def rule_of(dimensions: int, is_embedding: bool, rules: project.MergeRules) -> project.MergeRule:
    """How a tensor is merged."""
    if is_embedding:
        return rules.embeddings
    return rules.matrices if dimensions > 1 else rules.vectors


def _shapes(tensors: tuple[project.TensorSpec, ...]) -> list[tuple[str, tuple[int, ...]]]:
    """What the model decides; how its tensors are merged is for the project to say."""
    return [(tensor.name, tensor.shape) for tensor in tensors]


def layout_of(genesis: project.Genesis) -> Layout:
    """The project's cut of its model."""
    return build_layout(genesis.model.tensors, genesis.strategy, genesis.fragments)


class FragmentView:
    """A model's weights as fragments: flat f32 arrays, each tensor at its offset, gaps zero.

    Reads and writes go to the model itself; nothing is kept.
    """

    def __init__(self, model: nn.Module | Mapping[str, Tensor], layout: Layout) -> None:
        """InternalError if the model lacks a tensor of the layout, or one is not contiguous f32."""
        self.layout = layout
        tensors = dict(model.named_parameters() if isinstance(model, nn.Module) else model)
        self._flat = [
            [(span, _flat(tensors, span)) for span in fragment.spans]
            for fragment in layout.fragments
        ]

    def numel(self, fragment: int) -> int:
        """Elements of a fragment, padding included. InternalError if there is no such fragment."""
        if not 0 <= fragment < len(self.layout.fragments):
            raise InternalError(f"there is no fragment {fragment}")
        return self.layout.fragments[fragment].numel

    def tensors(self, fragment: int) -> list[Tensor]:
        """The model's own tensors of a fragment, flat; of one that is split, what lies there."""
        return [flat for _, flat in self._flat[fragment]]

    def read(self, fragment: int, out: Floats, *, non_blocking: bool = False) -> None:
        """Copies a fragment into `out`, f32 [numel]; padding becomes zero.

        non_blocking: returns before it is done, where `out` is locked in memory and the device can.
        """
        self._check(fragment, out)
        for span, flat in self._flat[fragment]:
            end = span.offset + span.numel
            target = torch.from_numpy(out[span.offset : end])
            target.copy_(flat, non_blocking=non_blocking)
            out[end : span.offset + span.padded] = 0.0

    def copies(self) -> list[Floats]:
        """A copy of every fragment."""
        found = [np.empty(one.numel, np.float32) for one in self.layout.fragments]
        for fragment, values in enumerate(found):
            self.read(fragment, values)
        return found

    def write(self, fragment: int, values: Values) -> None:
        """Replaces a fragment by `values`, f32 [numel]; padding is ignored."""
        self._check(fragment, values)
        for span, flat in self._flat[fragment]:
            flat.copy_(_tensor(values[span.offset : span.offset + span.numel]))

    def blend(self, fragment: int, values: Values, kept_frac: float) -> None:
        """A fragment becomes kept_frac * itself + (1 - kept_frac) * `values`, in f32.

        kept_frac: [0, 1); with 0 the values are taken as they are. Padding is ignored.
        """
        self._check(fragment, values)
        for span, flat in self._flat[fragment]:
            piece = _tensor(values[span.offset : span.offset + span.numel]).to(flat.device)
            if kept_frac:
                flat.mul_(kept_frac).add_(piece, alpha=1.0 - kept_frac)
            else:
                flat.copy_(piece)

    def add(self, fragment: int, values: Values) -> None:
        """Adds `values`, f32 [numel], to a fragment; padding is ignored."""
        self._check(fragment, values)
        for span, flat in self._flat[fragment]:
            piece = _tensor(values[span.offset : span.offset + span.numel])
            flat.add_(piece.to(flat.device))

    def write_all(self, values: Floats) -> None:
        """Replaces every fragment; `values` holds them one after the other."""
        sizes = [fragment.numel for fragment in self.layout.fragments]
        if values.size != sum(sizes):
            raise InternalError(f"{values.size} elements for a model of {sum(sizes)}")
        first = 0
        for index, size in enumerate(sizes):
            self.write(index, values[first : first + size])
            first += size

    def _check(self, fragment: int, values: Values) -> None:
        wanted = (self.numel(fragment),)
        if tuple(values.shape) != wanted or values.dtype not in (np.float32, torch.float32):
            raise InternalError(
                f"fragment {fragment} has {self.numel(fragment)} f32 elements,"
                f" not {values.dtype} {values.shape}"
            )


def initial_weights(genesis: project.Genesis) -> list[Floats]:
    """Version 0 of every fragment, f32 [numel], drawn from the project's seed.

    The same seed need not give the same bits under another torch version, so only the project's
    first leader calls this, and everybody else downloads the result. UserError as in `build_model`.
    """
    layout = layout_of(genesis)
    return FragmentView(build_model(genesis.model, seed=genesis.seed), layout).copies()


def whole_tensors(layout: Layout, fragments: Sequence[Floats]) -> dict[str, Floats]:
    """Every tensor of the layout by its name, in its shape, as copies; `fragments` f32 [numel]."""
    found: dict[str, Floats] = {}
    for fragment, values in zip(layout.fragments, fragments, strict=True):
        for span in fragment.spans:
            whole = found.setdefault(span.name, np.empty(span.shape, np.float32))
            whole.reshape(-1)[span.start : span.end] = values[span.offset :][: span.numel]
    return found


def _flat(tensors: Mapping[str, Tensor], span: TensorSpan) -> Tensor:
    """What lies in this span, of the model's own memory."""
    tensor = tensors.get(span.name)
    if tensor is None or tuple(tensor.shape) != span.shape:
        raise InternalError(f"the model has no tensor {span.name} {span.shape}")
    if tensor.dtype != torch.float32 or not tensor.is_contiguous():
        raise InternalError(f"{span.name} is not a contiguous f32 tensor")
    return tensor.detach().view(-1)[span.start : span.end]


def _tensor(values: Values) -> Tensor:
    if isinstance(values, Tensor):
        return values
    # torch has no read-only tensors and warns about memory it might write to.
    return torch.from_numpy(values if values.flags.writeable else values.copy())


def _construct(spec: project.ModelSpec) -> transformers.PreTrainedModel:
    configuration = architectures.configuration(spec)
    try:
        model = architectures.find(spec.architecture).model(configuration)
    except (*architectures.REFUSALS, RuntimeError) as error:
        if is_out_of_memory(error):
            raise
        raise UserError(
            f"{spec.architecture} cannot be built from this configuration ({error!r}). Correct the"
            " values under [model.config]."
        ) from error
    if len(list(model.named_parameters())) > limits.TENSORS_MAX:
        raise UserError(f"The model has more than {limits.TENSORS_MAX} tensors; use fewer layers.")
    return model.float().train()
