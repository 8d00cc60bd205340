"""A trained model as a folder that the usual tools load: config, weights, and what prepares its
input: a tokenizer, or how images are scaled.

`from_pretrained(folder)` of `transformers` reads it: AutoModelForCausalLM, AutoModelForMaskedLM or
AutoModelForImageClassification, AutoTokenizer or AutoImageProcessor; without any code of Shoal and
without `trust_remote_code`.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import torch
import transformers
from PIL import Image
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from host.files.pinned_files import PinnedFiles
from node.trainer.base_model import CONFIG_FILE, SHOWN_FILE
from node.trainer.model import Floats, FragmentView, build_model, layout_of, whole_tensors
from node.trainer.text.tokenizer import (
    BYTES,
    BYTES_EOS,
    BYTES_MASK,
    EOS_TEXT,
    MASK_TEXT,
    TokenizerVocabulary,
    Vocabulary,
    load_vocabulary,
)
from node.trainer.text.tokenizer_files import GENERATION_FILE, NAMES, SETTINGS_FILE
from node.trainer.tools.dtypes import Dtype, dtypes_of
from node.trainer.tools.export_adapter import Merged, merged_model
from protocol.errors import UserError
from protocol.project import Genesis, ImageSpec

PRINTABLE: Final = (
    *range(ord("!"), ord("~") + 1),
    *range(ord("¡"), ord("¬") + 1),
    *range(ord("®"), ord("ÿ") + 1),
)
"""Bytes that byte-level tokenizers write as the character of that number; the others follow from
256 on, in order. A convention of the format, begun by GPT-2."""


_TORCH: Final[Mapping[Dtype, torch.dtype]] = {
    "f32": torch.float32,
    "bf16": torch.bfloat16,
    "f16": torch.float16,
}


def export_model(
    genesis: Genesis,
    fragments: Sequence[Floats],
    directory: Path,
    cache: Path,
    dtype: Dtype | None = None,
) -> float:
    """Writes config.json, model.safetensors, and the tokenizer files or preprocessor_config.json;
    generation_config.json where the model goes on with a text.

    Returns how far rounding to the dtype moved the tensors that an adapter stood beside, as a share
    of how far the adapter did; 0 where there is none.

    fragments: f32 [numel] each, in fragment order. cache: the home's, with the pinned files. dtype:
    of every tensor; None: as the base model's files stored each, f32 without one. UserError if the
    folder cannot be written, the model cannot be built, or a value is too large for f16.
    """
    if genesis.trainer is not None:
        _export_tensors(genesis, fragments, directory)
        return 0.0
    transformers.utils.logging.disable_progress_bar()
    model, moved = _trained(genesis, fragments, cache)
    if genesis.images is not None:
        model.config.id2label = dict(enumerate(genesis.images.classes))
        model.config.label2id = {name: at for at, name in enumerate(genesis.images.classes)}
    else:
        _say_tokens(
            model, genesis, load_vocabulary(genesis.data.tokenizer, genesis.tokenizer, cache)
        )
    rounded = _rounded(model, moved, dtypes_of(genesis, dtype))
    usual = _cast(model, dtypes_of(genesis, dtype))
    try:
        directory.mkdir(parents=True, exist_ok=True)
        model.save_pretrained(directory)
        _say_dtype(directory / CONFIG_FILE, usual)
        if genesis.images is not None:
            _save_processor(genesis.images, directory)
            return rounded
        _save_tokenizer(genesis, cache, directory)
        if genesis.writes:
            _save_pinned(genesis, cache, directory, {GENERATION_FILE})
    except OSError as error:
        raise _unwritable(directory, error) from error
    return rounded


def _say_tokens(
    model: transformers.PreTrainedModel, genesis: Genesis, vocabulary: Vocabulary
) -> None:
    """Writes into the configurations which tokens begin and end a text."""
    if genesis.base is None:
        model.config.eos_token_id = vocabulary.eos
        # The text before a document is a document's end.
        model.config.bos_token_id = vocabulary.eos
    if genesis.writes:
        model.generation_config = _generation(genesis, model.config, vocabulary.eos)


def _save_processor(images: ImageSpec, directory: Path) -> None:
    """How an image becomes what the model sees, as `AutoImageProcessor` reads it."""
    said = {
        "image_processor_type": "ViTImageProcessor",
        "do_convert_rgb": images.channels == 3,
        "do_resize": True,
        "size": {"height": images.height, "width": images.width},
        "resample": int(Image.Resampling.BILINEAR),
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": images.mean,
        "image_std": images.std,
    }
    (directory / SHOWN_FILE).write_text(json.dumps(said, indent=2) + "\n")


def _export_tensors(genesis: Genesis, fragments: Sequence[Floats], directory: Path) -> None:
    """The tensors by their names, for whoever has the training code; none of it is needed here."""
    tensors = whole_tensors(layout_of(genesis), fragments)
    assert genesis.trainer is not None, "whoever calls this has looked"
    about = {
        "trainer": msgspec.structs.asdict(genesis.trainer),
        "config": genesis.model.config,
        "seed": genesis.seed,
    }
    try:
        directory.mkdir(parents=True, exist_ok=True)
        save_file(tensors, directory / "model.safetensors")
        (directory / "trainer.json").write_bytes(msgspec.json.format(msgspec.json.encode(about)))
    except OSError as error:
        raise _unwritable(directory, error) from error


def _unwritable(directory: Path, error: OSError) -> UserError:
    return UserError(
        f"{directory} cannot be written ({error}). Free disk space or name another folder."
    )


def trained_model(
    genesis: Genesis, fragments: Sequence[Floats], cache: Path | None = None
) -> transformers.PreTrainedModel:
    """The project's model with these weights, f32, on the CPU; an adapter is merged into its base.

    fragments: f32 [numel] each, in fragment order. cache: the home's, with an adapter's base.
    UserError if the model cannot be built, or the base of an adapter is not here.
    """
    require_decoder(genesis)
    return _trained(genesis, fragments, cache).network


def _trained(genesis: Genesis, fragments: Sequence[Floats], cache: Path | None) -> Merged:
    if genesis.adapter is not None:
        assert cache is not None, "a frozen base lies in a cache"
        return merged_model(genesis, genesis.adapter, fragments, cache)
    model = build_model(genesis.model, seed=genesis.seed)
    view = FragmentView(model, layout_of(genesis))
    for index, values in enumerate(fragments):
        view.write(index, values)
    return Merged(model, {})


def _rounded(
    model: transformers.PreTrainedModel, moved: Mapping[str, float], dtypes: Mapping[str, Dtype]
) -> float:
    """How far rounding moves these tensors, as a share of how far training did."""
    off = sum(
        float((tensor.detach().to(_TORCH[dtypes[name]]).float() - tensor).square().sum())
        for name, tensor in model.named_parameters()
        if name in moved
    )
    whole = sum(moved.values())
    return math.sqrt(off / whole) if whole else 0.0


def require_decoder(genesis: Genesis) -> None:
    """UserError if the model is that of somebody's own training code, which no usual tool knows."""
    if genesis.trainer is not None:
        raise UserError(
            f"{genesis.name} trains with code of its own, {genesis.trainer.name}, and only that"
            " code knows what to do with its weights. `shoal export` writes them."
        )


