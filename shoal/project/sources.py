"""What a project trains on, read where it is signed: counted, hashed, and pinned."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from protocol import limits
from protocol import project as specs
from protocol.errors import UserError
from shoal.project.starting_point import StartingPoint

if TYPE_CHECKING:
    from node.trainer.architectures import Task
    from shoal.project.project_file import Pins, ProjectFile

MASKED_FRAC: Final = 0.15
"""Of a sequence's tokens, where the project file does not say: as BERT was trained."""


class Source(NamedTuple):
    """What a genesis says of its data."""

    spec: specs.DataSpec
    """Counted."""
    tokenizer: specs.TokenizerSpec | None = None
    masked: specs.MaskedSpec | None = None
    images: specs.ImageSpec | None = None
    mixture: tuple[specs.MixedSource, ...] | None = None


def text(
    file: ProjectFile, start: StartingPoint | None, cache: Path, *, task: Task, pins: Pins
) -> Source:
    """The text, tokenised unless `cache` holds it already.

    UserError if it cannot be read, or the tokenizer lacks what the task needs.
    """
    from node.trainer.making import require_apart
    from node.trainer.model import build_model, check_fits
    from node.trainer.text.tokenizer import MASK_NAMES, load_vocabulary
    from node.trainer.text.tokenizer_files import pin_tokenizer

    data, tokenizer, masked = file.data, None, None
    if data.source == "images":
        raise UserError(
            f"{_bare(file, start).architecture} is for text. Name a classifier of images, such as"
            " ViTForImageClassification, or another data.source."
        )
    kinds = {one.source for one in file.mixture or (data,)}
    if "chats" in kinds and task == "masked":
        raise UserError(
            'data.source can be "chats" only for a decoder, which answers. Name another source of'
            " text."
        )
    if task == "masked" and file.documents is not None:
        raise UserError(
            f'data.documents must be "joined": {_bare(file, start).architecture} says hidden'
            " tokens, and reads each sequence as one text."
        )
    if pins != "nothing":
        folder = start.folder if start is not None else None
        tokenizer = pin_tokenizer(data.tokenizer, folder, cache, pins_generation=pins == "all")
    vocabulary = load_vocabulary(data.tokenizer, tokenizer, cache)
    if task == "masked":
        if vocabulary.mask is None:
            raise UserError(
                f"The tokenizer {data.tokenizer!r} has none of the tokens {', '.join(MASK_NAMES)},"
                " one of which must stand where a token is hidden. Add one to it."
            )
        masked = specs.MaskedSpec(vocabulary.mask, file.masked_frac or MASKED_FRAC)
    size = max(vocabulary.size, masked.token + 1 if masked is not None else 0)
    model = _bare(file, start)
    check_fits(model, data, size)
    if file.documents == "separate":
        require_apart(build_model(model, seed=0), file.documents, size)
    counted = counted_text(file, tokenizer, cache)
    return counted._replace(tokenizer=tokenizer, masked=masked)


def counted_text(file: ProjectFile, tokenizer: specs.TokenizerSpec | None, cache: Path) -> Source:
    """The text of one source or of a mixture, counted. UserError if it cannot be read."""
    from node.trainer.text.corpus import describe_corpus
    from node.trainer.text.mixture import describe_mixture

    data, documents = file.data, file.documents
    if file.mixture is None:
        counted = describe_corpus(data, cache=cache, tokenizer=tokenizer, documents=documents)
        return Source(_counted(data, counted.blocks, counted.digest))
    found = describe_mixture(
        data, file.mixture, cache=cache, tokenizer=tokenizer, documents=documents
    )
    return Source(_counted(data, found.blocks, found.digest), mixture=found.mixture)


def published(genesis: specs.Genesis, cache: Path) -> specs.PublishedSpec:
    """The text or images in shards, made of them unless `cache` holds them already.

    UserError if they are too large for that, or nobody else could read them.
    """
    if genesis.images is not None:
        from node.trainer.images.image_set import open_images
        from node.trainer.images.published import publish_images

        opened = open_images(genesis.data, genesis.images, seed=genesis.seed, cache=cache)
        return publish_images(opened, genesis, cache=cache)
    from node.trainer.text.mixture import open_sources
    from node.trainer.text.published import publish

    data, tokenizer = genesis.data, genesis.tokenizer
    if tokenizer is None and data.tokenizer != "bytes":
        raise UserError(
            f"The tokenizer {data.tokenizer!r} was not pinned when this project was signed first, "
            "so its text cannot be published: learners could read it otherwise."
        )
    # Where a text begins is told by the token before it, so shards are the same for either rule.
    documents = genesis.documents if "chats" in genesis.kinds else None
    corpus = open_sources(msgspec.structs.replace(genesis, documents=documents), cache=cache)
    return publish(corpus, genesis, cache=cache)


def images(file: ProjectFile, start: StartingPoint | None, cache: Path) -> Source:
    """The images, decoded unless `cache` holds them already.

    UserError if they cannot be read, or nobody says of what size the model wants them.
    """
    from node.trainer import architectures
    from node.trainer.images.image_set import View, describe_images
    from node.trainer.model import check_sees

    model = _bare(file, start)
    if file.documents is not None:
        raise UserError(f'data.documents must be "joined": {model.architecture} reads no text.')
    if file.data.source != "images":
        raise UserError(
            f'{model.architecture} says the class of an image. Set source = "images" under [data],'
            " and location to a folder with a folder of PNG or JPEG files for each class."
        )
    known = architectures.configuration(model)
    size = file.image_size or getattr(known, "image_size", None)
    if isinstance(size, int):
        size = (size, size)
    if not isinstance(size, list | tuple) or len(size) != 2:
        raise UserError(
            f"{model.architecture} takes images of any size: say image_size, in pixels, under"
            " [data]."
        )
    height, width = size
    if not 1 <= min(height, width) <= max(height, width) <= limits.IMAGE_SIDE_MAX:
        raise UserError(
            f"There are no images of {height} x {width} pixels for a model: a side has 1 to"
            f" {limits.IMAGE_SIDE_MAX:,}."
        )
    channels = getattr(known, "num_channels", 3)
    mean = std = (0.5,) * channels
    if start is not None:
        mean, std = start.normalisation(channels)
    found = describe_images(file.data, View(height, width, mean, std), cache=cache)
    classes = {architectures.NUM_LABELS: len(found.images.classes), **model.config}
    check_sees(msgspec.structs.replace(model, config=classes), found.images)
    return Source(_counted(file.data, found.blocks, found.digest), images=found.images)


def _bare(file: ProjectFile, start: StartingPoint | None) -> specs.ModelSpec:
    """The model without its tensor table."""
    if start is None:
        return specs.ModelSpec(file.architecture, file.config, ())
    return specs.ModelSpec(start.architecture, {**start.config, **file.config}, ())


def _counted(data: specs.DataSpec, blocks: int, digest: bytes) -> specs.DataSpec:
    return msgspec.structs.replace(data, blocks=blocks, digest=digest)
