"""A published model small enough for a test, as a folder that `save_pretrained` wrote."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import torch
import transformers

from node.trainer.base_model import describe, pin
from node.trainer.model import describe_model
from node.trainer.text.tokenizer_files import pin_tokenizer
from node.trainer.tools.export import byte_tokenizer
from protocol.fragments import build_layout
from protocol.project import Genesis, MergeRules
from tests.support.tiny_project import CONFIG, FRAGMENTS, tiny_genesis

VOCABULARY = 272
"""More than the tokenizer has tokens, as published models often have."""

END, END_ID = "<|im_end|>", 257
"""What ends a text here. The tokenizer also has the token that Shoal would guess."""

CHAT = "{% for one in messages %}{{ one['content'] }}<|im_end|>{% endfor %}"

SAMPLING = {"do_sample": True, "temperature": 0.6, "top_p": 0.9, "eos_token_id": [END_ID, 256]}
"""How it is sampled from: two tokens end an answer, of which the configuration knows one."""

SCALED = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}


def base_folder(
    folder: Path,
    *,
    dtype: torch.dtype = torch.bfloat16,
    shard_bytes: int = 60_000,
    seed: int = 7,
    template: str = CHAT,
) -> Path:
    """A Llama of 58 000 parameters with a scaled context, in several files, stored as `dtype`."""
    config = transformers.LlamaConfig(
        **CONFIG | {"vocab_size": VOCABULARY},
        rope_parameters=SCALED,
        bos_token_id=256,
        eos_token_id=[END_ID],
        pad_token_id=None,
    )
    torch.manual_seed(seed)
    model = transformers.LlamaForCausalLM(config)
    for one in model.parameters():
        one.data.mul_(3.0)  # Far from what any seed would draw.
    model.generation_config = transformers.GenerationConfig(**SAMPLING)
    model.to(dtype).save_pretrained(folder, max_shard_size=shard_bytes)
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=byte_tokenizer(), bos_token="<|endoftext|>", eos_token=END
    )
    tokenizer.chat_template = template
    tokenizer.model_max_length = 64
    tokenizer.save_pretrained(folder)
    return folder


def project_from(place: Path, folder: Path) -> Genesis:
    """A project that starts from the model in a folder, with its tokenizer pinned in
    `place / "cache"` and a text in `place`."""
    said = describe(folder)
    model = describe_model(said.architecture, said.config, MergeRules())
    base = pin(folder, model, build_layout(model.tensors, "balanced", FRAGMENTS), "folder:model")
    plain, spec = tiny_genesis(place), pin_tokenizer("base", folder, place / "cache")
    data = msgspec.structs.replace(plain.data, tokenizer="base")
    return msgspec.structs.replace(plain, model=model, base=base, tokenizer=spec, data=data)


def edit_config(folder: Path, **changes: object) -> None:
    """Other values in the folder's `config.json`; None takes a key out."""
    path = folder / "config.json"
    said = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in said.items() if value is not None}))
