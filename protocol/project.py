"""What a project is: the immutable genesis, and the charter that its owner may revise.

Genesis: the hash of its bytes is the project id. Everything whose change would make old weights or
old records meaningless lives here. Charter: a numbered revision signed by the genesis' owner key;
the highest revision that verifies wins. Neither names code that would run on a volunteer's host:
training code is named by an entry point that the volunteer installed.
"""

from __future__ import annotations

import math
import re
from typing import Annotated, Final, Literal, NamedTuple

import msgspec
from blake3 import blake3
from msgspec import Meta, Struct

from protocol import limits
from protocol.ids import Count, Digest, InviteId, NodeKey

CodecName = Literal["f32", "bf16", "int8", "int4", "int2", "int1"]
MergeRule = Literal["rda", "mean"]
WeightRule = Literal["quality", "tokens", "equal"]
Eligibility = Literal["cycle", "step"]
FragmentStrategy = Literal["balanced", "tensor", "layer", "rows"]
ApplyRule = Literal["overwrite", "blend", "rebase"]
Durability = Literal["leader", "standby", "majority"]
AdmissionRule = Literal["open", "invite", "list"]
GuardRule = Literal["pause", "off", "restore"]
"""What happens once the held-out loss is far above the best: merging pauses until the owner
decides; nothing; or the guard goes back to the best checkpoint by itself."""

Name = Annotated[str, Meta(min_length=1, max_length=limits.NAME_CHARS_MAX)]
Text = Annotated[str, Meta(max_length=limits.TEXT_CHARS_MAX)]
Positive = Annotated[int, Meta(ge=1, le=2**40)]
Fraction = Annotated[float, Meta(ge=0.0, le=1.0)]
Spread = Annotated[float, Meta(gt=0.0, le=100.0)]
Rate = Annotated[float, Meta(ge=0.0, le=100.0)]
Seconds = Annotated[float, Meta(gt=0.0, le=86_400.0)]

TrainerName = Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9_-]{0,62}\Z")]
PackageWord = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]{0,62}\Z")]

_HUB_WORD = r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}"
_REVISION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,95}")
_HUB_NAME = re.compile(rf"{_HUB_WORD}/{_HUB_WORD}(:{_HUB_WORD})?")

Scalar = bool | int | float | str | None
Branch = Scalar | list[Scalar] | dict[Annotated[str, Meta(max_length=64)], Scalar | list[Scalar]]
ConfigValue = Scalar | list[Scalar] | dict[Annotated[str, Meta(max_length=64)], Branch]
"""As `transformers` writes them: plain values, lists of them, and tables of both, two deep."""


class TensorSpec(Struct, frozen=True, array_like=True):
    """One trainable tensor, named as the model names it, in the model's own order."""

    name: Annotated[str, Meta(min_length=1, max_length=256)]
    shape: Annotated[tuple[Positive, ...], Meta(max_length=8)]
    rule: MergeRule
    """By weighted mean, as is usual for embeddings, or radially (RDA), as for everything else."""

    @property
    def numel(self) -> int:
        count = 1
        for size in self.shape:
            count *= size
        return count


class MergeRules(Struct, frozen=True):
    """How each class of tensors is merged; the genesis holds what becomes of it, per tensor."""

    embeddings: MergeRule = "mean"
    """Tables from tokens or positions to vectors, and from vectors to tokens."""
    matrices: MergeRule = "rda"
    """Everything else of two or more dimensions."""
    vectors: MergeRule = "rda"
    """Norms and biases."""


class ModelSpec(Struct, frozen=True, array_like=True):
    """A model of `transformers`, or what training code makes; its configuration values."""

    architecture: Name
    """By its class or its `model_type`; with training code of its own, the name of that."""
    config: dict[Annotated[str, Meta(max_length=64)], ConfigValue]
    tensors: Annotated[tuple[TensorSpec, ...], Meta(max_length=limits.TENSORS_MAX)]


