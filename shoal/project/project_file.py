"""A project as its owner writes it, and the signed project that becomes of it.

Parsing is light and checks all that can be known from the file alone. Signing builds the model's
table and counts the text, so it needs torch and the text; only then is the project a fact.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from protocol import limits
from protocol import project as specs
from protocol.errors import UserError
from protocol.ids import NodeKey
from shoal.common import toml_tables as toml
from shoal.project import data_section, sources, starting_point
from shoal.project.charters import check_one_voter

THIS_HOST = "this host"
FILE_BYTES_MAX = 1 << 20
PARTICIPANTS_MIN = 4
"""Of fewer pushes in a merge nobody could tell which one lies."""

Pins = Literal["nothing", "tokenizer", "all"]
"""Files that a genesis pins: former versions pinned none, then those of the tokenizer, and now the
generation settings of a base model too."""

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
    base: str | None
    """`hub:OWNER/NAME@REVISION` or a folder's absolute path; None: weights are drawn."""
    trainer: str | None
    """Training code that is not Shoal's, by its name among what is installed."""
    architecture: str
    """Empty where the base model or the training code says it."""
    config: dict[str, specs.ConfigValue]
    """With a base model: what differs from its own."""
    adapter: specs.AdapterSpec | None
    """None: the whole model is trained. Its tables are not known yet."""
    rules: specs.MergeRules
    fragments: int
    strategy: specs.FragmentStrategy
    data: specs.DataSpec
    """Not counted yet: `blocks` and `digest` are blank."""
    mixture: tuple[specs.MixedSource, ...] | None
    """Its sources, not counted yet; None: there is one, which `data` names."""
    documents: specs.DocumentRule
    image_size: int | None
    """Height and width in pixels; None: the model's configuration says it."""
    masked_frac: float | None
    """Share of tokens that an encoder is asked for; None: as BERT's."""
    publish: bool
    """Whether the data are tokenised here once, and given to learners."""
    inner: specs.InnerSpec
    outer: specs.OuterSpec
    rounds: specs.RoundSpec
    limits: specs.LimitSpec
    durability: specs.Durability
    admission: specs.AdmissionRule | None
    """None, here and below, where a file from before this setting does not say."""
    allowed: tuple[NodeKey, ...] | None
    banned: tuple[NodeKey, ...]
    guard: specs.GuardRule | None
    about: str | None
    """Empty: nothing is said."""
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
    toml.check_keys(tables, _SECTIONS, place, optional=("seat", "admission", "guard", "page"))
    file = ProjectFile(
        path=path,
        **_project(tables["project"], place.below("project")),
        **_model(tables["model"], place.below("model"), path),
        **data_section.read(tables["data"], place.below("data"), path),
        inner=specs.InnerSpec(
            **toml.read_table(
                tables["training"],
                specs.InnerSpec,
                place.below("training"),
                optional=("schedule", "decay_frac", "z_loss", "batch_sequences_max"),
            )
        ),
        outer=specs.OuterSpec(
            **toml.read_table(
                tables["outer"], specs.OuterSpec, place.below("outer"), optional=("ema",)
            )
        ),
        rounds=specs.RoundSpec(
            **toml.read_table(
                tables["rounds"],
                specs.RoundSpec,
                place.below("rounds"),
                optional=("participants_max", "mergers_max"),
            )
        ),
        limits=specs.LimitSpec(
            **toml.read_table(tables["limits"], specs.LimitSpec, place.below("limits"))
        ),
        durability=_durability(tables.get("seat"), place.below("seat")),
        **_admission(tables.get("admission", {"banned": []}), place.below("admission")),
        guard=_guard(tables.get("guard"), place.below("guard")),
        about=_about(tables.get("page"), place.below("page")),
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


def _model(value: object, place: toml.Place, path: Path) -> dict[str, Any]:
    table = toml.as_table(value, place)
    wanted: tuple[str, ...] = ("architecture", "fragments", "strategy", "merge", "config")
    base = trainer = None
    if "trainer" in table:
        wanted = ("trainer", "fragments", "strategy", "merge", "config")
        trainer = toml.read_value(table["trainer"], specs.TrainerName, place.below("trainer"))
        _require_absent(table, ("architecture", "from"), "the training code says what it is", place)
    elif "from" in table:
        wanted = ("from", "fragments", "strategy", "merge")
        base = _base(table["from"], place.below("from"), path)
        _require_absent(
            table, ("architecture",), "the model that `from` names says what it is", place
        )
    toml.check_keys(table, wanted, place, optional=("config", "adapter"))
    config = toml.as_table(table.get("config", {}), place.below("config"))
    said = (
        {} if base or trainer else toml.read_fields(table, specs.ModelSpec, place, "architecture")
    )
    return {
        "base": base,
        "trainer": trainer,
        "architecture": said.get("architecture", ""),
        "config": {
            key: toml.read_value(setting, specs.ConfigValue, place.below("config").below(key))
            for key, setting in config.items()
        },
        "adapter": _adapter(table.get("adapter"), place.below("adapter"), base),
        "rules": specs.MergeRules(
            **toml.read_table(table["merge"], specs.MergeRules, place.below("merge"))
        ),
        **toml.read_fields(table, specs.Genesis, place, "fragments", "strategy"),
    }


def _require_absent(
    table: dict[str, Any], keys: tuple[str, ...], why: str, place: toml.Place
) -> None:
    for key in keys:
        if key in table:
            raise place.below(key).error(f"must be left out: {why}")


def _adapter(value: object, place: toml.Place, base: str | None) -> specs.AdapterSpec | None:
    if value is None:
        return None
    table = dict(toml.as_table(value, place))
    if base is None:
        raise place.error("needs a published model to stand beside: name it in model.from")
    if isinstance(table.get("targets"), str):
        table["targets"] = [table["targets"]]
    omit = ("frozen", "pieces")
    return specs.AdapterSpec(**toml.read_table(table, specs.AdapterSpec, place, omit=omit))


def _base(value: object, place: toml.Place, path: Path) -> str:
    if not isinstance(value, str) or not value:
        raise place.error(
            f"must be hub:OWNER/NAME@REVISION or the path of a folder, not {toml.shown(value)}"
        )
    if value.startswith("hub:"):
        if specs.hub_source(value) is None:
            raise place.error(f"must be hub:OWNER/NAME@REVISION, not {toml.shown(value)}")
        return value
    return str(path.absolute().parent / Path(value).expanduser())


def _durability(value: object, place: toml.Place) -> specs.Durability:
    if value is None:
        return "standby"  # Files from before there were several voters do not say.
    table = toml.as_table(value, place)
    toml.check_keys(table, ("durability",), place)
    read: specs.Durability = toml.read_value(
        table["durability"], specs.Durability, place.below("durability")
    )
    return read


def _guard(value: object, place: toml.Place) -> specs.GuardRule | None:
    if value is None:
        return None
    table = toml.as_table(value, place)
    toml.check_keys(table, ("rule",), place)
    read: specs.GuardRule = toml.read_value(table["rule"], specs.GuardRule, place.below("rule"))
    return read


def _about(value: object, place: toml.Place) -> str | None:
    if value is None:
        return None
    table = toml.as_table(value, place)
    toml.check_keys(table, ("about",), place)
    read: str = toml.read_value(table["about"], specs.Text, place.below("about"))
    return read


def _admission(value: object, place: toml.Place) -> dict[str, Any]:
    table = toml.as_table(value, place)
    toml.check_keys(table, ("banned",), place, optional=("rule", "allowed"))
    rule, allowed = table.get("rule"), place.below("allowed")
    if rule is not None:
        rule = toml.read_value(rule, specs.AdmissionRule, place.below("rule"))
    return {
        "admission": rule,
        "allowed": _keys(table["allowed"], allowed) if "allowed" in table else None,
        "banned": _keys(table["banned"], place.below("banned"), limits.BANNED_MAX),
    }


def _keys(keys: object, at: toml.Place, most: int = limits.ALLOWED_MAX) -> tuple[NodeKey, ...]:
    if not isinstance(keys, list) or len(keys) > most:
        raise at.error(f"must be a list of at most {most:,} keys, not {toml.shown(keys)}")
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
    if rounds.participants_max and rounds.participants_max < max(rounds.quorum, PARTICIPANTS_MIN):
        raise place.below("rounds.participants_max").error(
            f"must be 0, or at least {PARTICIPANTS_MIN} and rounds.quorum ({rounds.quorum}), not "
            f"{rounds.participants_max}"
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
    if isinstance(rules, ProjectFile):
        _check_training_code(rules, place)
    if bounds.tokens < step_tokens:
        raise place.below("limits.tokens").error(
            f"must be at least {step_tokens}, one local step (training.batch_sequences x "
            f"data.sequence_tokens), not {bounds.tokens}"
        )


def _check_training_code(file: ProjectFile, place: toml.Place) -> None:
    """UserError for what only Shoal's own trainer can do, or only somebody else's."""
    if file.trainer is None and file.data.source == "own":
        raise place.below("data.source").error(
            'can be "own" only with model.trainer: the training code brings the data'
        )
    if file.trainer is not None and file.data.source == "images":
        raise place.below("data.source").error(
            'can be "images" only with a model of transformers; training code brings its own: "own"'
        )
    if file.trainer is not None and file.inner.moments == "peer":
        raise place.below("training.moments").error(
            'can be "peer" only with Shoal\'s own trainer: of other code nobody can tell whether '
            "another learner's optimizer state is possible at all"
        )


def make_genesis(
    file: ProjectFile, *, owner: NodeKey, data_cache: Path, pins: Pins = "all"
) -> specs.Genesis:
    """What the file says of the project that never changes.

    pins: `all`, or as much as was pinned when the project was signed first.

    UserError if the model cannot be built or cut, the text cannot be read, or they do not fit each
    other. Cost: reads and tokenises the whole text, unless `data_cache` holds it already.
    """
    try:
        if file.trainer is not None:
            return _with_training_code(file, file.trainer, owner, data_cache)
        return _with_network(file, owner, data_cache, pins)
    except UserError as error:
        raise UserError(f"{file.path.name}: {error}") from error


def _with_network(file: ProjectFile, owner: NodeKey, data_cache: Path, pins: Pins) -> specs.Genesis:
    if file.data.source != "images":
        from node.trainer.text.sources import local_bytes
        from node.trainer.text.tokenizer_files import fetch_tokenizer

        # A wrong path and a hub that is away are told before torch is loaded.
        for one in file.mixture or (file.data,):
            kind = msgspec.structs.replace(file.data, source=one.source, location=one.location)
            local_bytes(kind)
        if pins != "nothing":
            fetch_tokenizer(file.data.tokenizer)
    from node.trainer import architectures
    from protocol.fragments import build_layout

    start = starting_point.of(file.base) if file.base else None
    task = architectures.find(file.architecture if start is None else start.architecture).task
    if task == "images":
        data = sources.images(file, start, data_cache)
    else:
        data = sources.text(file, start, data_cache, task=task, pins=pins)
    if data.images is not None:
        labels = {architectures.NUM_LABELS: len(data.images.classes)}
        file = msgspec.structs.replace(file, config={**file.config, **labels})
    model, adapter = _tables(file, start)
    layout = build_layout(model.tensors, file.strategy, file.fragments)
    genesis = specs.Genesis(
        wire_version=limits.WIRE_VERSION,
        name=file.name,
        owner=owner,
        model=model,
        data=data.spec,
        seed=file.seed,
        strategy=file.strategy,
        fragments=file.fragments,
        tokenizer=data.tokenizer,
        adapter=adapter,
        masked=data.masked,
        documents=file.documents,
        images=data.images,
        mixture=data.mixture,
    )
    if file.publish:
        genesis = msgspec.structs.replace(genesis, published=sources.published(genesis, data_cache))
    if start is None:
        return genesis
    if adapter is not None:
        return start.frozen(genesis, data_cache)
    return msgspec.structs.replace(genesis, base=start.pinned(model, layout))


def _tables(
    file: ProjectFile, start: starting_point.StartingPoint | None
) -> tuple[specs.ModelSpec, specs.AdapterSpec | None]:
    """The model with the table of what is trained, and the adapter, if that is it."""
    if start is None:
        from node.trainer.model import describe_model

        return describe_model(file.architecture, file.config, file.rules), None
    if file.adapter is not None:
        return start.adapted(file.config, file.rules, file.adapter)
    return start.model(file.config, file.rules), None


def _with_training_code(
    file: ProjectFile, name: str, owner: NodeKey, data_cache: Path
) -> specs.Genesis:
    """What the installed training code says of itself, beside what the file says."""
    from node.trainer import making
    from node.trainer.own import installed, samples
    from node.trainer.text.tokenizer_files import pin_tokenizer
    from protocol.fragments import build_layout

    found, data = installed.pin(name), file.data
    if file.documents is not None:
        raise UserError(
            f'data.documents must be "joined" with the trainer {name}: it is handed sequences of'
            " tokens, and reads them in its own way."
        )
    is_own = data.source == "own"
    tokenizer = None if is_own else pin_tokenizer(data.tokenizer, None, data_cache)
    source = None if is_own else sources.counted_text(file, tokenizer, data_cache)
    blank = specs.Genesis(
        wire_version=limits.WIRE_VERSION,
        name=file.name,
        owner=owner,
        model=specs.ModelSpec(name, file.config, ()),
        data=data,
        seed=file.seed,
        strategy=file.strategy,
        fragments=file.fragments,
        tokenizer=tokenizer,
        trainer=found.spec,
        mixture=source.mixture if source is not None else None,
    )
    described = making.describe(found.place, blank, file.rules, data_cache)
    build_layout(described.tensors, file.strategy, file.fragments)
    if file.outer.probes_frac and not described.tells_losses:
        raise UserError(
            f"outer.probes_frac must be 0 with the trainer {name}: it has no method `losses`, so"
            " nobody could probe pushes."
        )
    if source is not None:
        data = source.spec
    else:
        if described.data is None:
            raise UserError(
                f'data.source is "own", and the trainer {name} brings no data. Name a source of'
                " text, or give its class a method `data`."
            )
        counted = samples.describe(data, described.data)
        data = msgspec.structs.replace(data, blocks=counted.blocks, digest=counted.digest)
    made = msgspec.structs.replace(
        blank,
        model=msgspec.structs.replace(blank.model, tensors=described.tensors),
        data=data,
    )
    if not file.publish:
        return made
    return msgspec.structs.replace(made, published=sources.published(made, data_cache))


def make_charter(
    file: ProjectFile, *, project: bytes, this_host: NodeKey, former: specs.Charter | None
) -> specs.Charter:
    """What the file says of the rules: the revision behind the former one, or the first.

    The former revision itself where nothing changed. Epoch, admitted disks, revoked invites,
    lifted suspensions and what the owner said of a pause are no matter of the file and stay.
    UserError if more than one voter differs.
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
        admission=file.admission or "open",
        allowed=file.allowed or (),
        guard=file.guard or "off",
        about=file.about or None,
    )
    if former is None:
        return charter
    disks = {voter.key: voter.disk for voter in former.voters}
    voters = (
        msgspec.structs.replace(voter, disk=disks.get(voter.key, 0)) for voter in charter.voters
    )
    rank = {voter.key: at for at, voter in enumerate(former.voters)}
    charter = msgspec.structs.replace(
        charter,
        revision=former.revision,
        epoch=former.epoch,
        origin=former.origin,
        # In the former order: another one alone is no change.
        voters=tuple(sorted(voters, key=lambda one: rank.get(one.key, len(rank)))),
        banned=_in_order(charter.banned, former.banned),
        admission=file.admission or former.admission,
        allowed=former.allowed if file.allowed is None else _in_order(file.allowed, former.allowed),
        revoked=former.revoked,
        reinstated=former.reinstated,
        guard=file.guard or former.guard,
        resumed=former.resumed,
        paused_at_s=former.paused_at_s,
        about=former.about if file.about is None else file.about or None,
    )
    if charter == former:
        return former
    check_one_voter(former, charter, file.path.name)
    return msgspec.structs.replace(charter, revision=former.revision + 1)


def _in_order(keys: tuple[NodeKey, ...], known: tuple[NodeKey, ...]) -> tuple[NodeKey, ...]:
    rank = {key: at for at, key in enumerate(known)}
    return tuple(sorted(keys, key=lambda key: rank.get(key, len(known))))


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