def require_writing(genesis: Genesis) -> None:
    """UserError unless the model goes on with a text."""
    require_decoder(genesis)
    if not genesis.writes:
        what = "says the class of an image" if genesis.images is not None else "says hidden tokens"
        raise UserError(
            f"The model of {genesis.name} {what}; it does not write. `shoal export` writes a folder"
            " that transformers loads, and its model card shows how."
        )


def _generation(genesis: Genesis, config: Any, eos: int) -> transformers.GenerationConfig:
    """How to sample: as the base model's configuration implies, else as suits a small model."""
    if genesis.base is not None:
        return transformers.GenerationConfig.from_model_config(config)
    return transformers.GenerationConfig(
        eos_token_id=_or(config.eos_token_id, eos),
        bos_token_id=_or(config.bos_token_id, eos),
        pad_token_id=_or(config.pad_token_id, eos),
        do_sample=True,
        temperature=0.8,
    )


def _or(said: object, usual: int) -> object:
    return usual if said is None else said


def _cast(model: transformers.PreTrainedModel, dtypes: Mapping[str, Dtype]) -> Dtype:
    """Converts each tensor in place, one after the other; the dtype of most values."""
    values: Counter[Dtype] = Counter()
    for name, tensor in model.named_parameters():
        dtype = dtypes[name]
        if dtype == "f16" and float(tensor.detach().abs().max()) > torch.finfo(torch.float16).max:
            raise UserError(f"The tensor {name} has values too large for f16. Use --dtype bf16.")
        tensor.data = tensor.data.to(_TORCH[dtype])
        values[dtype] += tensor.numel()
    return values.most_common(1)[0][0]


