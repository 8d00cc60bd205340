"""What `shoal join` would refuse after it knows the project: said by the very same checks.

Nothing here talks to anybody. Text of the owner's is read where it is small.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from host.files import keystore
from host.files.home import DEFAULT_INSTANCE, Home
from host.files.pinned_files import PinnedFiles
from host.join_link import JoinLink
from host.options import NodeOptions
from node.daemon import trainer_options
from protocol.errors import UserError
from protocol.log.state import SwarmState
from protocol.project import Charter, DataSpec, Genesis, ImageSpec, MixedSource, is_files, on_hub
from shoal.doctor import diagnosis
from shoal.doctor.findings import Finding, OwnText, Topic
from syncer_node.machine.trust.invites import Invites

READ_BYTES_MAX: Final = 64 << 20
"""Text up to this size is tokenised here, as a learner does first of all; seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What would be said to `shoal join` beside the link."""

    instance: str = DEFAULT_INSTANCE
    data: str | None = None
    trainer: str | None = None


UNSAID: Final = Wishes()


def refusals(
    home: Home, link: JoinLink, genesis: Genesis, charter: Charter | None, wishes: Wishes
) -> Iterator[Finding]:
    """Findings on the text, the training code and the admission."""
    options = NodeOptions(
        home=home,
        link=link,
        name="",
        instance=wishes.instance,
        data=wishes.data,
        trainer=wishes.trainer,
    )
    yield from _text(options, genesis)
    if wishes.trainer is not None:
        code = _failing("trainer", lambda: trainer_options.training_code(options, genesis))
        yield code or Topic("trainer").good("the training code is installed")
    if charter is not None:
        yield _admission(options, charter)


def _text(options: NodeOptions, genesis: Genesis) -> Iterator[Finding]:
    tokenizer = _failing(
        "tokenizer", lambda: trainer_options.require_foreign_tokenizer(options, genesis)
    )
    if tokenizer is not None:
        yield tokenizer
        return
    location = ""

    def find() -> None:
        nonlocal location
        location = trainer_options.data_location(options, genesis)

    found = _failing("text", find)
    if found is not None:
        yield found
    elif genesis.published is not None:
        yield Topic("text").good("other hosts give it, as it is trained on")
    elif genesis.mixture is not None:
        yield _mixture(genesis.mixture, genesis.data, location)
    elif on_hub(genesis.data.source, location) is not None:
        yield Topic("text").good(f"it comes from the Hugging Face hub: {location}")
    elif genesis.data.source == "chats":
        yield diagnosis.own_chats(location, own_text(genesis.data, location))
    elif genesis.images is not None:
        yield _images(genesis.data, genesis.images, location)
    elif is_files(genesis.data.source, location):
        yield _copy(options.home, genesis, location)


def _mixture(mixture: tuple[MixedSource, ...], data: DataSpec, location: str) -> Finding:
    """Whether the files of all its sources are there; they are read later."""
    import msgspec

    from node.trainer.text import mixture as mixtures
    from node.trainer.text import sources

    size_bytes = 0
    try:
        for one in mixtures.located(mixture, location) if location else mixture:
            spec = msgspec.structs.replace(data, source=one.source, location=one.location)
            size_bytes += sources.local_bytes(spec)
    except UserError as error:
        return Topic("text").trouble(*_parted(str(error)))
    seen = Topic("text", bytes=float(size_bytes))
    return seen.good(
        f"all {len(mixture)} sources of the mixture are at hand, {size_bytes / 1e6:.1f} MB of files"
        "; not read yet"
    )


def own_text(data: DataSpec, path: str) -> OwnText:
    """A look at chats that the owner of this machine names. Loads no model."""
    import msgspec

    from node.trainer.text.sources import survey_chats

    try:
        found = survey_chats(msgspec.structs.replace(data, location=path))
    except UserError as error:
        return OwnText(trouble=str(error))
    return OwnText(found.used, found.words)


def _images(spec: DataSpec, images: ImageSpec, location: str) -> Finding:
    """Whether there are files for the project's classes; decoding comes later."""
    import msgspec

    from node.trainer.images.image_set import count_images

    try:
        found = count_images(msgspec.structs.replace(spec, location=location), images)
    except UserError as error:
        return Topic("images").trouble(*_parted(str(error)))
    seen = Topic("images", images=float(found))
    return seen.good(f"{found:,} images lie at {location}; not decoded yet")


COPY: Final = "Name a copy of it with --data PATH; the project's host has it."


def _copy(home: Home, genesis: Genesis, location: str) -> Finding:
    """What the trainer would make of the text that lies here."""
    import msgspec

    from node.trainer.text import corpus, sources

    spec: DataSpec = msgspec.structs.replace(genesis.data, location=location)
    try:
        with sources.read_as_a_copy(genesis.data, location):
            size_bytes = sources.local_bytes(spec)
            seen = Topic("text", bytes=float(size_bytes))
            tokenizer = genesis.tokenizer
            is_read = spec.source != "parquet" and size_bytes <= READ_BYTES_MAX
            if not is_read or PinnedFiles(home.data_cache(), tokenizer).missing():
                return seen.good(f"{size_bytes / 1e6:.1f} MB lie at {location}; not read yet")
            opened = corpus.open_corpus(
                spec,
                seed=genesis.seed,
                cache=home.data_cache(),
                tokenizer=tokenizer,
                documents=genesis.documents,
            )
    except UserError as error:
        if location == genesis.data.location:
            return Topic("text").trouble(*_parted(str(error)))
        return Topic("text").trouble(str(error), COPY)
    if not opened.matches:
        return seen.care(
            f"the text at {location} is not the one that the project was signed with; a learner "
            "trains on it all the same",
            "Ask the project's owner for a copy, if it should be the same.",
        )
    return seen.good(f"the text at {location} is the one that the project was signed with")


def _admission(options: NodeOptions, charter: Charter) -> Finding:
    """What a syncer would say to this learner's key."""
    path: Path = options.home.identity("learner", options.instance)
    key = keystore.load_or_create(path).key if path.is_file() else bytes(32)
    refused = Invites(SwarmState(block_sequences=1), lambda _: None).standing_refusal(charter, key)
    seen = Topic("admission", rule=charter.admission)
    if refused is None:
        return seen.good("the project lets this machine take part")
    if refused.reason != "not-invited":
        return seen.trouble(*_parted(refused.text))
    if options.link.invite is not None:
        return seen.good("the link brings an invite; the syncer judges whether it still holds")
    return seen.care(
        "this project takes part by invitation, and the link brings no invite",
        "If this machine did not take part before, ask its host for a link made with "
        "`shoal invite`.",
    )


def _failing(topic: str, check: Callable[[], object]) -> Finding | None:
    """What speaks against it, if the check refuses."""
    try:
        check()
    except UserError as error:
        return Topic(topic).trouble(*_parted(str(error)))
    return None


def _parted(text: str) -> tuple[str, str]:
    """The first sentence, and the rest as advice."""
    says, dot, remedy = text.partition(". ")
    return says + ("." if dot else ""), remedy
