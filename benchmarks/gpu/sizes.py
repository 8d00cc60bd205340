"""How large everything is: for an accelerator, or as the processor's twin, which takes seconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from host.runtime.compute_pool import available
from protocol.project import ConfigValue, InnerSpec

SizesName = Literal["full", "small"]


@dataclass(frozen=True, slots=True)
class Model:
    """A model by its configuration; its weights are random."""

    name: str
    architecture: str
    config: dict[str, ConfigValue]


@dataclass(frozen=True, slots=True)
class Sizes:
    """One way to run the checks."""

    name: SizesName
    model: Model
    """Of the checks that name no other."""
    stall_models: tuple[Model, ...]
    adapter_model: Model
    swarm_model: Model
    memory_model: Model
    """Of a wide vocabulary, so that a batch takes more than the weights do."""
    sequence_tokens: int
    batch_sequences: int
    micro_batch: int
    """Sequences at once, unless a check says otherwise: so few that plain torch, which holds all
    logits of them, does not need a larger card."""
    fragments: int
    local_steps: int
    """H: what captures and deliveries are spread over."""
    loss_steps: int
    """Local steps of a loss curve."""
    warm_steps: int
    timed_steps: int
    turns: int
    """Of each side, where two are compared."""
    captures: int
    threads: int | None
    """Of the processor for each trainer; None: all that there are."""
    window_s: float
    """Of training in a swarm, and alone, that is counted."""
    text_chars: int
    adapter_bytes_max: float
    """What an adapter beside the adapter's model may take of the device."""

    @property
    def cores(self) -> int:
        """Threads in numbers."""
        return self.threads or available()

    @property
    def inner(self) -> InnerSpec:
        """AdamW at a rate that does not change."""
        return InnerSpec(
            optimizer="adamw",
            learning_rate=3e-4,
            weight_decay=0.1,
            beta1=0.9,
            beta2=0.95,
            grad_norm_max=1.0,
            batch_sequences=self.batch_sequences,
            warmup_frac=0.0,
            final_learning_rate_frac=1.0,
            fresh_moment_steps=0,
        )


def _llama(name: str, **config: ConfigValue) -> Model:
    return Model(name, "LlamaForCausalLM", {"tie_word_embeddings": True, **config})


def _qwen(name: str, **config: ConfigValue) -> Model:
    fixed: dict[str, ConfigValue] = {"vocab_size": 151_936, "num_key_value_heads": 8}
    fixed |= {"head_dim": 128, "max_position_embeddings": 4096}
    return Model(name, "Qwen3ForCausalLM", fixed | config)


TINY: Final = _llama(
    "a Llama of 33 thousand parameters",
    vocab_size=257,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=2,
    max_position_embeddings=64,
)

TINY_WIDE: Final = _llama(
    "a Llama of 0.5 million parameters with 16,383 words",
    vocab_size=16_383,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=2,
    max_position_embeddings=64,
)

SMOLLM2_135M: Final = _llama(
    "SmolLM2-135M",
    vocab_size=49_152,
    hidden_size=576,
    intermediate_size=1536,
    num_hidden_layers=30,
    num_attention_heads=9,
    num_key_value_heads=3,
    max_position_embeddings=2048,
)

QWEN3_600M: Final = _qwen(
    "Qwen3-0.6B",
    hidden_size=1024,
    intermediate_size=3072,
    num_hidden_layers=28,
    num_attention_heads=16,
    tie_word_embeddings=True,
)

LLAMA_1B: Final = _llama(
    "Llama-3.2-1B",
    vocab_size=128_256,
    hidden_size=2048,
    intermediate_size=8192,
    num_hidden_layers=16,
    num_attention_heads=32,
    num_key_value_heads=8,
    head_dim=64,
    max_position_embeddings=4096,
)

QWEN3_8B: Final = _qwen(
    "Qwen3-8B",
    hidden_size=4096,
    intermediate_size=12_288,
    num_hidden_layers=36,
    num_attention_heads=32,
    tie_word_embeddings=False,
)

SMALL: Final = Sizes(
    name="small",
    model=TINY,
    stall_models=(TINY,),
    adapter_model=TINY,
    swarm_model=TINY,
    memory_model=TINY_WIDE,
    sequence_tokens=64,
    batch_sequences=8,
    micro_batch=4,
    fragments=3,
    local_steps=6,
    loss_steps=5,
    warm_steps=1,
    timed_steps=3,
    turns=1,
    captures=3,
    threads=1,
    window_s=1.5,
    text_chars=200_000,
    adapter_bytes_max=24e9,
)

FULL: Final = Sizes(
    name="full",
    model=QWEN3_600M,
    stall_models=(QWEN3_600M, LLAMA_1B),
    adapter_model=QWEN3_8B,
    swarm_model=SMOLLM2_135M,
    memory_model=QWEN3_600M,
    sequence_tokens=1024,
    batch_sequences=8,
    micro_batch=2,
    fragments=24,
    local_steps=24,
    loss_steps=60,
    warm_steps=5,
    timed_steps=20,
    turns=2,
    captures=12,
    threads=None,
    window_s=30.0,
    text_chars=4_000_000,
    adapter_bytes_max=24e9,
)

ALL: Final[dict[SizesName, Sizes]] = {"full": FULL, "small": SMALL}
