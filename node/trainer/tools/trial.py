"""A trial of this machine: `python -m node.trainer.tools.trial`, wish on stdin, answer on stdout.

A few local steps of a model on random text, to learn whether the device works, how fast it is and
how much memory it takes, before anything is joined. A process of its own, because it may be killed
for the memory it takes, and a device may hang.
"""

from __future__ import annotations

import resource
import sys
import time
from typing import TYPE_CHECKING, Final

import msgspec

from node.trainer.failures import failure_of, is_out_of_memory
from node.trainer.link.messages import Configure
from node.trainer.tools.trial_facts import TrialAnswer as Answer
from node.trainer.tools.trial_facts import TrialWish as Wish
from protocol import decoders
from protocol.errors import ShoalError, UserError
from protocol.project import ImageSpec, ModelSpec

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from node.trainer.images.decoding import Pixels
    from node.trainer.objective import Objective
    from node.trainer.own.interface import Samples

STEP_S: Final = 4.0
"""A step takes at most about so long, by taking fewer sequences at once."""

STEPS: Final = 3
WISH_BYTES_MAX: Final = 64 << 20


class _Random:
    """Samples without a meaning, as many as anybody asks for."""

    def __init__(self, objective: Objective) -> None:
        self._objective = objective

    def sequences(self, position: int) -> Samples:
        """A block of one sample."""
        return self._objective.blank(1)


class _RandomImages:
    """Images without a meaning, of the size that a project wants."""

    def __init__(self, spec: ImageSpec) -> None:
        self._spec = spec

    def look(self, numbers: Samples) -> tuple[Pixels, Samples]:
        """Pixels and classes, as `labels.Images` has them."""
        import numpy as np

        draw = np.random.default_rng(0).integers
        size = (len(numbers), self._spec.channels, self._spec.height, self._spec.width)
        classes = draw(0, len(self._spec.classes), size=len(numbers))
        return draw(0, 256, size=size, dtype=np.uint8), classes


def try_out(wish: Wish) -> Answer:
    """Runs the trial. What goes wrong is in the answer."""
    answer = Answer()
    try:
        _prepare(wish, answer)
    except (ShoalError, RuntimeError, MemoryError, ValueError, AssertionError) as error:
        answer.trouble = failure_of(error).message
        answer.is_out_of_memory = is_out_of_memory(error)
    return answer


def _prepare(wish: Wish, answer: Answer) -> None:
    import torch

    from node.trainer import builtin, loop, model
    from node.trainer.adapters import four_bits
    from node.trainer.adapters.network import stand_in
    from node.trainer.text import reader

    answer.torch = str(torch.__version__)
    torch.set_num_threads(wish.threads)
    spec = ModelSpec(wish.architecture, wish.config, ())
    adapter = wish.adapter
    network = stand_in(spec, adapter) if adapter else model.build_model(spec, seed=0)
    accelerator = loop.make_accelerator(
        wish.device,
        parameters=sum(tensor.numel() for tensor in network.parameters()),
        in_f32=wish.in_f32,
    )
    answer.device = str(accelerator.device)
    answer.is_bf16 = accelerator.mixed_precision == "bf16"
    _name_device(answer)
    if adapter and wish.base_in_4_bits:
        four_bits.hold_in_four_bits(network, accelerator.device)
    trained = (tensor for tensor in network.parameters() if tensor.requires_grad)
    answer.parameters = sum(tensor.numel() for tensor in trained)
    objective = _objective(wish, network)
    blocks = reader.BlockReader(
        _Random(objective), block_sequences=1, sample_tokens=wish.sequence_tokens
    )
    blocks.append(((0, 1 << 20),))
    one = msgspec.structs.replace(wish.inner, batch_sequences=1)
    inner = builtin.builtin_loop(
        network,
        blocks,
        one,
        accelerator=accelerator,
        objective=objective,
        optimizer_in_8_bits=wish.optimizer_in_8_bits,
    )
    inner.step()
    first_s = inner.step().work_s
    _measure(inner, wish, answer, first_s)


def _objective(wish: Wish, network: PreTrainedModel) -> Objective:
    """What the model is to say, of samples without a meaning."""
    from node.trainer.images.labels import class_of
    from node.trainer.objective import hidden_tokens, next_token

    if wish.images is not None:
        return class_of(_RandomImages(wish.images), wish.images)
    vocabulary, tokens = int(network.config.vocab_size), wish.sequence_tokens
    if wish.masked is not None:
        return hidden_tokens(vocabulary=vocabulary, sequence_tokens=tokens, frac=wish.masked.frac)
    return next_token(
        network, vocabulary=vocabulary, sequence_tokens=tokens, documents=wish.documents
    )


def _measure(inner: object, wish: Wish, answer: Answer, first_s: float) -> None:
    """Steps with as many sequences at once as memory and time allow."""
    from node.trainer.builtin import BuiltinTrainer
    from node.trainer.loop import InnerLoop

    assert isinstance(inner, InnerLoop)
    assert isinstance(inner.trainer, BuiltinTrainer)
    sequences = max(1, min(wish.inner.batch_sequences, int(STEP_S / max(first_s, 1e-6))))
    while True:
        inner.inner = msgspec.structs.replace(wish.inner, batch_sequences=sequences)
        inner.trainer.micro_batch = sequences
        try:
            inner.step()
            took = sorted(_timed(inner) for _ in range(STEPS))
        except (RuntimeError, MemoryError) as error:
            if sequences == 1 or not is_out_of_memory(error):
                raise
            sequences //= 2
            continue
        answer.sequences = sequences
        answer.tokens_per_s = sequences * wish.sequence_tokens / took[len(took) // 2]
        answer.memory_bytes = _memory_bytes(answer.device)
        return


def _timed(inner: object) -> float:
    started = time.monotonic()
    float(inner.step().loss)  # type: ignore[attr-defined]
    return time.monotonic() - started


def _name_device(answer: Answer) -> None:
    import torch

    if answer.device.startswith("cuda"):
        answer.device_name = torch.cuda.get_device_name(answer.device)
        answer.device_bytes = torch.cuda.get_device_properties(answer.device).total_memory
        hip = getattr(torch.version, "hip", None)
        answer.backend = f"ROCm {hip}" if hip else f"CUDA {torch.version.cuda}"
    elif answer.device.startswith("mps"):
        answer.device_name, answer.backend = "Apple GPU", "Metal"
    elif answer.device.startswith("xpu"):
        answer.device_name, answer.backend = torch.xpu.get_device_name(), "XPU"


def _memory_bytes(device: str) -> int:
    """The most that was taken so far."""
    import torch

    if device.startswith("cuda"):
        return int(torch.cuda.max_memory_reserved(device))
    kib = 1024 if sys.platform == "linux" else 1
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * kib


def main() -> int:
    """The exit code; 2 for a wish that cannot be read."""
    from node.trainer.main import be_quiet
    from node.trainer.setup import limit_resources

    be_quiet()
    try:
        wish = decoders.json_decoder(Wish).decode(sys.stdin.buffer.read(WISH_BYTES_MAX))
    except msgspec.MsgspecError as error:
        print(error, file=sys.stderr)
        return UserError.exit_code
    limit_resources(
        Configure(genesis=b"", inner=b"", data_cache="", threads=wish.threads, nice=wish.nice)
    )
    sys.stdout.buffer.write(msgspec.json.encode(try_out(wish)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