TextKind = Literal["python-stdlib", "file", "folder", "parquet", "hub", "chats", "jsonl"]
LOCAL_KINDS: Final = frozenset({"file", "folder", "parquet", "chats", "jsonl", "images"})
"""Sources that are files, unless chats are `on_hub`."""
HUB: Final = "hub:"
"""Before the name of what a source that reads files would else take for a path."""


class DataSpec(Struct, frozen=True, array_like=True):
    """Where text comes from and how it is cut into leased blocks of fixed-length sequences."""

    source: TextKind | Literal["own", "images", "mixture"]
    """`own`: the training code brings its data, of any kind. `chats`: conversations, of which the
    answers are learned. `images`: pictures with a class each; then what is said of sequences and
    documents here is said of them. `mixture`: what `Genesis.mixture` names."""
    location: Text
    """Path, or the `hub_data` of a data set, behind `HUB` where it has chats; empty for
    `python-stdlib` and for a mixture."""
    text_field: Name
    tokenizer: Text
    """`bytes`, `base` for the base model's, or the path or `hub_name` of a `tokenizers` one."""
    sequence_tokens: Annotated[int, Meta(ge=8, le=1 << 20)]
    """Of own data and of images: what one sample counts."""
    block_sequences: Annotated[int, Meta(ge=1, le=1 << 16)]
    """Sequences in one leased block."""
    blocks: Positive
    """Blocks in one pass over the training split, as counted where the project was signed."""
    heldout_frac: Annotated[float, Meta(gt=0.0, le=0.5)]
    """Share of documents, chosen by content hash, that nobody trains on."""
    digest: Digest
    """Hash of the training split where the project was signed; other hosts compare and say so."""


class MixedSource(Struct, frozen=True, array_like=True):
    """One of several sources of text that a project trains on, each by its weight."""

    source: TextKind
    location: Text
    """As `DataSpec.location`."""
    text_field: Name
    weight: Annotated[float, Meta(gt=0.0, le=1e6)]
    """In proportion to those of the others: share of the sequences that are trained on."""
    sequences: Positive
    """To train on, as counted where the project was signed."""
    digest: Digest
    """Hash of its training split where the project was signed."""


class BaseTensor(Struct, frozen=True, array_like=True):
    """One tensor of a base model, as the model has it once it is loaded."""

    stored: Literal["F32", "BF16", "F16"]
    """How the files hold it; the project's weights are f32."""
    digest: Digest
    """blake3 of its values: little-endian f32, without subnormals and negative zeros."""


class FirstState(Struct, frozen=True, array_like=True):
    """Content hashes of version 0 of a fragment, as the record of the first weights names them."""

    theta: Digest
    momentum: Digest


class BaseSpec(Struct, frozen=True, array_like=True):
    """The published model that version 0 is taken from, bit for bit."""

    source: Text
    """`hub:OWNER/NAME@REVISION`, or `folder:NAME`; a folder is known by what is in it."""
    tensors: Annotated[tuple[BaseTensor, ...], Meta(min_length=1, max_length=limits.TENSORS_MAX)]
    """In the order of the model's tensor table; with an adapter, of its frozen tensors."""
    states: Annotated[tuple[FirstState, ...], Meta(min_length=1, max_length=limits.FRAGMENTS_MAX)]
    """In the order of the fragments: whoever begins with other weights is not followed."""


TrainedPart = Literal["both", "b"]
"""Of an adapter: both of its matrices, or the second one beside a first one that stays as drawn."""
HeldAs = Literal["bf16", "f32"]


class FrozenTensor(Struct, frozen=True, array_like=True):
    """One tensor of a base model that nobody trains, in the model's own order."""

    name: Annotated[str, Meta(min_length=1, max_length=256)]
    shape: Annotated[tuple[Positive, ...], Meta(max_length=8)]

    @property
    def numel(self) -> int:
        return math.prod(self.shape)


