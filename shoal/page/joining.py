"""What a stranger must have to take part, read off the project. Pure: it opens nothing."""

from __future__ import annotations

from typing import Final

from protocol.project import Charter, Genesis, MixedSource, hub_data, hub_source, is_files, on_hub
from protocol.shards import sample_bytes
from shoal.doctor import requirements
from shoal.page import words
from shoal.page.facts import SENTENCE_CHARS_MAX, JoinFacts

_WORDS_MAX: Final = 96
"""Of a name in a sentence."""

_COPIES: Final = {
    "file": "the same text file",
    "folder": "the same folder of texts",
    "parquet": "the same parquet files",
    "jsonl": "the same JSON files",
    "chats": "chats of your own, or a copy of the same ones",
    "images": "the same folder of images",
}


def joining(genesis: Genesis, charter: Charter, link: str) -> JoinFacts:
    """How one takes part in this project. link: without an invite; shown where it is enough."""
    needs = requirements.needs_of(genesis, charter)
    return JoinFacts(
        admission=charter.admission,
        link=link if charter.admission == "open" else "",
        memory_bytes=needs.training_bytes + requirements.DAEMON_BYTES * needs.parameters,
        disk_bytes=needs.frozen_bytes + _text_bytes(genesis),
        up_bytes=needs.payload_bytes_up,
        down_bytes=needs.payload_bytes_down,
        at_hand=words.line(" ".join([*_data(genesis), *_code(genesis)]), SENTENCE_CHARS_MAX),
    )


def model_words(genesis: Genesis) -> str:
    """What is trained, in a sentence; no place on anybody's disk."""
    if genesis.images is not None:
        what = f"A classifier of images in {len(genesis.images.classes):,} classes"
    elif genesis.masked is not None:
        what = "An encoder that says hidden words"
    elif genesis.trainer is not None:
        what = f"A model of the training code {genesis.trainer.name}"
    else:
        what = "A model that writes"
    parameters = sum(one.numel for one in genesis.model.tensors)
    if genesis.adapter is not None:
        what = f"An adapter of {_count(parameters)} parameters"
        beside = f" beside {_base(genesis)}" if genesis.base is not None else ""
        return words.line(f"{what}{beside}, trained on {_text(genesis)}.", SENTENCE_CHARS_MAX)
    begins = "from scratch" if genesis.base is None else f"from {_base(genesis)} on"
    size = f"{_count(parameters)} parameters ({genesis.model.architecture})"
    return words.line(f"{what}: {size}, trained {begins} on {_text(genesis)}.", SENTENCE_CHARS_MAX)


def _count(number: int) -> str:
    for size, unit in ((10**9, "billion"), (10**6, "million")):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:,}"


def _base(genesis: Genesis) -> str:
    """The published model by its name; a folder's is nobody's business."""
    found = hub_source(genesis.base.source) if genesis.base is not None else None
    return "a published model" if found is None else f"the published model {found[0]}"


def _text(genesis: Genesis) -> str:
    data = genesis.data
    whose = "published" if genesis.published is not None else "chosen"
    if genesis.mixture is not None:
        return f"a mixture of {len(genesis.mixture)} sources of text that the owner has {whose}"
    if data.source == "python-stdlib":
        return "the source of Python's own library"
    named = on_hub(data.source, data.location)
    if named is not None:
        return f"the data set {_hub(named)}"
    if data.source == "own":
        return "data of its own"
    kind = {"chats": "chats", "images": "images"}.get(data.source, "text")
    return f"{kind} that the owner has {whose}"


def _hub(location: str) -> str:
    found = hub_data(location)
    return words.line(found[0], _WORDS_MAX) if found is not None else "of the Hugging Face hub"


def _text_bytes(genesis: Genesis) -> int:
    """Of published data, all of it: a learner keeps what it read, within its owner's limit."""
    if genesis.published is None:
        return 0
    return genesis.data.blocks * genesis.data.block_sequences * sample_bytes(genesis)


def _data(genesis: Genesis) -> list[str]:
    data = genesis.data
    if genesis.published is not None:
        what = "text comes" if genesis.images is None else "images come"
        return [f"Nothing else: the {what} from the project's hosts."]
    if genesis.mixture is not None:
        return _mixture(genesis.mixture)
    if data.source == "python-stdlib":
        return ["Nothing else: Python brings the text."]
    named = on_hub(data.source, data.location)
    if named is not None:
        return [f"The data set {_hub(named)} is fetched from the Hugging Face hub."]
    if data.source == "own":
        return []
    return [f"You need {_COPIES[data.source]}: ask the owner, and name the place with --data."]


def _mixture(mixture: tuple[MixedSource, ...]) -> list[str]:
    """What files of it somebody must have; the rest comes from the hub, or with Python."""
    files = sum(is_files(one.source, one.location) for one in mixture)
    if not files:
        return ["Nothing else: its sources are fetched from the Hugging Face hub."]
    return [
        f"You need copies of {files} of the {len(mixture)} sources in one folder: ask the owner, "
        "and name the folder with --data."
    ]


def _code(genesis: Genesis) -> list[str]:
    code = genesis.trainer
    if code is None:
        return []
    return [f"The package {code.package} {code.version} must be installed, which trains it."]
