"""The verbs about project files: create, sign, show, and finding the signed one to run."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated

import msgspec
from cyclopts import Parameter

from host.files import keystore, signed_project
from host.files.home import DEFAULT_INSTANCE, Home
from host.files.pinned_files import PinnedFiles
from protocol.errors import ShoalError, UserError
from protocol.fragments import build_layout
from protocol.ids import NodeKey, short
from protocol.limits import TEXT_CHARS_MAX
from protocol.log.accounts import printable
from protocol.project import AdapterSpec, Genesis, TrainerSpec, encode, project_id
from protocol.shards import sample_bytes
from shoal.common.choices import HomeHere, Instance, area, option, switch
from shoal.common.writing import write_new
from shoal.project import charter_delivery, charters, project_file, starting_point
from shoal.project.presets import PRESETS, PresetName
from shoal.project.template import Value, create_text

DEFAULT_FILE = "project.toml"

project_app = area("project")


@project_app.command
def create(
    path: Annotated[Path, option("The file to write, or its directory.")] = Path(DEFAULT_FILE),
    *,
    name: Annotated[str | None, option("What the project is called.")] = None,
    preset: Annotated[
        PresetName,
        option(
            "Values for a small model on few machines, for lines on which a fragment takes several "
            "local steps, or the published ones."
        ),
    ] = "small",
    base: Annotated[
        str | None,
        Parameter(
            name="--from",
            help="Start from a published model: a folder with its safetensors, or "
            "hub:OWNER/NAME@REVISION.",
        ),
    ] = None,
    adapter: Annotated[
        bool, switch("Train a low-rank adapter (LoRA) beside that model, and nothing else.")
    ] = False,
) -> list[str]:
    """Write a project file with every setting explained."""
    if path.is_dir():
        path = path / DEFAULT_FILE
    if path.suffix != ".toml":
        raise UserError(f"{path} does not end in .toml. Call it {path.with_suffix('.toml')}.")
    text, facts = drafted(name or _name_for(path), preset=preset, base=base, adapter=adapter)
    project_file.parse(text, path)  # a name that cannot be used must not reach the file
    write_new(path, text.encode())
    return [f"wrote {path}", *facts, f"next: edit it, then `shoal project sign {path}`"]


def drafted(
    name: str,
    *,
    preset: PresetName = "small",
    base: str | None = None,
    adapter: bool = False,
    changes: Mapping[str, Value] = MappingProxyType({}),
) -> tuple[str, list[str]]:
    """The text of a new project file, and what its base model asks of a volunteer, in lines.

    changes: other values than the preset's and the suggested ones, by dotted key.
    """
    chosen = PRESETS[preset]
    values, facts = dict(chosen.values), []
    if adapter and base is None:
        raise UserError("An adapter stands beside a published model. Name it: --from FOLDER")
    if base is not None:
        base = base if base.startswith("hub:") else str(Path(base).expanduser().absolute())
        suggest = starting_point.suggest_adapter if adapter else starting_point.suggest
        suggested = suggest(base, values)
        base, facts = suggested.named, suggested.facts
        values |= suggested.values
        for key in [one for one in values if one.startswith("model.config.")]:
            del values[key]
    values |= changes
    if "rounds.overlap_steps" in values and "model.fragments" in values:
        few = min(int(str(values[key])) for key in ("rounds.overlap_steps", "model.fragments"))
        values["rounds.overlap_steps"] = few
    return create_text(name, changes=values, comments=chosen.comments, base=base), facts


def _name_for(path: Path) -> str:
    stem = path.stem if path.name != DEFAULT_FILE else path.absolute().parent.name
    return stem[:64].strip() or "my-project"


@project_app.command
def sign(
    path: Annotated[Path, option("The project file (.toml).")],
    *,
    change_voter: Annotated[
        bool, switch("Accept a voter that the file adds to, or leaves out of, what is signed.")
    ] = False,
    instance: Instance = DEFAULT_INSTANCE,
    home: HomeHere,
) -> list[str]:
    """Check a project file against model and text, and sign it with the owner's key."""
    file = project_file.read_file(path)
    owner = keystore.load_or_create(home.identity("owner"))
    here = keystore.load_or_create(home.identity("syncer", instance))
    target = path.with_suffix(signed_project.SUFFIX)
    genesis = _genesis(file, owner.key, target, home)
    project = project_id(encode(genesis))
    _note_base(file, home, project)
    former = _former(target, home, project)
    old = former.charter if former is not None else None
    charter = project_file.make_charter(file, project=project, this_host=here.key, former=old)
    if old is not None and charters.voter_changes(old, charter) and not change_voter:
        raise UserError(
            f"{path.name}: its voters are not those of revision {old.revision}: by the file, "
            f"{'; '.join(charters.voter_changes(old, charter))}. If the file is behind, put the "
            f"signed voters into it: `shoal project show {target}` lists them. If the file is "
            "right: shoal project sign --change-voter"
        )
    if former is not None and charter == old:
        made = former.stored()
    else:
        made = signed_project.seal_project(genesis, charter, owner)
    pinned = PinnedFiles(home.data_cache(), genesis.tokenizer)
    made = msgspec.structs.replace(made, files=pinned.contents())
    # Written even so: a signed file must not be older than the project file it was made from.
    signed_project.write_signed(target, made)
    signed = signed_project.read_signed(target)
    word = "unchanged, still signed as" if charter == old else "signed as"
    lines = [*_summary(signed, target, word), *_left_out(genesis, home)]
    if old is None or (charter == old and not charter_delivery.voters_here(home, signed, [])):
        return [*lines, f"next: shoal syncer run {target}"]
    lines += [f"changed     {line}" for line in charters.differences(old, charter)]
    return [*lines, *charter_delivery.hand_over(home, signed, target)]