class AdapterSpec(Struct, frozen=True, array_like=True):
    """A low-rank adapter (LoRA): all that is trained, merged and sent, beside a frozen base model.

    Beside each target W stand A [rank, in] and B [out, rank]; the layer is W + alpha / rank * B A.
    """

    rank: Annotated[int, Meta(ge=1, le=1024)]
    alpha: Annotated[float, Meta(gt=0.0, le=65_536.0)]
    dropout: Annotated[float, Meta(ge=0.0, lt=1.0)]
    targets: Annotated[tuple[Name, ...], Meta(min_length=1, max_length=limits.TARGETS_MAX)]
    """Layers by the last parts of their names; `all-linear` in a project file names all but the
    output table."""
    trains: TrainedPart
    """`both` matrices, or only `b`: then A stays as the seed drew it, and a merge is exact."""
    base_dtype: HeldAs
    """What the frozen base model is held as, on disk and in a trainer."""
    frozen: Annotated[tuple[FrozenTensor, ...], Meta(max_length=limits.TENSORS_MAX)] = ()
    """The base model's tensors; their values, one after the other, are the held base."""
    pieces: Annotated[tuple[Digest, ...], Meta(max_length=limits.HELD_PIECES_MAX)] = ()
    """Content hashes of the held base, cut every `HELD_PIECE_BYTES`: peers are asked for these."""

    @property
    def held_bytes(self) -> int:
        """Of the held base."""
        size = 2 if self.base_dtype == "bf16" else 4
        return size * sum(one.numel for one in self.frozen)


TokenizerFile = Literal[
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "generation_config.json",
]
"""The last says how a base model is sampled from: which tokens end an answer, at what temperature.
It counts tokens of that model's own tokenizer, so it is pinned beside that one alone."""


class PinnedFile(Struct, frozen=True, array_like=True):
    """A file that every learner of the project has, given by peers."""

    name: TokenizerFile
    bytes: Annotated[int, Meta(ge=1, le=limits.TOKENIZER_BYTES_MAX)]
    digest: Digest
    """Content hash, by which peers are asked for it."""


class TokenizerSpec(Struct, frozen=True, array_like=True):
    """The tokenizer of a project, to the byte."""

    files: Annotated[tuple[PinnedFile, ...], Meta(min_length=1, max_length=limits.PINNED_FILES_MAX)]
    """`tokenizer.json` is one of them; the others are for whoever uses the model later."""
    end_of_text: Annotated[str, Meta(min_length=1, max_length=256)]
    """The token that ends a document."""


class TrainerSpec(Struct, frozen=True, array_like=True):
    """Training code that is not Shoal's: only its name is here, everybody installs it himself."""

    name: TrainerName
    """Of its entry point; never a module, so that a project cannot choose what is imported."""
    package: PackageWord
    """The installed distribution that has it."""
    version: PackageWord
    """... and its version."""


class MaskedSpec(Struct, frozen=True, array_like=True):
    """How an encoder is trained: some tokens of each sequence are hidden, and it says which they
    were (masked language modelling)."""

    token: Annotated[int, Meta(ge=0, le=2**32 - 1)]
    """The id that stands where one is hidden."""
    frac: Annotated[float, Meta(gt=0.0, le=0.5)]
    """Share of the tokens of a sequence that are to be said."""


class ImageSpec(Struct, frozen=True, array_like=True):
    """What a model is shown of a picture, and what it may answer."""

    height: Annotated[int, Meta(ge=1, le=limits.IMAGE_SIDE_MAX)]
    """In pixels, like the width: pictures of another size are scaled to this one."""
    width: Annotated[int, Meta(ge=1, le=limits.IMAGE_SIDE_MAX)]
    channels: Literal[1, 3]
    """Grey, or red, green and blue."""
    mean: Annotated[tuple[Fraction, ...], Meta(min_length=1, max_length=3)]
    """By channel, of values between 0 and 1: taken away first."""
    std: Annotated[tuple[Spread, ...], Meta(min_length=1, max_length=3)]
    """By channel: divided by."""
    classes: Annotated[tuple[Name, ...], Meta(min_length=2, max_length=limits.IMAGE_CLASSES_MAX)]
    """Names of the folders that pictures lie in; their places are the labels."""
    images: Positive
    """Pictures to train on where the project was signed."""
    heldout: Positive
    """Pictures that nobody trains on."""


