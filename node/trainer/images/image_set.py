"""Images as numbered blocks of numbered samples, decoded once per host.

`location` is a folder with a folder for each class, and PNG or JPEG files in it, at any depth; or
.parquet files with such files in their rows, or a folder of them. An
image is a training or a held-out one by the hash of its file, so hosts whose copies differ a little
still agree about every image they share. Their order is that of another hash of the file: classes
come mixed, and what files are called does not matter. What two hosts compare is the files and their
classes, not the pixels, which different libraries may decode and scale a little differently.

The pixels, scaled to one size, lie in a cache and are memory-mapped. It follows changes of the
files; deleting it is always safe.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, Literal, NamedTuple

import msgspec
import numpy as np
from blake3 import blake3
from msgspec import Struct
from numpy.typing import NDArray

from node.trainer.data_cache import filled
from node.trainer.images import parquet_files
from node.trainer.images.decoding import Pixels, decode, read_file
from node.trainer.own.interface import OwnData, Samples
from node.trainer.own.samples import OwnSamples, describe
from protocol import decoders, limits
from protocol.errors import CorruptState, UserError
from protocol.project import DataSpec, ImageSpec

CACHE_FORMAT: Final = 1
"""Raised when the meaning of cached files changes."""

SUFFIXES: Final = frozenset({".png", ".jpg", ".jpeg"})
SPLIT_CONTEXT: Final = "shoal 1 held-out images"
ORDER_CONTEXT: Final = "shoal 1 order of images"
DIGEST_CONTEXT: Final = "shoal 1 images"
FACTS_FILE: Final = "facts.json"
PIXELS_FILE: Final = "pixels.bin"
LABELS_FILE: Final = "labels.bin"

Labels = NDArray[np.int64]


class ImageFacts(Struct, frozen=True):
    """What is written beside the pixels."""

    images: int
    """To train on; they come first."""
    heldout: int
    digest: bytes
    """Of the files to train on and their classes, in order."""


class Described(NamedTuple):
    """What goes into a genesis when a project is signed."""

    images: ImageSpec
    blocks: int
    digest: bytes


class View(NamedTuple):
    """What a model sees, before anybody knows the classes."""

    height: int
    width: int
    mean: tuple[float, ...]
    """By channel; so many channels there are."""
    std: tuple[float, ...]


class ImageSet(OwnSamples):
    """The images of one project on this host, by number: those to train on, then those held out."""

    def __init__(self, spec: DataSpec, images: ImageSpec, *, seed: int, folder: Path) -> None:
        """Opens a filled cache folder; use `open_images`. UserError if there are too few images,
        CorruptState if the files are not what their facts say."""
        found = _read_facts(folder)
        data = OwnData(found.images, found.heldout, found.digest)
        super().__init__(spec, data, seed=seed, whose=_whose(spec))
        self.images = images
        self._first_heldout = found.images
        count = found.images + found.heldout
        self._pixels = _map_pixels(folder / PIXELS_FILE, count, images)
        self._labels = _read_labels(folder / LABELS_FILE, count, len(images.classes))

    def heldout(self, count: int) -> Samples:
        """The first `count` held-out numbers, fewer if there are fewer."""
        return self._first_heldout + super().heldout(count)

    def look(self, numbers: Samples) -> tuple[Pixels, Labels]:
        """The images with these numbers: u8 [n, channels, height, width], and their classes."""
        return np.asarray(self._pixels[numbers]), self._labels[numbers]


def open_images(spec: DataSpec, images: ImageSpec, *, seed: int, cache: Path) -> ImageSet:
    """The images of a project, decoded first if this host has not done so yet.

    `seed` orders the blocks. Several processes may call this at once; one decodes, the others wait.
    UserError if a file cannot be read, there are too few, or a folder is no class of the project.
    """
    folder = _filled(spec, _root(spec), images, cache)
    return ImageSet(spec, images, seed=seed, folder=folder)


def describe_images(spec: DataSpec, view: View, *, cache: Path) -> Described:
    """The classes of the images as this host sees them, their number and digest.

    The `blocks` and `digest` of `spec` are ignored: this is where they come from. UserError as for
    `open_images`.
    """
    root = _root(spec)
    classes = _classes(root)
    channels: Literal[1, 3] = 1 if len(view.mean) == 1 else 3
    said = ImageSpec(view.height, view.width, channels, view.mean, view.std, classes, 1, 1)
    found = _read_facts(_filled(spec, root, said, cache))
    counted = describe(spec, OwnData(found.images, found.heldout, found.digest), whose=_whose(spec))
    said = msgspec.structs.replace(said, images=found.images, heldout=found.heldout)
    return Described(said, counted.blocks, counted.digest)


def count_images(spec: DataSpec, images: ImageSpec) -> int:
    """How many files of the project's classes this host has; none is opened.

    UserError if a folder is no class of the project, or if there are too few for one block.
    """
    root = _root(spec)
    tables = _tables(root)
    found = parquet_files.count(tables) if tables else len(_listing(root, images.classes))
    if found <= spec.block_sequences:
        raise UserError(
            f"{spec.location} holds {found} images of this project's classes; a block alone has"
            f" {spec.block_sequences}. Ask the project's host for a copy."
        )
    return found


# -------------------------------------------------------------------------------------- the files


def _whose(spec: DataSpec) -> str:
    return f"{spec.location} holds"


def _root(spec: DataSpec) -> Path:
    root = Path(spec.location).expanduser().resolve()
    if not root.is_dir() and not _tables(root):
        raise UserError(
            f"There is no folder {root}. Name one with a folder of PNG or JPEG files for each"
            " class, or with .parquet files: as `location` in the project file, or with --data"
            " where you join."
        )
    return root


def _tables(root: Path) -> list[Path]:
    """The .parquet files that are read; none where a folder for each class is there."""
    return [] if root.is_dir() and _folders(root) else parquet_files.tables_at(root)


def _folders(root: Path) -> list[str]:
    """Names of the folders with images in them, sorted."""
    inside = (one for one in root.iterdir() if one.is_dir() and not one.name.startswith("."))
    return sorted(one.name for one in inside if next(_files_of(one), None) is not None)


def _classes(root: Path) -> tuple[str, ...]:
    tables = _tables(root)
    if tables:
        names = list(parquet_files.class_names(tables))
        what = "classes in its .parquet files"
    else:
        names, what = _folders(root), "folders with PNG or JPEG files, of which each is a class"
    if not 2 <= len(names) <= limits.IMAGE_CLASSES_MAX:
        raise UserError(
            f"{root} has {len(names)} {what}; there must be 2 to {limits.IMAGE_CLASSES_MAX:,}."
        )
    for name in names:
        if not name.isprintable() or len(name) > limits.NAME_CHARS_MAX:
            raise UserError(
                f"{name!r} in {root} cannot name a class: a name has 1 to"
                f" {limits.NAME_CHARS_MAX} printable characters. Rename it."
            )
    return tuple(names)


def _files_of(folder: Path) -> Iterator[Path]:
    for inside, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            if Path(name).suffix.lower() in SUFFIXES:
                yield Path(inside, name)


def _listing(root: Path, classes: Sequence[str]) -> list[tuple[Path, int]]:
    """Every image and its class. UserError for a folder that is none of the project's classes."""
    other = sorted(set(_folders(root)) - set(classes))
    if other:
        raise UserError(
            f"{root / other[0]} is no class of this project: it has {', '.join(classes[:20])}"
            f"{' and others' if len(classes) > 20 else ''}. Take the folder away, or name another"
            " copy of the images."
        )
    return [(path, label) for label, name in enumerate(classes) for path in _files_of(root / name)]


