"""Makes the trainer: Shoal's own, cut to what fits this machine, or a project's training code.

Also describes such code for signing: its tensors, its data and its first weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final, cast

import msgspec
import torch

from node.trainer import architectures, micro_batch, model
from node.trainer.adapters.four_bits import hold_in_four_bits
from node.trainer.adapters.network import network_of
from node.trainer.builtin import BuiltinTrainer
from node.trainer.images.labels import class_of
from node.trainer.link.messages import Configure
from node.trainer.loop import make_accelerator
from node.trainer.model import Floats, FragmentView, layout_of
from node.trainer.objective import Objective, hidden_tokens, keeps_apart, next_token
from node.trainer.own import installed
from node.trainer.own.interface import HasOwnData, OwnData, Start, TellsLosses, Trainer
from protocol import limits
from protocol.errors import UserError
from protocol.project import DocumentRule, Genesis, InnerSpec, MergeRules, TensorSpec, encode

FOR_WEIGHTS: Final = InnerSpec(
    optimizer="adamw",
    learning_rate=0.001,
    weight_decay=0.0,
    beta1=0.9,
    beta2=0.99,
    grad_norm_max=1.0,
    batch_sequences=1,
    warmup_frac=0.0,
    final_learning_rate_frac=1.0,
    fresh_moment_steps=0,
)
"""Where only weights are wanted, and nobody said how they will be trained."""


def builtin(start: Start) -> BuiltinTrainer:
    """The project's model, with first weights. UserError if it cannot be trained here."""
    genesis, machine = start.genesis, start.machine
    make = BuiltinTrainer if start.sharing is None else _sharded(start)
    with start.phase("model"):
        check_fits(genesis, start.vocabulary_size)
        network = network_of(genesis, start.cache)
        if machine.base_in_4_bits and genesis.adapter is not None:
            hold_in_four_bits(network, start.accelerator.device)
    trainer = make(
        network,
        start.inner,
        accelerator=start.accelerator,
        micro_batch=_micro_batch_max(machine, start.inner),
        objective=_objective(start, network),
        positions=architectures.positions_max(network.config),
        tell=start.tell,
        optimizer_in_8_bits=machine.optimizer_in_8_bits,
    )
    if machine.checkpoints_activations:
        trainer.checkpoint_activations()
    if machine.micro_batch is None:
        with start.phase("dry step"):
            largest = trainer.micro_batch
            found = micro_batch.fit(
                trainer,
                genesis,
                folder=start.cache,
                room_bytes=machine.ram_bytes_max,
                ranks=machine.ranks,
            )
            trainer.micro_batch = micro_batch.even(found, largest)
    if machine.compiles:
        with start.phase("compile"):
            trainer.compile()
            trainer.rehearse(trainer.micro_batch)
            trainer.forget_gradients()
    return trainer


def _sharded(start: Start) -> Callable[..., BuiltinTrainer]:
    """What makes a trainer of this rank's part of the model. UserError where that cannot be."""
    from node.trainer.ranks.sharded import ShardedTrainer

    if start.inner.optimizer == "muon":
        raise UserError(
            "This project trains with Muon, whose steps need whole matrices. Set learner.sharded to"
            " false, or take part in another project."
        )
    if start.machine.base_in_4_bits and start.genesis.adapter is not None:
        raise UserError(
            "A base model in 4 bits is not cut up between devices. Set learner.sharded or"
            " learner.base_in_4_bits to false."
        )
    if start.machine.optimizer_in_8_bits:
        raise UserError(
            "Moments in 8 bits are not cut up between devices. Set learner.sharded or"
            " learner.optimizer_in_8_bits to false."
        )
    assert start.sharing is not None, "there are ranks to share with"
    return partial(ShardedTrainer, group=start.sharing)


def check_fits(genesis: Genesis, vocabulary_size: int) -> None:
    """UserError if the model is not one for the project's data."""
    if genesis.images is not None:
        model.check_sees(genesis.model, genesis.images)
        return
    if genesis.masked is not None:
        vocabulary_size = max(vocabulary_size, genesis.masked.token + 1)
    model.check_fits(genesis.model, genesis.data, vocabulary_size)


def _objective(start: Start, network: torch.nn.Module) -> Objective:
    """What the project's model is to say."""
    genesis, tokens = start.genesis, start.sequence_tokens
    if genesis.images is not None:
        assert start.images is not None, "they are opened before the model"
        return class_of(start.images, genesis.images)
    if genesis.masked is not None:
        vocabulary = start.vocabulary_size
        frac = genesis.masked.frac
        return hidden_tokens(vocabulary=vocabulary, sequence_tokens=tokens, frac=frac)
    require_apart(network, genesis.documents, start.vocabulary_size)
    return next_token(
        network,
        vocabulary=start.vocabulary_size,
        sequence_tokens=tokens,
        documents=genesis.documents,
        z_loss=start.inner.z_loss,
    )