DocumentRule = Literal["separate"] | None
"""How a decoder reads the documents that lie in one sequence: each as if it were alone, with
attention and positions of its own; None: joined, as one text."""


class PublishedSpec(Struct, frozen=True, array_like=True):
    """The data itself, as its owner tokenised it: in shards, which hosts give each other."""

    manifest: Digest
    """Content hash of the list of shards (`protocol.shards.ShardManifest`)."""
    manifest_bytes: Annotated[int, Meta(ge=1, le=limits.MANIFEST_BYTES_MAX)]
    shard_blocks: Annotated[int, Meta(ge=1, le=1 << 20)]
    """Blocks in each shard but the last; shards of what is held out have as many sequences."""
    token_bytes: Literal[2, 4]
    """Of one token: unsigned in 2, or in 4 with context that nobody learns as -1 - id. Of images:
    2, of the number of a class, which stands before the pixels."""


class Genesis(Struct, frozen=True, array_like=True):
    """Immutable facts of a project. `project_id` of its bytes names the project everywhere."""

    wire_version: Count
    name: Name
    owner: NodeKey
    model: ModelSpec
    data: DataSpec
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)]
    strategy: FragmentStrategy
    fragments: Annotated[int, Meta(ge=1, le=limits.FRAGMENTS_MAX)]
    base: BaseSpec | None = None
    """What version 0 is taken from; None: `seed` draws it."""
    tokenizer: TokenizerSpec | None = None
    """What `data.tokenizer` stands for; None: `bytes`, or whatever each host finds there."""
    trainer: TrainerSpec | None = None
    """Whose training code takes the local steps; None: Shoal's own."""
    adapter: AdapterSpec | None = None
    """What is trained in place of the model's own tensors; then the model's table is of these."""
    masked: MaskedSpec | None = None
    """The model is an encoder that says hidden tokens; None: it says what comes next."""
    images: ImageSpec | None = None
    """The model says the class of a picture."""
    documents: DocumentRule = None
    published: PublishedSpec | None = None
    """The data come from other hosts; None: every learner has them itself."""
    mixture: (
        Annotated[
            tuple[MixedSource, ...], Meta(min_length=2, max_length=limits.MIXTURE_SOURCES_MAX)
        ]
        | None
    ) = None
    """What `data` is made of; None: of what it names itself."""

    @property
    def kinds(self) -> frozenset[str]:
        """Kinds of the sources that are trained on."""
        return frozenset(
            one.source for one in (self.mixture if self.mixture is not None else (self.data,))
        )

    @property
    def writes(self) -> bool:
        """Whether the model goes on with a text, as far as Shoal knows."""
        return self.masked is None and self.images is None and self.trainer is None


class Voter(Struct, frozen=True, array_like=True):
    """A host whose signature counts towards commitment."""

    key: NodeKey
    role: Literal["syncer", "witness"]
    priority: Annotated[int, Meta(ge=0, le=100)]
    """Among syncers, the highest leads when it can."""
    disk: Count = 0
    """Raised by the owner to admit this key with a new disk; votes of the former do not count."""


class Origin(Struct, frozen=True, array_like=True):
    """Where an epoch after the first continues: behind this record, whatever came after it."""

    index: Count
    head: Digest
    snapshot: Count = 0
    """The snapshot that ends at this record: learners that hold a part of it go on from that."""


