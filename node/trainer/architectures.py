"""What of `transformers` a project may name: models of its registries, and values.

Three registries count: causal decoders, encoders that say hidden tokens (masked language
modelling), and classifiers of images.

A project names an architecture by its `model_type` or by the class that models have, and gives
configuration values. Nothing here loads code, weights or kernels, and no value can make
`transformers` do so: only what the architecture's own configuration class declares is accepted,
words hold no path and no address, and everything is bounded before anything is built.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import huggingface_hub.errors
import transformers

from protocol import project
from protocol.errors import UserError

# `transformers` looks at this when the first model is imported, which happens below in functions.
os.environ["USE_HUB_KERNELS"] = "NO"

LAYERS_MAX: Final = 1024
"""Of layers, experts and everything else of which a model is built one by one, even without
weights; more is a mistake or an attack. Also entries of a list."""

SIZE_MAX: Final = 1 << 28
"""Bound of every other whole number in a configuration."""

MODULES_MAX: Final = 1 << 16
"""Layers times experts: the largest published models have about a third of this."""

KEYS_MAX: Final = 256
"""Values in a configuration, nested ones included; lists count as one."""

_WORD: Final = re.compile(r"[A-Za-z0-9_.+ -]{0,64}")
"""Neither a path nor a repository nor an address."""

Task = Literal["causal", "masked", "images"]
"""What a model is trained to say: the next token, hidden tokens, the class of an image."""

TASKS: Final[tuple[Task, ...]] = ("causal", "masked", "images")
"""In the order in which a `model_type` that is in several registries is looked up."""

NUM_LABELS: Final = "num_labels"
"""The key for the number of classes."""

_ENCODER: Final = "reads text in both directions, so it cannot be trained to go on with a text"
_HALF: Final = "is one half of a model of two, and attends to what the other half says"
_KERNELS: Final = "loads compiled kernels by itself"
_BESIDE: Final = "reads more than token ids"

DENIED: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        [
            "bert",
            "bert-generation",
            "big_bird",
            "camembert",
            "cpmant",
            "data2vec-text",
            "electra",
            "ernie",
            "megatron-bert",
            "reformer",
            "rembert",
            "roberta",
            "roberta-prelayernorm",
            "roc_bert",
            "roformer",
            "xlm",
            "xlm-roberta",
            "xlm-roberta-xl",
            "xlnet",
            "xmod",
        ],
        _ENCODER,
    ),
    **dict.fromkeys(
        [
            "bart",
            "bigbird_pegasus",
            "blenderbot",
            "blenderbot-small",
            "marian",
            "mbart",
            "mvp",
            "pegasus",
            "plbart",
            "prophetnet",
            "trocr",
            "whisper",
        ],
        _HALF,
    ),
    "rwkv": _KERNELS,
}
"""Causal decoders of the registry that are not for projects, by `model_type`, and why."""

DENIED_FOR: Final[Mapping[Task, Mapping[str, str]]] = {
    "causal": DENIED,
    "masked": {
        **dict.fromkeys(["bart", "mbart", "mvp"], _HALF),
        **dict.fromkeys(["mra", "yoso"], _KERNELS),
        **dict.fromkeys(["layoutlm", "luke", "tapas"], _BESIDE),
        "big_bird": "draws at random which tokens attend to which",
        "perceiver": "reads bytes in a way of its own",
        "reformer": "needs sequences of a length that its other values decide",
        "xmod": "must be told the language of each text",
    },
    "images": {
        "dinat": "needs a library of compiled kernels",
        "imagegpt": "reads colours as tokens",
        "perceiver": "has several classifiers, which its configuration does not tell apart",
        "pp_lcnet": "gives no logits",
        "timm_wrapper": "takes its model from another library, which may download it",
    },
}
"""The same for every registry."""

_FORBIDDEN: Final = frozenset(
    [
        "add_cross_attention",
        "auto_map",
        "backbone",
        "backbone_config",
        "encoder_config",
        "is_decoder",
        "is_encoder_decoder",
        "kernel_config",
        "pruned_heads",
        "quantization_config",
        "text_config",
        "trust_remote_code",
        "use_cache",
        "use_pretrained_backbone",
        "use_timm_backbone",
        "vision_config",
    ]
)
"""Keys that no project sets, whatever declares them: what could load something, and what makes
another kind of model."""

_READ: Final = re.compile(r'\bconfig\.([a-z]\w*)\b(?!\()|getattr\((?:self\.)?config, "([a-z]\w*)"')
"""Where the source of a model reads a value of its configuration."""

_SPECIAL_TOKENS: Final = frozenset({"bos_token_id", "eos_token_id", "pad_token_id"})
_ROPE: Final = frozenset(
    [
        "partial_rotary_factor",
        "rope_local_base_freq",
        "rope_scaling",
        "rope_theta",
        "rotary_emb_base",
        "rotary_pct",
    ]
)
"""Former spellings of what `rope_parameters` holds; `transformers` reads them still."""

_OF_TEXT: Final = _SPECIAL_TOKENS | {"tie_word_embeddings"}
_OF_IMAGES: Final = frozenset({NUM_LABELS})

_SIZES: Final = frozenset({"n_ctx", "n_embd", "n_inner", "n_positions", NUM_LABELS})
"""Begin like counts and are none."""

REFUSALS: Final = (
    LookupError,
    ValueError,
    TypeError,
    AttributeError,
    AssertionError,
    ArithmeticError,
    huggingface_hub.errors.StrictDataclassError,
)
"""What `transformers` raises for a configuration that it cannot use."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """One architecture of the registry."""

    name: str
    """As the project says it."""
    model: type[transformers.PreTrainedModel]
    config: type[transformers.PreTrainedConfig]
    keys: frozenset[str]
    """Accepted configuration keys."""
    positions_key: str
    """The key that bounds the length of a sequence, if one does."""
    task: Task = "causal"


@functools.cache
def registry(task: Task = "causal") -> Mapping[str, str]:
    """The class of every model for this task that `transformers` has, by `model_type`."""
    auto = transformers.models.auto.modeling_auto
    named: dict[Task, Mapping[str, str | tuple[str, ...]]] = {
        "causal": auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        "masked": auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
        "images": auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES,
    }
    # Of several classes the first is the plain one.
    return {key: one if isinstance(one, str) else one[0] for key, one in named[task].items()}


def supported(task: Task = "causal") -> list[str]:
    """Every `model_type` of the registry that is not denied, sorted; one may still be refused for
    what its configuration is made of, or for what it keeps beside its weights."""
    return sorted(set(registry(task)) - set(DENIED_FOR[task]))


@functools.cache
def find(name: str) -> Architecture:
    """The architecture that a project names. UserError if it is not one for projects."""
    known = [(task, found) for task in TASKS if (found := _model_type(name, task)) is not None]
    if not known:
        raise UserError(
            f"The architecture {name!r} is not supported by transformers"
            f" {transformers.__version__}. Name the model_type of a causal decoder, such as llama,"
            " or its class, such as LlamaForCausalLM; an encoder that says hidden tokens, such as"
            " BertForMaskedLM; or a classifier of images, such as ViTForImageClassification."
        )
    # A decoder that is denied for being an encoder is one of those.
    task, model_type = next((one for one in known if one[1] not in DENIED_FOR[one[0]]), known[-1])
    if (why := DENIED_FOR[task].get(model_type)) is not None:
        raise UserError(f"The architecture {name!r} {why}. Name {_EXAMPLES[task]}.")
    model = getattr(transformers, registry(task)[model_type])
    config = transformers.CONFIG_MAPPING[model_type]
    if config.sub_configs:
        other = f"the one for text, {model_type}_text, if there is one"
        raise UserError(
            f"The architecture {name!r} is made of several models with a configuration each. Name"
            f" {_EXAMPLES[task] if task == 'images' else other}."
        )
    return Architecture(
        name,
        model,
        config,
        _keys(config, model, task),
        str(_alias(config, "max_position_embeddings")),
        task,
    )


_EXAMPLES: Final[Mapping[Task, str]] = {
    "causal": "a causal decoder, such as llama",
    "masked": "an encoder that says hidden tokens, such as BertForMaskedLM",
    "images": "a classifier of images, such as ViTForImageClassification",
}


def _model_type(name: str, task: Task) -> str | None:
    """Of a name that is one, or that is the class of one."""
    if name in registry(task):
        return name
    types = [key for key, known in registry(task).items() if known == name]
    if not types:
        return None
    own = str(getattr(transformers, name).config_class.model_type)
    return own if own in types else types[0]


def name_of(config: transformers.PreTrainedConfig, said: Iterable[str] = ()) -> str:
    """How a project names the architecture of this configuration: by class, where that says it.

    said: the classes that its file names; one that a project may name counts, otherwise the
    `model_type`. UserError if it is not one for projects.
    """
    by_class = [
        one
        for one in said
        if any(
            one in registry(task).values() and _model_type(one, task) == config.model_type
            for task in TASKS
        )
    ]
    known = find(by_class[0] if by_class else config.model_type)
    is_said = known.model.config_class is known.config
    return known.model.__name__ if is_said else str(config.model_type)


def _keys(
    config: type[transformers.PreTrainedConfig],
    model: type[transformers.PreTrainedModel],
    task: Task,
) -> frozenset[str]:
    """What the configuration class declares, what that stands for, and what the model reads of it
    without a declaration, such as `head_dim`."""
    common = {field.name for field in dataclasses.fields(transformers.PreTrainedConfig)}
    own = {field.name for field in dataclasses.fields(config)} - common
    source = inspect.getsource(sys.modules[model.__module__])
    read = {one or other for one, other in _READ.findall(source)}
    own |= {key for key in read - common if not hasattr(transformers.PreTrainedConfig, key)}
    rope = _ROPE if "rope_parameters" in own else frozenset()
    known = own | rope | (_OF_IMAGES if task == "images" else _OF_TEXT)
    return frozenset(key for key in known - _FORBIDDEN if not key.startswith("_"))


def _alias(config: type[transformers.PreTrainedConfig], key: str) -> object:
    return config.attribute_map.get(key, key)


def declared(architecture: Architecture, said: Mapping[str, Any]) -> dict[str, Any]:
    """What is said of the keys that a project may set, under the names by which it sets them.

    `transformers` writes some values under another name than the class declares: `num_experts` of
    Qwen3-MoE as `num_local_experts`.
    """
    names, keys = architecture.config.attribute_map.items(), architecture.keys
    own = {stored: name for name, stored in names if stored not in keys and name in keys}
    return {own.get(key, key): value for key, value in said.items() if own.get(key, key) in keys}


def bookkeeping() -> frozenset[str]:
    """Keys of a `config.json` that say nothing of the model itself."""
    common = {field.name for field in dataclasses.fields(transformers.PreTrainedConfig)}
    return frozenset(common | {"model_type", "torch_dtype", "use_cache", "_name_or_path"})


def configuration(spec: project.ModelSpec) -> transformers.PreTrainedConfig:
    """The configuration object of a model. UserError if the architecture or a value is refused."""
    architecture = find(spec.architecture)
    unknown = sorted(set(spec.config) - architecture.keys)
    if unknown:
        raise UserError(
            f"{spec.architecture} has no configuration key {unknown[0]!r} that a project may set."
            f" Allowed are {', '.join(sorted(architecture.keys))}."
        )
    check_values(spec.config)
    values: dict[str, Any] = {}
    if architecture.task != "images":
        values = dict.fromkeys(_SPECIAL_TOKENS)
    values |= spec.config
    attention = "sdpa" if getattr(architecture.model, "_supports_sdpa", False) else "eager"
    try:
        built = architecture.config(**values, attn_implementation=attention)
    except REFUSALS as error:
        words = " ".join(str(error).split())  # Theirs come on several lines.
        raise UserError(
            f"{spec.architecture} refuses this configuration ({words}). Correct the values under"
            " [model.config]."
        ) from error
    if architecture.task == "masked" and built.model_type in _NEED_PADDING:
        _require_padding(built, spec.architecture)
    if built.is_encoder_decoder:
        raise UserError(f"The architecture {spec.architecture!r} {_HALF}. Name a causal decoder.")
    return built


def _require_padding(config: transformers.PreTrainedConfig, name: str) -> None:
    if config.pad_token_id is None:
        raise UserError(
            f"{name} needs pad_token_id under [model.config]: the id of a token that is never in"
            " the text."
        )


_PADDED: Final = frozenset(
    [
        "camembert",
        "data2vec-text",
        "ibert",
        "longformer",
        "mpnet",
        "roberta",
        "roberta-prelayernorm",
        "xlm-roberta",
        "xlm-roberta-xl",
    ]
)
"""Count positions from behind the id of the padding token."""

_NEED_PADDING: Final = _PADDED | {"flaubert", "xlm"}
"""Cannot do without the id of a padding token, even if there is none in the text."""


def positions_max(config: transformers.PreTrainedConfig) -> int | None:
    """Tokens in a sequence at most; None where the architecture has no such bound."""
    found = getattr(config, "max_position_embeddings", None)
    if not isinstance(found, int) or found <= 0:
        return None
    if config.model_type in _PADDED:
        found -= config.pad_token_id + 1
    return found


def check_values(config: Mapping[str, project.ConfigValue]) -> None:
    """UserError for a value that is not plain or out of bounds, nested ones included."""
    leaves = list(_leaves(config))
    if len(leaves) > KEYS_MAX:
        raise UserError(f"The configuration has more than {KEYS_MAX} values.")
    for key, value in leaves:
        for one in _entries(key, value):
            _check_value(key, one)
    modules = _largest(leaves, "layer") * _largest(leaves, "expert")
    if modules > MODULES_MAX:
        raise UserError(
            f"The configuration has layers times experts {modules:,}, more than {MODULES_MAX:,}."
        )


def _largest(leaves: list[tuple[str, object]], word: str) -> int:
    """The largest count among the keys that have this word, at least 1."""
    found = [value for key, value in leaves if word in key and isinstance(value, int)]
    return max([1, *(value for value in found if value <= LAYERS_MAX)])


def _leaves(values: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, object]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def _entries(key: str, value: object) -> list[object]:
    if not isinstance(value, list):
        return [value]
    if len(value) > LAYERS_MAX:
        raise UserError(f"The configuration key {key!r} has a list of more than {LAYERS_MAX}.")
    return value


def _check_value(key: str, value: object) -> None:
    if isinstance(value, dict | list):
        raise UserError(f"The configuration key {key!r} takes plain values, no lists of lists.")
    if isinstance(value, bool) or value is None:
        return
    if isinstance(value, int):
        least, most = (-1 if key.endswith("_token_id") else 0), _bound(key)
        if not least <= value <= most:
            raise UserError(
                f"The configuration value {key} = {value} is not between {least} and {most}."
            )
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise UserError(f"The configuration value {key} = {value} is not a finite number.")
    elif _WORD.fullmatch(str(value)) is None:
        raise UserError(
            f"The configuration value {key} = {str(value)[:80]!r} is not one plain word. Nothing"
            " in a project's configuration names a file or an address."
        )


def _bound(key: str) -> int:
    """Of a whole number under this key: whatever may count modules is bounded as such."""
    name = key.rpartition(".")[2]
    is_count = name.startswith(("num_", "n_")) or "layer" in name or "expert" in name
    is_size = name in _SIZES or name.endswith(("_size", "_dim", "_tokens", "_rank"))
    return LAYERS_MAX if is_count and not is_size else SIZE_MAX
