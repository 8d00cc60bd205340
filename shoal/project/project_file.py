"""A project as its owner writes it, and the signed project that becomes of it.

Parsing is light and checks all that can be known from the file alone. Signing builds the model's
table and counts the text, so it needs torch and the text; only then is the project a fact.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from protocol import limits
from protocol import project as specs
from protocol.errors import UserError
from protocol.ids import NodeKey
from shoal.common import toml_tables as toml
from shoal.project.charters import check_one_voter

THIS_HOST = "this host"
FILE_BYTES_MAX = 1 << 20

_SECTIONS = ("project", "model", "data", "training", "outer", "rounds", "limits", "voters")


class VoterLine(Struct, frozen=True):
    """One [[voters]] table; `key` is None for the host that signs."""

    key: NodeKey | None
    voter: specs.Voter
    """With a blank key where `key` is None."""


class ProjectFile(Struct, frozen=True):
    """A project file whose every value is allowed and fits the others."""

    path: Path
    name: str
    seed: int
    architecture: str
    config: dict[str, specs.ConfigValue]
    rules: specs.MergeRules
    fragments: int
    strategy: specs.FragmentStrategy
    data: specs.DataSpec
    """Not counted yet: `blocks` and `digest` are blank."""
    inner: specs.InnerSpec
    outer: specs.OuterSpec
    rounds: specs.RoundSpec
    limits: specs.LimitSpec
    durability: specs.Durability
    banned: tuple[NodeKey, ...]
    voters: tuple[VoterLine, ...]


def read_file(path: Path) -> ProjectFile:
    """The project file at `path`. UserError if it is absent, or for whatever is wrong in it."""
    try:
        with path.open("rb") as handle:
            content = handle.read(FILE_BYTES_MAX + 1)
        if len(content) > FILE_BYTES_MAX:
            raise UserError(
                f"{path} is too large for a project file (over {FILE_BYTES_MAX} bytes)."
            )
        return parse(content.decode(), path)
    except FileNotFoundError as error:
        raise UserError(
            f"There is no file {path}. Make one with: shoal project create {path}"
        ) from error
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}).") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path.name}: is not text in UTF-8.") from error


def parse(text: str, path: Path) -> ProjectFile:
    """What the text of a project file says. UserError, in one line, for the first thing wrong."""
    place = toml.Place(path.name)
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise place.error(f"is not TOML: {error}") from error
    toml.check_keys(tables, _SECTIONS, place, optional=("seat", "admission"))
    file = ProjectFile(
        path=path,
        **_project(tables["project"], place.below("project")),
        **_model(tables["model"], place.below("model")),
        data=_data(tables["data"], place.below("data"), path),
        inner=specs.InnerSpec(
            **toml.read_table(tables["training"], specs.InnerSpec, place.below("training"))
        ),
        outer=specs.OuterSpec(
            **toml.read_table(tables["outer"], specs.OuterSpec, place.below("outer"))
        ),
        rounds=specs.RoundSpec(
            **toml.read_table(tables["rounds"], specs.RoundSpec, place.below("rounds"))
        ),
        limits=specs.LimitSpec(
            **toml.read_table(tables["limits"], specs.LimitSpec, place.below("limits"))
        ),
        durability=_durability(tables.get("seat"), place.below("seat")),
        banned=_banned(tables.get("admission", {"banned": []}), place.below("admission")),
        voters=_voters(tables["voters"], place.below("voters")),
    )
    tokens = file.data.sequence_tokens
    check_together(file, fragments=file.fragments, sequence_tokens=tokens, place=place)
    return file


def _project(value: object, place: toml.Place) -> dict[str, Any]:
    table = toml.as_table(value, place)
    toml.check_keys(table, ("name", "seed"), place)
    read = toml.read_fields(table, specs.Genesis, place, "name", "seed")
    if not read["name"].isprintable() or read["name"] != read["name"].strip():
        raise place.below("name").error("must be printable text without blanks at its ends")
    return read


def _model(value: object, place: toml.Place) -> dict[str, Any]:
    table = toml.as_table(value, place)
    toml.check_keys(table, ("architecture", "fragments", "strategy", "merge", "config"), place)
    config = toml.as_table(table["config"], place.below("config"))
    return {
        **toml.read_fields(table, specs.ModelSpec, place, "architecture"),
        "config": {
            key: toml.read_value(setting, specs.ConfigValue, place.below("config").below(key))
            for key, setting in config.items()
        },
        "rules": specs.MergeRules(
            **toml.read_table(table["merge"], specs.MergeRules, place.below("merge"))
        ),
        **toml.read_fields(table, specs.Genesis, place, "fragments", "strategy"),
    }


def _data(value: object, place: toml.Place, path: Path) -> specs.DataSpec:
    values = toml.read_table(value, specs.DataSpec, place, omit=("blocks", "digest"))
    source, location = values["source"], values["location"]
    if source == "python-stdlib" and location:
        at = place.below("location")
        raise at.error(f'must be "" for the source python-stdlib, not {toml.shown(location)}')
    if source != "python-stdlib" and not location:
        raise place.below("location").error(f"must not be empty: name what {source} is to read")
    if source == "hub" and specs.hub_name(location) is None:
        at = place.below("location")
        raise at.error(
            f"must be OWNER/NAME or OWNER/NAME:CONFIGURATION, not {toml.shown(location)}"
        )
    beside = path.absolute().parent
    if source in ("file", "folder", "parquet") and not location.startswith("~"):
        values["location"] = str(beside / location)
    if (beside / values["tokenizer"]).is_file():
        values["tokenizer"] = str(beside / values["tokenizer"])
    return specs.DataSpec(**values, blocks=1, digest=bytes(32))


def _durability(value: object, place: toml.Place) -> specs.Durability:
    if value is None:
        return "standby"  # Files from before there were several voters do not say.
    table = toml.as_table(value, place)
    toml.check_keys(table, ("durability",), place)
    read: specs.Durability = toml.read_value(
        table["durability"], specs.Durability, place.below("durability")
    )
    return read


def _banned(value: object, place: toml.Place) -> tuple[NodeKey, ...]:
    table = toml.as_table(value, place)
    toml.check_keys(table, ("banned",), place)
    at, keys = place.below("banned"), table["banned"]
    if not isinstance(keys, list):
        raise at.error(f"must be a list of keys, not {toml.shown(keys)}")
    return tuple(_key(key, at) for key in keys)


def _key(value: object, place: toml.Place, *, also: str = "") -> NodeKey:
    if isinstance(value, str) and len(value) == 64:
        try:
            return bytes.fromhex(value)
        except ValueError:
            pass
    raise place.error(f"must be {also}a key of 64 hex digits, not {toml.shown(value)}")


def _voters(value: object, place: toml.Place) -> tuple[VoterLine, ...]:
    if not isinstance(value, list) or not 1 <= len(value) <= limits.VOTERS_MAX:
        raise place.error(f"must be 1 to {limits.VOTERS_MAX} tables, each written as [[voters]]")
    lines = tuple(_voter(one, place.below(str(i + 1))) for i, one in enumerate(value))
    twice = [key for key, count in Counter(line.key for line in lines).items() if count > 1]
    if twice:
        word = twice[0].hex()[:8] + "…" if twice[0] else f'"{THIS_HOST}"'
        raise place.error(f"name {word} twice; every voter needs its own key")
    if all(line.voter.role != "syncer" for line in lines):
        raise place.error('need at least one with role = "syncer"')
    if len(lines) == 2:
        raise place.error(
            "are two, and two cannot outvote each other; use one, or add a witness to make three"
        )
    return lines


def _voter(value: object, place: toml.Place) -> VoterLine:
    table = toml.as_table(value, place)
    toml.check_keys(table, ("key", "role", "priority"), place)
    key = None
    if table["key"] != THIS_HOST:
        key = _key(table["key"], place.below("key"), also=f'"{THIS_HOST}" or ')
    rest = toml.read_fields(table, specs.Voter, place, "role", "priority")
    return VoterLine(key, specs.Voter(key or bytes(32), **rest))


def check_together(
    rules: ProjectFile | specs.Charter, *, fragments: int, sequence_tokens: int, place: toml.Place
) -> None:
    """UserError for values that are allowed each, but not with each other."""
    inner, rounds, bounds = rules.inner, rules.rounds, rules.limits
    if rounds.quorum > bounds.learners:
        raise place.below("rounds.quorum").error(
            f"must be at most limits.learners ({bounds.learners}), not {rounds.quorum}"
        )
    if rounds.overlap_steps > fragments:
        raise place.below("rounds.overlap_steps").error(
            f"must be at most model.fragments ({fragments}), not {rounds.overlap_steps}; "
            "rounds in flight are on different fragments"
        )
    if inner.moments == "peer" and inner.optimizer != "adamw":
        raise place.below("training.moments").error(
            f'can be "peer" only with the optimizer adamw: {inner.optimizer} keeps nothing that '
            "would tell a possible state of another learner from an impossible one"
        )
    if inner.moments == "peer" and not inner.bounds_moments:
        raise place.below("training.moments").error(
            'can be "peer" only where beta1 x beta1 < beta2 < 1: otherwise nobody could tell '
            "whether another learner's optimizer state is possible at all"
        )
    step_tokens = inner.batch_sequences * sequence_tokens
    if bounds.tokens < step_tokens:
        raise place.below("limits.tokens").error(
            f"must be at least {step_tokens}, one local step (training.batch_sequences x "
            f"data.sequence_tokens), not {bounds.tokens}"
        )


def make_genesis(file: ProjectFile, *, owner: NodeKey, data_cache: Path) -> specs.Genesis:
    """What the file says of the project that never changes.

    UserError if the model cannot be built or cut, the text cannot be read, or they do not fit each
    other. Cost: reads and tokenises the whole text, unless `data_cache` holds it already.
    """
    from node.trainer.model import check_fits, describe_model
    from node.trainer.text.corpus import describe_corpus
    from node.trainer.text.tokenizer import load_vocabulary
    from protocol.fragments import build_layout

    try:
        model = describe_model(file.architecture, file.config, file.rules)
        build_layout(model.tensors, file.strategy, file.fragments)
        check_fits(model, file.data, load_vocabulary(file.data.tokenizer).size)
        counted = describe_corpus(file.data, cache=data_cache)
    except UserError as error:
        raise UserError(f"{file.path.name}: {error}") from error
    return specs.Genesis(
        wire_version=limits.WIRE_VERSION,
        name=file.name,
        owner=owner,
        model=model,
        data=msgspec.structs.replace(file.data, blocks=counted.blocks, digest=counted.digest),
        seed=file.seed,
        strategy=file.strategy,
        fragments=file.fragments,
    )


def make_charter(
    file: ProjectFile, *, project: bytes, this_host: NodeKey, former: specs.Charter | None
) -> specs.Charter:
    """What the file says of the rules: the revision behind the former one, or the first.

    The former revision itself where nothing changed. Epoch and admitted disks are no matter of the
    file and stay. UserError if more than one voter differs.
    """
    charter = specs.Charter(
        project=project,
        revision=1,
        voters=_named_voters(file, this_host),
        banned=file.banned,
        inner=file.inner,
        outer=file.outer,
        rounds=file.rounds,
        limits=file.limits,
        durability=file.durability,
    )
    if former is None:
        return charter
    disks = {voter.key: voter.disk for voter in former.voters}
    voters = (
        msgspec.structs.replace(voter, disk=disks.get(voter.key, 0)) for voter in charter.voters
    )
    known = [voter.key for voter in former.voters]
    charter = msgspec.structs.replace(
        charter,
        revision=former.revision,
        epoch=former.epoch,
        origin=former.origin,
        # In the former order: another one alone is no change.
        voters=tuple(sorted(voters, key=lambda one: _rank(one.key, known))),
        banned=tuple(sorted(charter.banned, key=lambda key: _rank(key, list(former.banned)))),
    )
    if charter == former:
        return former
    check_one_voter(former, charter, file.path.name)
    return msgspec.structs.replace(charter, revision=former.revision + 1)


def _rank(key: bytes, known: list[bytes]) -> int:
    return known.index(key) if key in known else len(known)


def _named_voters(file: ProjectFile, this_host: NodeKey) -> tuple[specs.Voter, ...]:
    keys = [line.key or this_host for line in file.voters]
    if len(set(keys)) < len(keys):
        raise UserError(
            f'{file.path.name}: voters name this host twice: as "{THIS_HOST}" and by its key'
        )
    return tuple(
        msgspec.structs.replace(line.voter, key=key)
        for line, key in zip(file.voters, keys, strict=True)
    )