class InnerSpec(Struct, frozen=True, array_like=True):
    """What a learner's local steps do."""

    optimizer: Literal["adamw", "muon"]
    learning_rate: Rate
    weight_decay: Rate
    beta1: Fraction
    beta2: Fraction
    grad_norm_max: Annotated[float, Meta(gt=0.0, le=1e6)]
    batch_sequences: Annotated[int, Meta(ge=1, le=1 << 16)]
    """Sequences in one local step, whatever the micro-batch: of all learners, or the fewest."""
    warmup_frac: Fraction
    """Share of the token budget over which the learning rate rises."""
    final_learning_rate_frac: Fraction
    """Learning rate at the end of the budget, as a share of the peak."""
    fresh_moment_steps: Annotated[int, Meta(ge=0, le=10_000)]
    """Local steps over which a learner with fresh optimizer moments ramps up."""
    moments: Literal["fresh", "peer"] = "fresh"
    """What a (re)started learner's optimizer begins with: nothing, or the state of another."""
    muon_momentum: Annotated[float, Meta(ge=0.0, lt=1.0)] = 0.95
    """With `muon`: memory of the gradients of hidden matrices."""
    schedule: Literal["cosine", "wsd"] = "cosine"
    """How the rate falls behind the warm-up: along a cosine, or flat and at the end straight down
    (warmup-stable-decay, arXiv 2404.06395)."""
    decay_frac: Annotated[float, Meta(gt=0.0, le=1.0)] = 0.2
    """With `wsd`: share of the token budget over which it falls."""
    z_loss: Annotated[float, Meta(ge=0.0, le=1.0)] = 0.0
    """Weight beside each token's cross-entropy of the square of the logarithm of what its softmax
    divides by, which keeps logits small (PaLM, arXiv 2204.02311)."""
    batch_sequences_max: Annotated[int, Meta(ge=0, le=1 << 16)] = 0
    """The most sequences in one local step of a learner that is strong enough; up to
    `batch_sequences`, everybody takes that many."""

    @property
    def batch_range(self) -> tuple[int, int]:
        """Fewest and most sequences that a learner may take in one local step."""
        return self.batch_sequences, max(self.batch_sequences, self.batch_sequences_max)

    def with_batch(self, wished: int) -> InnerSpec:
        """The same with a batch of one size: `wished`, or the nearest to it that is allowed."""
        fewest, most = self.batch_range
        return msgspec.structs.replace(
            self, batch_sequences=min(max(wished, fewest), most), batch_sequences_max=0
        )

    @property
    def bounds_moments(self) -> bool:
        """Whether second moments bound first ones, so that a stranger's state can be judged.

        Muon keeps no second moments: nothing would bound what it is given.
        """
        return self.optimizer == "adamw" and self.beta1**2 < self.beta2 < 1.0

    def trains_as(self, other: InnerSpec) -> bool:
        """Whether local steps are the same; where moments come from matters at a start only."""
        return msgspec.structs.replace(self, moments=other.moments) == other


TrustRule = Literal["all", "earned"]
"""`all`: every push counts in full, clipped against the others of its merge only. `earned`: by
where the learner's pushes pointed so far (`protocol.standing`), clipped against the newest push of
every learner."""


class OuterSpec(Struct, frozen=True, array_like=True):
    """What a merge does: SGD with momentum on the decoded merged displacement."""

    learning_rate: Rate
    momentum: Annotated[float, Meta(ge=0.0, lt=1.0)]
    clip_to_median: Annotated[float, Meta(ge=1.0, le=1e6)]
    """A push whose norm exceeds this multiple of the group's median is scaled down to it."""
    nesterov: bool = True
    """Look ahead along the new momentum; otherwise plain momentum. No effect without momentum."""
    trust: TrustRule = "all"
    """How far the push of a learner counts."""
    probes_frac: Annotated[float, Meta(ge=0.0, le=10.0)] = 0.0
    """To the swarm's training, what goes into probes of whether pushes were trained on their text;
    0: nobody probes, and nobody is suspended. Above 1 only a trial needs it."""
    ema: Annotated[float, Meta(ge=0.0, lt=1.0)] = 0.0
    """What a merge keeps of the moving average that syncers hold for whoever exports the model; 0:
    there is none. Training does not depend on it."""


