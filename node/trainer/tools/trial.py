"""A trial of this machine: `python -m node.trainer.tools.trial`, wish on stdin, answer on stdout.

A few local steps of a model on random text, to learn whether the device works, how fast it is and
how much memory it takes, before anything is joined. A process of its own, because it may be killed
for the memory it takes, and a device may hang.
"""

from __future__ import annotations

import resource
import sys
import time
from typing import Final

import msgspec

from node.trainer.failures import failure_of, is_out_of_memory
from node.trainer.link.messages import Configure
from node.trainer.tools.trial_facts import TrialAnswer as Answer
from node.trainer.tools.trial_facts import TrialWish as Wish
from protocol import decoders
from protocol.errors import ShoalError, UserError
from protocol.project import ModelSpec

STEP_S: Final = 4.0
"""A step takes at most about so long, by taking fewer sequences at once."""

STEPS: Final = 3
WISH_BYTES_MAX: Final = 64 << 20


class _RandomText:
    """Sequences of random tokens, as many as anybody asks for."""

    def __init__(self, vocabulary: int, tokens: int) -> None:
        import numpy as np

        self._draw = np.random.default_rng(0).integers
        self._vocabulary, self._tokens = vocabulary, tokens

    def sequences(self, position: int) -> object:
        """A block of one sequence, [1, tokens + 1]."""
        return self._draw(0, self._vocabulary, size=(1, self._tokens + 1))


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

    from node.trainer import decoder, loop, model
    from node.trainer.adapters.network import stand_in
    from node.trainer.text import reader

    answer.torch = str(torch.__version__)
    torch.set_num_threads(wish.threads)
    accelerator = loop.make_accelerator(wish.device)
    answer.device = str(accelerator.device)
    answer.is_bf16 = accelerator.mixed_precision == "bf16"
    _name_device(answer)
    spec = ModelSpec(wish.architecture, wish.config, ())
    if wish.adapter is None:
        network = model.build_model(spec, seed=0)
    else:
        network = stand_in(spec, wish.adapter)
    trained = (tensor for tensor in network.parameters() if tensor.requires_grad)
    answer.parameters = sum(tensor.numel() for tensor in trained)
    text = _RandomText(int(network.config.vocab_size), wish.sequence_tokens)
    blocks = reader.BlockReader(text, block_sequences=1)  # type: ignore[arg-type]
    blocks.append(((0, 1 << 20),))
    one = msgspec.structs.replace(wish.inner, batch_sequences=1)
    inner = decoder.decoder_loop(network, blocks, one, accelerator=accelerator)
    inner.step()
    first_s = inner.step().work_s
    _measure(inner, wish, answer, first_s)


def _measure(inner: object, wish: Wish, answer: Answer, first_s: float) -> None:
    """Steps with as many sequences at once as memory and time allow."""
    from node.trainer.decoder import DecoderTrainer
    from node.trainer.loop import InnerLoop

    assert isinstance(inner, InnerLoop)
    assert isinstance(inner.trainer, DecoderTrainer)
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
