"""What a page says, as a value: `page.json` is this and nothing else, and so is what is drawn.

Every field is named here, so that nothing is public that nobody thought of; every field is bounded,
because `shoal pages` reads what strangers serve under this name.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from protocol import limits

BYTES_MAX: Final = 256 << 10
"""Of `page.json`; what is longer is none."""

CURVE_MAX: Final = 300
GIVERS_MAX: Final = 24
TEAMS_MAX: Final = 12
SENTENCE_CHARS_MAX: Final = 600
SAMPLE_CHARS_MAX: Final = 1200

Level = Literal["WELL", "CARE", "TROUBLE", "START", "PAUSED", "DONE"]
Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Permille = Annotated[int, Meta(ge=0, le=1000)]
Loss = Annotated[float, Meta(ge=0.0, le=limits.LOSS_MAX)]
AtS = Annotated[float, Meta(ge=0.0, le=limits.AT_S_MAX)]
Hex = Annotated[str, Meta(pattern=r"^[0-9a-f]{0,64}\Z")]
Name = Annotated[str, Meta(max_length=limits.NAME_CHARS_MAX)]
Line = Annotated[str, Meta(max_length=SENTENCE_CHARS_MAX)]
Link = Annotated[str, Meta(pattern=r"^(shoal:[A-Za-z0-9_-]+)?\Z", max_length=limits.LINK_CHARS_MAX)]


class ProjectFacts(Struct, kw_only=True, frozen=True):
    """What is trained."""

    id: Hex
    name: Name
    about: Annotated[
        list[Annotated[str, Meta(max_length=limits.TEXT_CHARS_MAX)]],
        Meta(max_length=limits.TEXT_CHARS_MAX),
    ] = []
    """Why, in the owner's words, by paragraph."""
    model: Line = ""
    """What is trained, in a sentence."""
    parameters: Count = 0
    token_budget: Count = 0


class StateFacts(Struct, kw_only=True, frozen=True):
    """How the run is, by the verdict of `shoal status`."""

    level: Level
    sentence: Line
    seen_s: AtS
    """When the syncer said it: Unix seconds."""


class RunFacts(Struct, kw_only=True, frozen=True):
    """How far the run is."""

    global_step: Count = 0
    tokens: Count = 0
    """Committed."""
    permille: Permille = 0
    """Of the token budget."""
    tokens_per_s: Annotated[float, Meta(ge=0.0, le=1e15)] | None = None
    """Committed lately; None while not known."""
    left: Name = ""
    """Time left, in words."""
    learners_training: Count | None = None
    """Now; None where this syncer only stands by and another one knows."""
    learners_here: Count | None = None
    voters_here: Count = 0
    voters: Count = 0
    curve: Annotated[list[tuple[Count, Count, Loss]], Meta(max_length=CURVE_MAX)] = []
    """Global step, committed tokens, held-out loss in nats per token; oldest first."""
    best: tuple[Count, Count, Loss] | None = None
    """The best checkpoint's."""


class Giver(Struct, kw_only=True, frozen=True):
    """A contributor."""

    key: Hex
    """Its first eight digits; names are no identity."""
    name: Name
    permille: Permille
    tokens: Count
    merges: Count
    is_here: bool = False


class Team(Struct, kw_only=True, frozen=True):
    """Contributors whose names begin with the same team and a slash."""

    name: Name
    permille: Permille
    tokens: Count
    members: Count


class GivenFacts(Struct, kw_only=True, frozen=True):
    """Who gave how much: shares of all tokens that the log counts."""

    contributors: Count = 0
    shown: Annotated[list[Giver], Meta(max_length=GIVERS_MAX)] = []
    """Most first. Their shares and that of the others are 1000 together, or 0 at the beginning."""
    others_permille: Permille = 0
    teams: Annotated[list[Team], Meta(max_length=TEAMS_MAX)] = []
    """Of those that a status names."""


class JoinFacts(Struct, kw_only=True, frozen=True):
    """How one takes part."""

    admission: Literal["open", "invite", "list"] = "open"
    link: Link = ""
    """Empty where a link alone brings nobody in; never with an invite."""
    memory_bytes: Count = 0
    """At least."""
    disk_bytes: Count = 0
    """At most, for what the project brings; beside the installation."""
    up_bytes: Count = 0
    """Sent in each cycle of H local steps."""
    down_bytes: Count = 0
    at_hand: Line = ""
    """What a volunteer must have already, in sentences."""


class SampleFacts(Struct, kw_only=True, frozen=True):
    """What the model wrote, on a learner beside the syncer."""

    prompt: Annotated[str, Meta(max_length=SAMPLE_CHARS_MAX)]
    text: Annotated[str, Meta(max_length=SAMPLE_CHARS_MAX)]
    global_step: Count
    at_s: AtS


class PageFacts(Struct, kw_only=True, frozen=True):
    """Everything on the page."""

    page: Literal[1] = 1
    """Version of this format; fields may be added to it at any time."""
    at_s: AtS
    """When this was put together: Unix seconds."""
    software: Name
    """Version of Shoal."""
    project: ProjectFacts
    state: StateFacts
    run: RunFacts
    given: GivenFacts
    join: JoinFacts
    sample: SampleFacts | None = None