class RoundSpec(Struct, frozen=True, array_like=True):
    """When a fragment is merged, and whom a round waits for."""

    local_steps: Annotated[int, Meta(ge=1, le=100_000)]
    """H: local steps between two merges of the same fragment."""
    overlap_steps: Annotated[int, Meta(ge=1, le=64)]
    """tau: rounds in flight at most, always on different fragments."""
    quorum: Annotated[int, Meta(ge=1, le=limits.LEARNERS_MAX)]
    """K: pushes a round needs; fewer live learners lower it after `patience_s`."""
    grace_safety: Fraction
    """gamma: share of the estimated slack that a round may wait after its quorum."""
    pace_share: Fraction
    """Share of the live token rate that must be ready before a round opens; 0: K learners are."""
    patience_s: Seconds
    """How long a round waits for K before it settles for those alive."""
    pull_timeout_s: Seconds
    """A learner that has not delivered by then is late for this round."""
    apply: ApplyRule
    up_codec: CodecName
    down_codec: CodecName
    alpha: Annotated[float, Meta(ge=0.0, lt=1.0)] = 0.5
    """With `blend`: the share of its local value that a learner keeps when a merge comes."""
    weights: WeightRule = "quality"
    """What a push weighs: tokens times tokens per local step, its tokens, or as much as any."""
    eligible: Eligibility = "cycle"
    """Who is ready for a round: whoever has H local steps on its fragment, or one (the paper's)."""
    participants_max: Annotated[int, Meta(ge=0, le=limits.LEARNERS_MAX)] = 0
    """Learners that a round asks at most, in turn; 0: all. Those left out keep their local steps
    and hand them in with later ones."""
    mergers_max: Annotated[int, Meta(ge=0, le=limits.VOTERS_MAX)] = 1
    """Syncers that merge at most, each some of the fragments; 1: the leader alone; 0: all."""

    @property
    def kept_frac(self) -> float:
        """Share of the local value that outlives the delivery of a new version."""
        return self.alpha if self.apply == "blend" else 0.0


class LimitSpec(Struct, frozen=True, array_like=True):
    """What the owner bounds."""

    tokens: Positive
    """Token budget of the run."""
    learners: Annotated[int, Meta(ge=1, le=limits.LEARNERS_MAX)]
    evaluate_every: Annotated[int, Meta(ge=1, le=1_000_000)]
    """Global steps between two checkpoints that are evaluated on held-out text."""
    heldout_sequences: Annotated[int, Meta(ge=1, le=65_536)]
    """Sequences of the held-out split in one evaluation."""
    lease_s: Seconds
    """A leased block is taken back from a silent learner after this."""
    lease_blocks: Annotated[int, Meta(ge=1, le=4096)]
    """Blocks in one lease at most."""
    snapshot_every_s: Annotated[float, Meta(ge=0.0, le=1e8)] = 0.0
    """Seconds between two snapshots of the whole swarm; 0: only when asked for."""
    snapshots_kept: Annotated[int, Meta(ge=1, le=limits.SNAPSHOTS_MAX)] = 3
    """Snapshots kept; the oldest go first."""


class Reinstated(Struct, frozen=True, array_like=True):
    """A learner whose suspension the owner lifted."""

    learner: NodeKey
    revision: Count
    """Of the charter that lifted it: a later suspension is not lifted by this."""


