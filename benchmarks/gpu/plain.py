"""Local steps as anybody would write them with torch and transformers: the yardstick."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch.nn import functional

from benchmarks.gpu.workplace import BLOCKS, Workplace
from node.trainer.model import build_model
from node.trainer.text.corpus import open_corpus
from node.trainer.text.reader import BlockReader
from protocol.project import Genesis


class PlainLoop:
    """The same model, first weights, text, batch and optimizer; nothing else of Shoal."""

    def __init__(
        self,
        place: Workplace,
        genesis: Genesis,
        device: torch.device,
        *,
        micro_batch: int,
        is_bf16: bool,
    ) -> None:
        """is_bf16: whether passes run under autocast."""
        self._inner = place.sizes.inner
        self._device, self._micro_batch, self._is_bf16 = device, micro_batch, is_bf16
        corpus = open_corpus(genesis.data, seed=genesis.seed, cache=place.folder / "cache")
        self._reader = BlockReader(corpus, block_sequences=genesis.data.block_sequences)
        self._reader.append(((0, BLOCKS),))
        self._model = build_model(genesis.model, seed=genesis.seed).to(device).train()
        every: list[Any] = list(self._model.parameters())
        groups: list[dict[str, Any]] = [
            {"params": [one for one in every if one.dim() > 1]},
            {"params": [one for one in every if one.dim() <= 1], "weight_decay": 0.0},
        ]
        self._optimizer = torch.optim.AdamW(
            groups,
            lr=self._inner.learning_rate,
            betas=(self._inner.beta1, self._inner.beta2),
            weight_decay=self._inner.weight_decay,
            fused=True,
        )

    def step(self) -> float:
        """One batch: its mean loss in nats per token."""
        batch = torch.from_numpy(self._reader.take(self._inner.batch_sequences)).to(self._device)
        total = 0.0
        for first in range(0, len(batch), self._micro_batch):
            piece = batch[first : first + self._micro_batch]
            with self._autocast():
                logits = self._model(input_ids=piece[:, :-1], use_cache=False).logits
                flat = logits.float().reshape(-1, logits.shape[-1])
                loss = functional.cross_entropy(flat, piece[:, 1:].reshape(-1), reduction="sum")
                loss = loss / batch[:, 1:].numel()
            loss.backward()
            total += float(loss.detach())
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), self._inner.grad_norm_max)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return total

    def _autocast(self) -> contextlib.AbstractContextManager[None]:
        if not self._is_bf16:
            return contextlib.nullcontext()
        return torch.autocast(self._device.type, dtype=torch.bfloat16)