# -------------------------------------------------------------------------------------- the cache


class _Image(NamedTuple):
    order: bytes
    content: bytes
    """Hash of the file."""
    label: int
    path: Path
    is_heldout: bool


def _filled(spec: DataSpec, root: Path, images: ImageSpec, cache: Path) -> Path:
    tables = _tables(root)
    listing = [] if tables else _listing(root, images.classes)
    hasher = blake3(derive_key_context=DIGEST_CONTEXT)
    parts = (spec.heldout_frac, images.height, images.width, images.channels, images.classes)
    hasher.update(msgspec.msgpack.encode((CACHE_FORMAT, parts)))
    for path in tables or [path for path, _ in listing]:
        state = path.stat()
        place = os.fsencode(path)
        hasher.update(msgspec.msgpack.encode((place, state.st_size, state.st_mtime_ns)))
    folder = cache / f"images-{hasher.hexdigest(12)}"

    def is_intact(folder: Path) -> bool:
        try:
            facts = _read_facts(folder)
            count = facts.images + facts.heldout
            _map_pixels(folder / PIXELS_FILE, count, images)
            _read_labels(folder / LABELS_FILE, count, len(images.classes))
        except CorruptState:
            return False  # Decoded again by the caller: the cache is a copy, nothing is lost.
        return True

    def fill(partial: Path) -> None:
        if not tables:
            _decode_all(listing, spec, images, partial)
            return
        # Pictures are read in another order than they lie in, twice: files are the way to do that.
        with tempfile.TemporaryDirectory(dir=cache) as place:
            from_rows = list(parquet_files.unpacked(tables, images.classes, Path(place)))
            _decode_all(from_rows, spec, images, partial)

    filled(folder, is_intact, fill)
    return folder