def require_apart(network: torch.nn.Module, documents: DocumentRule, vocabulary_size: int) -> None:
    """UserError if documents are to be separate, and the model cannot read them so."""
    if documents == "separate" and not keeps_apart(network, vocabulary_size):
        raise UserError(
            f"{type(network).__name__} cannot read the documents of a sequence apart from each"
            ' other. Set documents = "joined" under [data], or name another architecture.'
        )


def _micro_batch_max(machine: Configure, inner: InnerSpec) -> int:
    """A rank's whole part of a batch, or what was said."""
    part = -(-inner.batch_sequences // machine.ranks)
    return min(machine.micro_batch or part, part)


def own(place: str, start: Start) -> Trainer:
    """The training code there, with the tensors that the project names.

    UserError if it cannot be made, or has others.
    """
    with start.phase("model"):
        trainer = _called(place, start)
        given = _shapes(trainer, place)
        for spec in start.genesis.model.tensors:
            if given.get(spec.name) != spec.shape:
                found = given.get(spec.name, "none")
                raise UserError(
                    f"The trainer {place} does not make this project's model: the project has"
                    f" a tensor {spec.name} {list(spec.shape)}, the trainer {_shown(found)}."
                    " Install the version that the project's owner used."
                )
    return trainer


def _called(place: str, start: Start) -> Trainer:
    """A new one, as the project's seed makes it."""
    kind = installed.load(place)
    torch.manual_seed(start.seed)
    try:
        return cast(Trainer, kind(start))
    except (TypeError, ValueError, KeyError, LookupError, AttributeError, OSError) as error:
        raise UserError(
            f"The trainer {place} cannot be made ({type(error).__name__}: {error}). Check the"
            " values under [model.config], its data, and the trainer itself."
        ) from error


def _shapes(trainer: Trainer, place: str) -> dict[str, tuple[int, ...]]:
    """Its tensors. UserError if one cannot be a part of a project."""
    tensors = trainer.tensors()
    if not 0 < len(tensors) <= limits.TENSORS_MAX:
        raise UserError(
            f"The trainer {place} has {len(tensors)} tensors; 1 to {limits.TENSORS_MAX} can train."
        )
    for name, one in tensors.items():
        if not isinstance(one, torch.Tensor) or one.dtype != torch.float32:
            raise UserError(f"The trainer {place} gives {name} as no f32 tensor of torch.")
        if not one.is_contiguous() or not one.numel():
            raise UserError(f"The trainer {place} gives {name} empty, or in pieces of memory.")
    return {name: tuple(one.shape) for name, one in tensors.items()}


def _shown(shape: object) -> str:
    return str(list(shape)) if isinstance(shape, tuple) else str(shape)


class Described(msgspec.Struct, frozen=True):
    """What a signed project says of its training code."""

    tensors: tuple[TensorSpec, ...]
    data: OwnData | None
    """None where it brings none."""
    tells_losses: bool
    """Whether it can probe pushes of others."""


def describe(place: str, blank: Genesis, rules: MergeRules, cache: Path) -> Described:
    """Tensors and data of the training code there.

    blank: the project, whose tensor table is empty yet. A class may say in `tables` which tensors
    are merged like embeddings. UserError if it cannot be made.
    """
    with _on_this_machine(blank, cache) as start:
        trainer = _called(place, start)
        shapes = _shapes(trainer, place)
        tables = frozenset(getattr(trainer, "tables", ()))
        if unknown := sorted(tables - set(shapes)):
            raise UserError(f"The trainer {place} names a table {unknown[0]} that it has not.")
        specs = tuple(
            TensorSpec(name, shape, model.rule_of(len(shape), name in tables, rules))
            for name, shape in shapes.items()
        )
        holder: object = trainer
        data = OwnData(*holder.data()) if isinstance(holder, HasOwnData) else None
        return Described(specs, data, isinstance(holder, TellsLosses))


def first_weights(place: str, genesis: Genesis, cache: Path) -> list[Floats]:
    """Version 0 of every fragment, f32 [numel], as the training code draws it from the seed.

    UserError as in `own`.
    """
    with _on_this_machine(genesis, cache) as start:
        trainer = own(place, start)
        return FragmentView(trainer.tensors(), layout_of(genesis)).copies()


@contextmanager
def _on_this_machine(genesis: Genesis, cache: Path) -> Iterator[Start]:
    """A start on the processor, by whoever signs a project or makes its first weights."""
    with torch.random.fork_rng(devices=[]):
        yield Start(
            genesis=genesis,
            inner=FOR_WEIGHTS,
            accelerator=make_accelerator("cpu"),
            machine=Configure(encode(genesis), b"", str(cache), threads=1, device="cpu"),
            vocabulary_size=0,
            phase=_unmeasured,
            tell=lambda words: None,
        )


@contextmanager
def _unmeasured(name: str) -> Iterator[None]:
    yield
