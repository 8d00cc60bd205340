"""What a trial of this machine is asked and what it answers; light, for the command that asks."""

from __future__ import annotations

from msgspec import Struct

from protocol.project import (
    AdapterSpec,
    ConfigValue,
    DocumentRule,
    ImageSpec,
    InnerSpec,
    MaskedSpec,
)


class TrialWish(Struct, kw_only=True):
    """What to try."""

    architecture: str
    config: dict[str, ConfigValue]
    inner: InnerSpec
    sequence_tokens: int
    adapter: AdapterSpec | None = None
    """Trained beside the frozen model; without its tables."""
    base_in_4_bits: bool = False
    optimizer_in_8_bits: bool = False
    masked: MaskedSpec | None = None
    """How hidden tokens are asked for, of an encoder."""
    documents: DocumentRule = None
    """How a decoder reads them."""
    images: ImageSpec | None = None
    """What a classifier of images is shown."""
    device: str | None = None
    """None: the best there is."""
    in_f32: bool = False
    """Whatever would be faster."""
    threads: int = 1
    nice: int = 0


class TrialAnswer(Struct, kw_only=True, omit_defaults=True):
    """What came of it."""

    torch: str = ""
    device: str = ""
    device_name: str = ""
    backend: str = ""
    """CUDA or ROCm with its version, as torch was built; empty for the processor alone."""
    is_bf16: bool = False
    parameters: int = 0
    sequences: int = 0
    """At once, in the steps that were measured."""
    tokens_per_s: float = 0.0
    memory_bytes: int = 0
    """At the highest: of the device, or of this process where the device is the processor."""
    device_bytes: int = 0
    """Of memory that the device has; 0 for the processor."""
    busy: str = ""
    """That the machine was too busy for a verdict, in words; said by whoever asked."""
    trouble: str = ""
    """Why it stopped early; what was found until then holds."""
    is_out_of_memory: bool = False
