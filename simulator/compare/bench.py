"""The real parts of a comparison: one project's model, text and inner loop, in this process.

Everything here is what the daemons use: `node.trainer` builds the model, reads the text and takes
the local steps. Nothing here knows how learners work together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np
import torch

from node.trainer.builtin import BuiltinTrainer, builtin_loop
from node.trainer.loop import InnerLoop, make_accelerator
from node.trainer.model import FragmentView, build_model, layout_of
from node.trainer.objective import LossSum
from node.trainer.text.corpus import Corpus, open_corpus
from node.trainer.text.reader import BlockReader, Sequences
from protocol.fragments import Layout
from protocol.numerics.codecs import F32, flush
from protocol.project import Charter, Genesis, InnerSpec, ModelSpec
from simulator.compare.tasks import scores


@dataclass(slots=True)
class Bench:
    """One project, opened: what every run of a comparison shares."""

    genesis: Genesis
    """With the merge rules of the algorithm at work, which need not be the model's own."""
    charter: Charter
    model: ModelSpec
    corpus: Corpus
    layout: Layout
    heldout: Sequences
    first: list[F32] = field(default_factory=list)
    """Version 0 of every fragment; the same for all algorithms of a seed."""

    @property
    def sequence_tokens(self) -> int:
        return self.genesis.data.sequence_tokens

    def reader(self, first_block: int, blocks: int) -> BlockReader:
        """A place in the text: `blocks` positions from `first_block` on; none if `blocks` is 0."""
        reader = BlockReader(self.corpus, block_sequences=self.genesis.data.block_sequences)
        if blocks:
            reader.append(((first_block, first_block + blocks),))
        return reader

    def loop(
        self,
        reader: BlockReader | None = None,
        inner: InnerSpec | None = None,
        *,
        micro_batch: int | None = None,
        loss_sum: LossSum | None = None,
    ) -> InnerLoop[BuiltinTrainer]:
        """An inner loop at version 0, with fresh moments; without a reader it only evaluates."""
        model = build_model(self.model, seed=self.genesis.seed)
        loop = builtin_loop(
            model,
            reader or self.reader(0, 0),
            inner or self.charter.inner,
            accelerator=make_accelerator("cpu"),
            micro_batch=micro_batch,
            loss_sum=loss_sum,
            documents=self.genesis.documents,
        )
        view = FragmentView(loop.trainer.model, self.layout)
        for index, values in enumerate(self.first):
            view.write(index, values)
        return loop

    def heldout_loss(self, loop: InnerLoop[BuiltinTrainer], fragments: Sequence[F32]) -> float:
        """Nats per token on held-out text of the model with these fragments."""
        values = np.concatenate(list(fragments))
        return loop.evaluate(self.heldout, layout=self.layout, values=values)

    def task_scores(
        self, loop: InnerLoop[BuiltinTrainer], fragments: Sequence[F32]
    ) -> dict[str, float]:
        """Of each task, the share of questions that the model with these fragments has right; none
        where its tokens are no bytes."""
        if self.genesis.data.tokenizer != "bytes":
            return {}
        with loop.other(self.layout, np.concatenate(list(fragments))) as trainer:
            return scores(trainer.model, self.heldout)


def open_bench(genesis: Genesis, charter: Charter, cache: Path) -> Bench:
    """Opens the text and draws version 0. One thread, so that a seed gives one result.

    UserError if the text cannot be read or the model not be built.
    """
    torch.set_num_threads(1)
    bare = msgspec.structs.replace(genesis.model, tensors=())
    corpus = open_corpus(
        genesis.data,
        seed=genesis.seed,
        cache=cache,
        tokenizer=genesis.tokenizer,
        documents=genesis.documents,
    )
    bench = Bench(
        genesis=genesis,
        charter=charter,
        model=bare,
        corpus=corpus,
        layout=layout_of(genesis),
        heldout=corpus.heldout(charter.limits.heldout_sequences),
    )
    bench.first = FragmentView(build_model(bare, seed=genesis.seed), bench.layout).copies()
    for values in bench.first:
        flush(values)
    return bench