class Charter(Struct, frozen=True, array_like=True):
    """What the owner may change during the run, by signing a higher revision."""

    project: Digest
    revision: Count
    voters: Annotated[tuple[Voter, ...], Meta(min_length=1, max_length=limits.VOTERS_MAX)]
    banned: Annotated[tuple[NodeKey, ...], Meta(max_length=limits.BANNED_MAX)]
    inner: InnerSpec
    outer: OuterSpec
    rounds: RoundSpec
    limits: LimitSpec
    durability: Durability = "standby"
    """Who must hold a merge before it counts: the leader; another syncer as long as one is there;
    a majority of the syncers, always."""
    epoch: Count = 0
    """Raised by the owner when the voters of before cannot go on."""
    origin: Origin | None = None
    """Present from the second epoch on."""
    admission: AdmissionRule = "open"
    """Who may take part, unless banned: everybody; keys that an invite brought, and listed ones;
    listed ones alone."""
    allowed: Annotated[tuple[NodeKey, ...], Meta(max_length=limits.ALLOWED_MAX)] = ()
    """The keys that the owner listed."""
    revoked: Annotated[tuple[InviteId, ...], Meta(max_length=limits.INVITES_REVOKED_MAX)] = ()
    """Invites that bring nobody any more; whom they brought stays."""
    reinstated: Annotated[tuple[Reinstated, ...], Meta(max_length=limits.REINSTATED_MAX)] = ()
    """Learners that were suspended for what probes said, and may take part again."""
    guard: GuardRule = "off"
    """What happens once the held-out loss is far above the best."""
    resumed: Digest | None = None
    """Hash of the record with which a pause of the guard began: the owner says to go on from it."""
    paused_at_s: Annotated[float, Meta(ge=0.0, le=limits.AT_S_MAX)] | None = None
    """Since when the owner pauses the whole run, by the owner's clock: Unix seconds; None: it goes
    on."""
    about: Text | None = None
    """What the run is for, in the owner's words, for the project's page; None: nothing is said."""

    def voter(self, key: bytes) -> Voter | None:
        """The voter with this key, if it is one."""
        return next((voter for voter in self.voters if voter.key == key), None)


def hub_name(text: str) -> tuple[str, str] | None:
    """(`owner/name`, configuration or "") of something on the Hugging Face hub, or None.

    A name without an owner is none: the libraries that read the hub take it for a local folder or
    for a reader of local files.
    """
    if _HUB_NAME.fullmatch(text) is None or ".." in text:
        return None
    name, _, configuration = text.partition(":")
    return name, configuration


def on_hub(source: str, location: str) -> str | None:
    """What a source names on the Hugging Face hub, which `hub_data` may find to be no name; None
    where it reads something else."""
    if source == "hub":
        return location
    if source == "chats" and location.startswith(HUB):
        return location.removeprefix(HUB)
    return None


def is_files(source: str, location: str) -> bool:
    """Whether a source reads files, of which everybody who reads them must have a copy."""
    return source in LOCAL_KINDS and on_hub(source, location) is None


class HubData(NamedTuple):
    """A data set of the Hugging Face hub."""

    name: str
    """`owner/name`."""
    configuration: str
    """Empty: the only one, or the one that the data set calls its default."""
    revision: str
    """A commit, a tag or a branch; empty: whatever is newest."""


def hub_data(text: str) -> HubData | None:
    """The data set that `OWNER/NAME`, `OWNER/NAME:CONFIGURATION`, or one of both with `@REVISION`
    names, or None."""
    named, at, revision = text.partition("@")
    known = hub_name(named)
    if known is None or (at and not _is_revision(revision)):
        return None
    return HubData(*known, revision)


def _is_revision(text: str) -> bool:
    return _REVISION.fullmatch(text) is not None and ".." not in text


def hub_source(text: str) -> tuple[str, str] | None:
    """(`owner/name`, revision) of a base model `hub:OWNER/NAME@REVISION`, or None."""
    kind, _, rest = text.partition(":")
    name, at, revision = rest.partition("@")
    if kind != "hub" or not at or hub_name(name) != (name, ""):
        return None
    return (name, revision) if _is_revision(revision) else None


def project_id(genesis: bytes) -> bytes:
    """The project's id: the content hash of its genesis bytes, so that it can be fetched by id."""
    return blake3(genesis).digest()


def encode(value: Genesis | Charter) -> bytes:
    """Canonical bytes: MessagePack arrays in field order.

    Last fields that are not used are left out: projects of before they existed keep their id, and
    hosts that do not know them yet read charters without them.
    """
    fields = [getattr(value, name) for name in value.__struct_fields__]
    while fields[-1] is None:
        fields.pop()
    return msgspec.msgpack.encode(fields)
