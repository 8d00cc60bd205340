"""What the owner of this machine decided about training here: the text, the device, the share."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from host.files.keystore import Identity
from host.files.local_settings import Settings
from host.files.shard_files import learners_folder
from host.options import NodeOptions
from node.governor.budget import threads_for
from node.governor.governor import device_wanted
from node.trainer.link.messages import Configure
from node.trainer.own import installed
from protocol import limits, wire
from protocol.errors import UserError
from protocol.project import DataSpec, Genesis, MixedSource, hub_data, hub_name, is_files, on_hub

log = logging.getLogger("shoal.node")


def data_location(options: NodeOptions, genesis: Genesis) -> str:
    """Where the training text lies here. UserError where that needs the owner's word.

    Of published data it is the name of this learner's folder of shards. Otherwise a project names
    paths, and paths of a stranger's choice are not read: either the owner says where the text is,
    or this very machine hosts the project and so chose the path itself.
    """
    data = genesis.data
    if genesis.published is not None:
        if options.data is not None:
            log.warning("this project publishes its data: --data %s is not read", options.data)
        return learners_folder(options.instance)
    if options.data is not None:
        return options.data
    if data.source == "own":
        return data.location if _is_owners(options) else ""
    if genesis.mixture is not None:
        return _mixture_location(options, genesis.mixture)
    if is_files(data.source, data.location) and not _is_owners(options):
        raise UserError(
            f"This project does not publish its {_kind(data)}. Get a copy of {data.source} "
            f"{data.location!r} from its owner, put it anywhere on this machine, and say where: "
            "shoal join --data PATH 'LINK'"
        )
    _require_hub_name(data)
    return data.location


def _mixture_location(options: NodeOptions, mixture: tuple[MixedSource, ...]) -> str:
    """Empty: where the project says. UserError if that would be files that are not the owner's."""
    files = [one for one in mixture if is_files(one.source, one.location)]
    if files and not _is_owners(options):
        named = ", ".join(repr(Path(one.location).name) for one in files)
        raise UserError(
            f"This project does not publish its text, a mixture of {len(mixture)} sources. Get "
            f"copies of {named} from its owner, put them into one folder under these names, and "
            "say where: shoal join --data FOLDER 'LINK'"
        )
    for one in mixture:
        _require_hub_name(one)
    return ""


def _require_hub_name(data: DataSpec | MixedSource) -> None:
    """UserError if a data set of the hub is called by something else, which may be a path."""
    named = on_hub(data.source, data.location)
    if named is not None and hub_data(named) is None:
        raise UserError(
            f"This project names {data.location!r} as a data set of the hub, which is no name of "
            "one. Nothing here is read for it. Ask the project's owner to correct its location."
        )


def _kind(data: DataSpec) -> str:
    return "images" if data.source == "images" else "text"


def require_foreign_tokenizer(options: NodeOptions, genesis: Genesis) -> None:
    """UserError if the project names a file of this machine as its tokenizer."""
    if genesis.tokenizer is not None:
        return  # Its files came from peers, by their digests; no name is looked up.
    name = genesis.data.tokenizer
    if name != "bytes" and hub_name(name) is None and not _is_owners(options):
        raise UserError(
            f"This project's tokenizer is a file of its owner's, {name!r}. No file of yours is "
            "opened for it. Ask the project's owner for one on the hub (OWNER/NAME)."
        )


def training_code(options: NodeOptions, genesis: Genesis) -> str:
    """Whose code takes the local steps: `package.module:Class`, or empty for Shoal's own.

    UserError if the project names one that is not installed here, or in another version.
    """
    if options.trainer is not None:
        return installed.checked_place(options.trainer)
    return installed.require(genesis.trainer) if genesis.trainer is not None else ""


def measures_for_others(options: NodeOptions, genesis: Genesis) -> bool:
    """Whether this learner measures held-out loss and pushes: not beside a base in 4 bits, whose
    values are a little off."""
    is_off = options.settings().learner.base_in_4_bits and genesis.adapter is not None
    return options.evaluates and not is_off


def shares_moments(options: NodeOptions) -> bool:
    """Whether optimizer state comes from and goes to others: not where it is kept in 8 bits, whose
    rounding would make it look like none that AdamW can come to."""
    return options.shares_moments and not options.settings().learner.optimizer_in_8_bits


def _is_owners(options: NodeOptions) -> bool:
    """Whether this very machine hosts the project."""
    return options.home.project_file(options.link.project).is_file()


def trainer_configuration(
    options: NodeOptions, owner: Settings, identity: Identity, genesis: bytes
) -> Configure:
    """How trainers are started here. UserError where the project would read files of this host."""
    decoded = wire.decode(genesis, Genesis, bytes_max=limits.GENESIS_BYTES_MAX)
    require_foreign_tokenizer(options, decoded)
    trainer = training_code(options, decoded)
    if trainer and options.ranks > 1:
        log.warning("the trainer %s trains on one device; the others stay idle", trainer)
    return Configure(
        genesis=genesis,
        inner=b"",
        data_cache=str(options.home.data_cache()),
        data_location=data_location(options, decoded),
        threads=options.threads or threads_for(owner, os.cpu_count() or 1),
        duty_frac=options.duty_frac,
        device=options.device or device_wanted(owner),
        ranks=1 if trainer else options.ranks,
        sharded=owner.learner.sharded and not trainer,
        trainer=trainer,
        compiles=owner.learner.compile,
        in_f32=owner.learner.precision == "f32",
        base_in_4_bits=owner.learner.base_in_4_bits,
        optimizer_in_8_bits=owner.learner.optimizer_in_8_bits,
        checkpoints_activations=owner.learner.checkpoint_activations,
        nice=owner.limits.nice,
        gpu_memory_frac=owner.limits.gpu_memory_percent / 100.0,
        seed_salt=int.from_bytes(identity.key[:6], "big"),
    )