def _genesis(file: project_file.ProjectFile, owner: NodeKey, target: Path, home: Home) -> Genesis:
    """What the file says; as it was signed, where that was before so much was pinned."""
    cache, known = home.data_cache(), None
    with contextlib.suppress(UserError):  # Not signed yet, or unreadable: then it is made anew.
        known = signed_project.read_signed(target).genesis
    pins = _pinned_by(known, file.data.tokenizer) if known is not None else "all"
    if pins != "all":
        same = project_file.make_genesis(file, owner=owner, data_cache=cache, pins=pins)
        if same == known:
            return same
    return project_file.make_genesis(file, owner=owner, data_cache=cache)


def _pinned_by(known: Genesis, tokenizer: str) -> project_file.Pins:
    """How much of what could be pinned now the signed project pins."""
    if known.tokenizer is None:
        return "all" if tokenizer in ("bytes", "base") else "nothing"
    names = {one.name for one in known.tokenizer.files}
    return "tokenizer" if tokenizer == "base" and "generation_config.json" not in names else "all"


def _note_base(file: project_file.ProjectFile, home: Home, project: bytes) -> None:
    """Remembers where the base model lies here: the syncer of this home makes version 0 of it."""
    if file.base is not None and not file.base.startswith("hub:"):
        home.base_note(project).write_text(file.base)


def _former(target: Path, home: Home, project: bytes) -> signed_project.OpenedProject | None:
    """The newest revision of this project that is known here; None where there is none."""
    for place in (target, home.root / "projects" / project.hex() / "project.shoal"):
        with contextlib.suppress(UserError):
            found = signed_project.read_signed(place)
            if found.id == project:
                return signed_project.newest_of(found, *charter_delivery.kept_charters(home, found))
    return None


def _summary(project: signed_project.OpenedProject, target: Path, word: str) -> list[str]:
    layout = build_layout(
        project.genesis.model.tensors, project.genesis.strategy, project.genesis.fragments
    )
    genesis = project.genesis
    blocks, data = genesis.data.blocks, genesis.data
    adapter = project.genesis.adapter
    pass_tokens = blocks * data.block_sequences * data.sequence_tokens
    return [
        f"{word} {target}",
        f"project     {project.id.hex()}",
        f"revision    {project.charter.revision}",
        f"parameters  {layout.parameters:,} in {len(layout.fragments)} fragments",
        *(_about_adapter(adapter) if adapter is not None else []),
        *([f"data        {_read_as(genesis)}"] if genesis.images is not None else []),
        f"tokens      {project.charter.limits.tokens:,} to train; one pass over the "
        f"{'text' if genesis.images is None else 'images'} is {pass_tokens:,}",
        *_sources(genesis),
        *([f"published   {_published(genesis)}"] if genesis.published is not None else []),
    ]