def _say_dtype(path: Path, dtype: Dtype) -> None:
    """`transformers` notes the dtype of the first tensor, and loads all of them as that."""
    said = json.loads(path.read_text()) | {"dtype": str(_TORCH[dtype]).removeprefix("torch.")}
    path.write_text(json.dumps(said, indent=2, sort_keys=True) + "\n")


def _save_pinned(genesis: Genesis, cache: Path, directory: Path, names: Collection[str]) -> None:
    """Writes those of the pinned files, byte for byte."""
    files = PinnedFiles(cache, genesis.tokenizer)
    for one in genesis.tokenizer.files if genesis.tokenizer is not None else ():
        if one.name in names:
            content = files.find(one.digest)
            assert content is not None, "the vocabulary was loaded with them"
            (directory / one.name).write_bytes(content)


def _save_tokenizer(genesis: Genesis, cache: Path, directory: Path) -> None:
    """Pinned files as they are, chat template and all, where they say what they belong to."""
    name, pinned = genesis.data.tokenizer, genesis.tokenizer
    if pinned is not None and SETTINGS_FILE in {one.name for one in pinned.files}:
        _save_pinned(genesis, cache, directory, NAMES)
        return
    if name == BYTES:
        rust, eos = byte_tokenizer(has_mask=genesis.masked is not None), EOS_TEXT
    else:
        known = load_vocabulary(name, pinned, cache)
        assert isinstance(known, TokenizerVocabulary), "only `bytes` is another"
        rust, eos = known.tokenizer, known.eos_text
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=rust,
        bos_token=eos,
        eos_token=eos,
        pad_token=eos,
        clean_up_tokenization_spaces=False,
        **_mask(genesis, rust),
    )
    tokenizer.model_max_length = genesis.data.sequence_tokens
    tokenizer.save_pretrained(directory)


def _mask(genesis: Genesis, tokenizer: Tokenizer) -> dict[str, str]:
    """The token that stands where one is hidden, where the model knows one."""
    if genesis.masked is None:
        return {}
    named = tokenizer.id_to_token(genesis.masked.token)
    return {} if named is None else {"mask_token": named}


def byte_tokenizer(*, has_mask: bool = False) -> Tokenizer:
    """The `bytes` tokenizer in the `tokenizers` format: same ids, 0..255 for bytes, then the end.

    has_mask: then the token that stands where one is hidden.
    It is byte-pair encoding without a single merge.
    """
    others = iter(range(256, 512))
    characters = [chr(byte if byte in PRINTABLE else next(others)) for byte in range(256)]
    tokenizer = Tokenizer(
        models.BPE(vocab={one: byte for byte, one in enumerate(characters)}, merges=[])
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(EOS_TEXT, normalized=False)])
    assert tokenizer.token_to_id(EOS_TEXT) == BYTES_EOS
    if has_mask:
        tokenizer.add_special_tokens([AddedToken(MASK_TEXT, normalized=False)])
        assert tokenizer.token_to_id(MASK_TEXT) == BYTES_MASK
    return tokenizer
