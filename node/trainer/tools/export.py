"""A trained model as a folder that the usual tools load: config, weights, tokenizer.

`transformers.AutoModelForCausalLM.from_pretrained(folder)` and `AutoTokenizer` read it, without any
code of Shoal and without `trust_remote_code`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from node.trainer.model import Floats, FragmentView, build_model, layout_of
from node.trainer.text.tokenizer import (
    BYTES,
    BYTES_EOS,
    EOS_TEXT,
    TokenizerVocabulary,
    load_vocabulary,
)
from protocol.errors import UserError
from protocol.project import Genesis

PRINTABLE: Final = (
    *range(ord("!"), ord("~") + 1),
    *range(ord("¡"), ord("¬") + 1),
    *range(ord("®"), ord("ÿ") + 1),
)
"""Bytes that byte-level tokenizers write as the character of that number; the others follow from
256 on, in order. A convention of the format, begun by GPT-2."""


def export_model(genesis: Genesis, fragments: Sequence[Floats], directory: Path) -> None:
    """Writes config.json, generation_config.json, model.safetensors and the tokenizer files.

    fragments: f32 [numel] each, in fragment order. UserError if the folder cannot be written or the
    model cannot be built.
    """
    transformers.utils.logging.disable_progress_bar()
    vocabulary = load_vocabulary(genesis.data.tokenizer)
    model = build_model(genesis.model, seed=genesis.seed)
    view = FragmentView(model, layout_of(genesis))
    for index, values in enumerate(fragments):
        view.write(index, values)
    model.config.eos_token_id = vocabulary.eos
    model.config.bos_token_id = vocabulary.eos  # The text before a document is a document's end.
    model.generation_config = transformers.GenerationConfig(
        eos_token_id=vocabulary.eos,
        bos_token_id=vocabulary.eos,
        pad_token_id=vocabulary.eos,
        do_sample=True,
        temperature=0.8,
    )
    tokenizer = _tokenizer(genesis.data.tokenizer)
    tokenizer.model_max_length = genesis.data.sequence_tokens
    try:
        directory.mkdir(parents=True, exist_ok=True)
        model.save_pretrained(directory)
        tokenizer.save_pretrained(directory)
    except OSError as error:
        raise UserError(
            f"{directory} cannot be written ({error}). Free disk space or name another folder."
        ) from error


def _tokenizer(name: str) -> transformers.PreTrainedTokenizerFast:
    if name == BYTES:
        rust, eos = byte_tokenizer(), EOS_TEXT
    else:
        known = TokenizerVocabulary(name)
        rust, eos = known.tokenizer, known.eos_text
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=rust,
        bos_token=eos,
        eos_token=eos,
        pad_token=eos,
        clean_up_tokenization_spaces=False,
    )


def byte_tokenizer() -> Tokenizer:
    """The `bytes` tokenizer in the `tokenizers` format: same ids, 0..255 for bytes, then the end.

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
    return tokenizer