def _sources(genesis: Genesis) -> list[str]:
    """The sources of a mixture: their shares, and how often a pass reads each."""
    if genesis.mixture is None:
        return []
    data, whole = genesis.data, sum(one.weight for one in genesis.mixture)
    lines = []
    for one in genesis.mixture:
        share = one.weight / whole
        times = share * data.blocks * data.block_sequences / one.sequences
        tokens = one.sequences * data.sequence_tokens
        what = printable(f"{one.source} {one.location}".rstrip(), TEXT_CHARS_MAX)
        lines.append(
            f"source      {share:.1%} {what}: {tokens:,} tokens, read {times:.1f} times in a pass"
        )
    return lines


def _published(genesis: Genesis) -> str:
    """What of the text is given to learners."""
    pinned, data = genesis.published, genesis.data
    assert pinned is not None, "the project publishes data"
    shard_bytes = pinned.shard_blocks * data.block_sequences * sample_bytes(genesis)
    count = -(-data.blocks // pinned.shard_blocks)
    what = "text" if genesis.images is None else "images"
    return (
        f"{count:,} shards of {starting_point.amount(shard_bytes)}; everybody who has the link can "
        f"read the {what}"
    )


def _left_out(genesis: Genesis, home: Home) -> list[str]:
    """What of the owner's chats or texts cannot be used."""
    if genesis.images is not None or genesis.data.source == "own":
        return []
    from node.trainer.text.mixture import open_sources

    notes = open_sources(genesis, cache=home.data_cache()).facts.notes
    what = "chats" if genesis.data.source == "chats" else "texts"
    return [f"{what:<12}{words}" for words in notes]


def _about_adapter(adapter: AdapterSpec) -> list[str]:
    frozen = sum(one.numel for one in adapter.frozen)
    part = "" if adapter.trains == "both" else ", of which B is trained"
    return [
        f"adapter     rank {adapter.rank}, alpha {adapter.alpha:g}, dropout {adapter.dropout:g}, "
        f"on {', '.join(adapter.targets)}{part}",
        f"frozen      {frozen:,} parameters as {adapter.base_dtype}, "
        f"{starting_point.amount(adapter.held_bytes)} that a volunteer fetches once",
    ]


@project_app.command
def show(
    path: Annotated[Path, option("A signed project (.shoal) or a project file (.toml).")],
) -> list[str]:
    """Print what a project file says."""
    if path.suffix == ".toml":
        file = project_file.read_file(path)
        return [
            f"{path} is a valid project file. It becomes a project once it is signed:",
            f"shoal project sign {path}",
            "",
            f"name        {file.name}",
            f"model       {file.base or file.trainer or file.architecture}, "
            f"{file.fragments} fragments "
            f"({file.strategy})",
            *([f"adapter     rank {file.adapter.rank}"] if file.adapter is not None else []),
            f"data        {file.data.source} {file.data.location}".rstrip(),
            f"tokens      {file.limits.tokens:,}",
        ]
    project = signed_project.read_signed(path)
    genesis, charter = project.genesis, project.charter
    data, rounds, outer = genesis.data, charter.rounds, charter.outer
    parameters = sum(tensor.numel for tensor in genesis.model.tensors)
    return [
        f"name        {genesis.name}",
        f"project     {project.id.hex()}",
        f"owner       {genesis.owner.hex()}",
        f"revision    {charter.revision}",
        *([f"about       {_in_a_line(charter.about)}"] if charter.about else []),
        f"model       {genesis.model.architecture}, {parameters:,} parameters, "
        f"{genesis.fragments} fragments ({genesis.strategy})",
        *([f"from        {genesis.base.source}"] if genesis.base is not None else []),
        *([f"trainer     {_named(genesis.trainer)}"] if genesis.trainer is not None else []),
        *(_about_adapter(genesis.adapter) if genesis.adapter is not None else []),
        f"data        {' '.join([data.source, data.location]).strip()}, {_read_as(genesis)}, "
        f"{data.blocks:,} blocks of {data.block_sequences} x {data.sequence_tokens} tokens",
        *_sources(genesis),
        *([f"published   {_published(genesis)}"] if genesis.published is not None else []),
        f"tokens      {charter.limits.tokens:,}",
        f"inner       {charter.inner.optimizer}, learning rate {charter.inner.learning_rate:g}, "
        f"{charter.inner.batch_sequences} sequences per local step",
        f"outer       learning rate {outer.learning_rate:g}, momentum {outer.momentum:g}"
        + (" (Nesterov)" if outer.momentum and outer.nesterov else ""),
        f"rounds      every {rounds.local_steps} local steps, quorum {rounds.quorum}, at most "
        f"{rounds.overlap_steps} in flight, {rounds.apply}, {rounds.up_codec} up, "
        f"{rounds.down_codec} down",
        f"durability  {charter.durability}",
        *([f"epoch       {charter.epoch}"] if charter.epoch else []),
        *(
            f"voter       {voter.key.hex()} {voter.role}, priority {voter.priority}"
            + (f", readmitted {voter.disk} times" if voter.disk else "")
            for voter in charter.voters
        ),
        *(f"banned      {short(key)}" for key in charter.banned),
    ]


def _in_a_line(about: str) -> str:
    return printable(" ".join(about.split()), TEXT_CHARS_MAX)


def _read_as(genesis: Genesis) -> str:
    """How the model reads the data."""
    if (images := genesis.images) is not None:
        return (
            f"{images.images:,} images of {images.width} x {images.height} pixels in "
            f"{len(images.classes):,} classes, {images.heldout:,} held out"
        )
    hidden = "" if genesis.masked is None else f", {genesis.masked.frac:.0%} of tokens hidden"
    apart = ", each document read by itself" if genesis.documents == "separate" else ""
    return f"tokenizer {genesis.data.tokenizer}{hidden}{apart}"


def _named(spec: TrainerSpec) -> str:
    return f"{spec.name} of {spec.package} {spec.version}, which every learner installs itself"


def signed_path(path: Path) -> Path:
    """The signed file meant by `path`: itself, or the one beside a project file.

    UserError if it is not there, not readable as such, or older than the project file.
    """
    if path.suffix == ".toml" and not path.is_file():
        raise UserError(f"There is no file {path}. Make one with: shoal project create {path}")
    target = signed_beside(path)
    if path.suffix == ".toml" and target.stat().st_mtime < path.stat().st_mtime:
        raise UserError(
            f"{path} has changed since it was signed. Sign it with: shoal project sign {path}"
        )
    signed_project.read_signed(target)
    return target


def signed_beside(path: Path) -> Path:
    """The same, whatever its age; a signed file is not looked for."""
    if path.suffix not in (".toml", signed_project.SUFFIX):
        raise UserError(
            f"{path} is neither a signed project ({signed_project.SUFFIX}) nor a project file "
            "(.toml)."
        )
    target = path.with_suffix(signed_project.SUFFIX)
    if path.suffix == ".toml" and not target.is_file():
        raise UserError(f"{path} is not signed yet. Sign it with: shoal project sign {path}")
    return target


def keep_copy(path: Path, home: Home) -> signed_project.OpenedProject:
    """The project at `path`, which from now on this home knows by its id, with its tokenizer."""
    project = signed_project.read_signed(path)
    PinnedFiles(home.data_cache(), project.genesis.tokenizer).take(project.files)
    project = project._replace(files=())
    copy = home.project_file(project.id)
    try:
        known = signed_project.read_signed(copy).charter.revision
    except ShoalError:
        known = -1
    if project.charter.revision > known:
        signed_project.write_signed(copy, project.stored())
    return project


def to_export(path: Path | None, home: Home, *, instance: str) -> signed_project.OpenedProject:
    """The project to export: the one at `path`, or the only one that this home's syncer knows."""
    if path is not None:
        return signed_project.read_signed(signed_path(path))
    known = home.hosted_projects(instance)
    if len(known) == 1:
        return signed_project.read_signed(known[0])
    if not known:
        raise UserError(
            f"No syncer {instance} has run in {home.root}. Run `shoal export` on the syncer's "
            "machine, with the syncer's --home and --instance."
        )
    names = ", ".join(str(copy) for copy in known)
    raise UserError(f"This home knows {len(known)} projects. Name one of them: {names}")