def _decode_all(
    listing: list[tuple[Path, int]], spec: DataSpec, images: ImageSpec, folder: Path
) -> None:
    """Writes pixels, labels and facts: images to train on, then those held out, in order."""
    _require_room(len(listing) * images.channels * images.height * images.width, folder)
    found = sorted(_looked_at(listing, spec.heldout_frac), key=lambda one: (one[4], one[:3]))
    hasher = blake3(derive_key_context=DIGEST_CONTEXT)
    with (folder / PIXELS_FILE).open("wb") as pixels:
        for one in found:
            content = read_file(one.path)
            if blake3(content).digest() != one.content:
                raise UserError(f"{one.path} changed while it was read. Start again.")
            if not one.is_heldout:
                hasher.update(one.content + images.classes[one.label].encode() + b"\0")
            decoded = decode(
                content,
                str(one.path),
                height=images.height,
                width=images.width,
                channels=images.channels,
            )
            pixels.write(decoded.tobytes())
        pixels.flush()
        os.fsync(pixels.fileno())
    np.array([one.label for one in found], dtype="<u2").tofile(folder / LABELS_FILE)
    held = sum(one.is_heldout for one in found)
    facts = ImageFacts(len(found) - held, held, hasher.digest())
    (folder / FACTS_FILE).write_bytes(msgspec.json.encode(facts))


def _require_room(size_bytes: int, folder: Path) -> None:
    """UserError before the disk is full, rather than then: the owner of a project says the size."""
    free = shutil.disk_usage(folder).free
    if size_bytes > free:
        raise UserError(
            f"The images take {size_bytes:,} bytes once they are decoded, and the disk of {folder}"
            f" has {free:,} free. Free some, or name another home."
        )


def _looked_at(listing: list[tuple[Path, int]], heldout_frac: float) -> Iterator[_Image]:
    for path, label in listing:
        content = blake3(read_file(path)).digest()
        drawn = blake3(content, derive_key_context=SPLIT_CONTEXT).digest(8)
        order = blake3(content, derive_key_context=ORDER_CONTEXT).digest(16)
        is_heldout = int.from_bytes(drawn, "big") < heldout_frac * 2.0**64
        yield _Image(order, content, label, path, is_heldout)


def _read_facts(folder: Path) -> ImageFacts:
    try:
        return decoders.json_decoder(ImageFacts).decode((folder / FACTS_FILE).read_bytes())
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        raise CorruptState(f"{folder} is no usable cache of images ({error}); delete it") from error


def _map_pixels(path: Path, count: int, images: ImageSpec) -> Pixels:
    shape = (count, images.channels, images.height, images.width)
    try:
        if path.stat().st_size != int(np.prod(shape)):
            raise CorruptState(f"{path} has the wrong size; delete its folder")
        if not count:
            return np.empty(shape, np.uint8)
        return np.memmap(path, dtype=np.uint8, mode="r", shape=shape)
    except OSError as error:
        raise CorruptState(f"{path} cannot be read ({error}); delete its folder") from error


def _read_labels(path: Path, count: int, classes: int) -> Labels:
    try:
        labels = np.fromfile(path, dtype="<u2").astype(np.int64)
    except OSError as error:
        raise CorruptState(f"{path} cannot be read ({error}); delete its folder") from error
    if labels.size != count or (count and labels.max() >= classes):
        raise CorruptState(f"{path} does not fit its facts; delete its folder")
    return labels
