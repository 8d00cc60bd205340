"""The project file as it is first written: every key, a good value, and what it means.

The values suit a small model on a handful of machines; the comments are for whoever edits them.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping
from typing import NamedTuple

from protocol.errors import InternalError

Value = bool | int | float | str | list[int] | list[str]

_COMMENT_COLUMN = 36
_LINE_CHARS = 100


class Line(NamedTuple):
    """One key of a section."""

    key: str
    value: Value
    comment: str


class Section(NamedTuple):
    """One table of the file."""

    name: str
    title: str
    lines: tuple[Line, ...]


HEADER = """\
# A Shoal project. Sign it with `shoal project sign FILE`, then run `shoal syncer run FILE`.
#
# [project], [model] and [data] are the project's identity: changing them makes another project,
# with another join link. All other sections may change later: edit and sign again, on this machine;
# a syncer that runs here takes the new rules at once. `shoal project set` changes one value.
"""

SECTIONS = (
    Section(
        "project",
        "What it is called, and its random seed.",
        (
            Line("name", "my-project", "shown on every screen; 1 to 64 characters"),
            Line("seed", 1, "orders the training text and draws the first weights"),
        ),
    ),
    Section(
        "model",
        "What is trained: an architecture of `transformers`. As it is, 0.8 million parameters.",
        (
            Line(
                "architecture",
                "LlamaForCausalLM",
                "any causal decoder of transformers, by its class or model_type: "
                "GPT2LMHeadModel, Qwen3ForCausalLM, olmo2, gemma3_text, qwen3_moe; an encoder that "
                "says hidden tokens, such as BertForMaskedLM; or a classifier of images, such as "
                "ViTForImageClassification. A project that "
                "starts from a published model has the key `from` in its place, and one with "
                "training code of its own the key `trainer`",
            ),
            Line("fragments", 4, "pieces that are merged and sent one at a time"),
            Line("strategy", "rows", "how tensors are dealt out: rows, balanced, tensor or layer"),
        ),
    ),
    Section(
        "model.merge",
        "How pushes become one, by class of tensor: by weighted mean, or radially (rda).",
        (
            Line("embeddings", "rda", "tables from tokens or positions to vectors, and back"),
            Line("matrices", "rda", "all else of two or more dimensions; rda keeps its length"),
            Line("vectors", "rda", "norms and biases"),
        ),
    ),
    Section(
        "model.config",
        "Values for the architecture's configuration, as `transformers` names them.",
        (
            Line("vocab_size", 257, "256 bytes and one token that ends a text"),
            Line("hidden_size", 128, "width of the model"),
            Line("intermediate_size", 344, "width inside the feed-forward parts"),
            Line("num_hidden_layers", 4, "depth of the model"),
            Line("num_attention_heads", 4, "must divide hidden_size"),
            Line("num_key_value_heads", 4, "fewer than attention heads: grouped-query attention"),
            Line("max_position_embeddings", 256, "at least data.sequence_tokens"),
            Line("tie_word_embeddings", True, "one table for reading and for predicting tokens"),
            Line("initializer_range", 0.06, "spread of the first weights; wide models want less"),
        ),
    ),
    Section(
        "data",
        "What it is trained on. Every learner needs it: from hosts, if published, else by itself.",
        (
            Line(
                "source",
                "python-stdlib",
                "python-stdlib, file, folder, jsonl, parquet or hub; chats, for a model that "
                "answers; mixture, several of these by weight, each in a table [[data.sources]]; "
                "images, a folder of PNG or JPEG files for each class or .parquet files; own, "
                "where training code of its own brings the data",
            ),
            Line(
                "location",
                "",
                "path or hub name (OWNER/NAME or OWNER/NAME:CONFIGURATION, with @REVISION behind "
                "it to pin what is read; of chats with hub: before it); empty for python-stdlib "
                "and mixture. A path counts on this machine: `~` is the home directory, other "
                "paths start beside this file",
            ),
            Line(
                "publish",
                False,
                "true: signing tokenises text or decodes images once, and learners fetch what they "
                "train on from this machine and each other, by the link alone; everybody who has "
                "the link can read it. false: nothing is sent, and every learner elsewhere needs a "
                "copy of the same files, `shoal join --data PATH`, but for hub and python-stdlib. "
                "Not for own",
            ),
            Line("text_field", "text", "field that holds the text, for jsonl, parquet and hub"),
            Line(
                "tokenizer",
                "bytes",
                "bytes; base, that of the published model; a tokenizer.json; or a hub repository "
                "with one",
            ),
            Line(
                "documents",
                "joined",
                "joined: a decoder reads what lies in a sequence as one text; separate: each "
                "document by itself, with attention and positions that begin anew",
            ),
            Line("sequence_tokens", 256, "length of one training sequence; what one image counts"),
            Line(
                "block_sequences",
                1,
                "neighbouring sequences (or images) that are always read together",
            ),
            Line(
                "heldout_frac",
                0.02,
                "share of the texts (or images) kept apart to measure progress",
            ),
        ),
    ),
    Section(
        "training",
        "What each learner does by itself, in its local steps.",
        (
            Line("optimizer", "adamw", "adamw, or muon for hidden matrices and adamw for the rest"),
            Line("learning_rate", 0.004, "at its peak"),
            Line("weight_decay", 0.1, "0 switches it off"),
            Line("beta1", 0.7, "memory of the mean gradient"),
            Line("beta2", 0.99, "memory of the mean squared gradient"),
            Line("grad_norm_max", 1.0, "a longer gradient is scaled down to this"),
            Line("batch_sequences", 8, "sequences in one local step, on every learner"),
            Line("warmup_frac", 0.05, "share of the token budget in which the rate rises"),
            Line("final_learning_rate_frac", 0.0, "rate at the end, as a share of the peak"),
            Line("fresh_moment_steps", 10, "local steps in which a new learner eases in"),
            Line(
                "moments",
                "fresh",
                "optimizer state of a learner that comes (back): fresh, or peer for a copy of "
                "another learner's",
            ),
            Line("muon_momentum", 0.95, "for muon: memory of the gradients"),
            Line(
                "schedule",
                "cosine",
                "how the rate falls: cosine; or wsd, flat and straight down at the end, for a run "
                "whose end is not known yet",
            ),
            Line("decay_frac", 0.2, "for wsd: share of the token budget in which it falls"),
            Line(
                "z_loss",
                0.0,
                "weight of a term that keeps logits small, for long runs of large models: 0.0001; "
                "0: none",
            ),
            Line(
                "batch_sequences_max",
                0,
                "if more than batch_sequences: so many on learners that are strong enough",
            ),
        ),
    ),
    Section(
        "outer",
        "What a merge does with the learners' movement.",
        (
            Line("learning_rate", 0.7, "share of the merged movement that is taken"),
            Line("momentum", 0.8, "0 switches it off"),
            Line(
                "clip_to_median",
                3.0,
                "a push longer than this many times the median push is scaled down to it",
            ),
            Line("nesterov", True, "look ahead along the momentum; false: plain momentum"),
            Line(
                "trust",
                "earned",
                "how far a push counts: earned, by where the learner's earlier ones pointed; or "
                "all, in full",
            ),
            Line(
                "probes_frac",
                0.02,
                "share of the work that goes into probes of whether pushes were trained on their "
                "text; 0: none",
            ),
            Line(
                "ema",
                0.0,
                "what a merge keeps of the moving average that can be exported, such as 0.98; 0: "
                "there is none",
            ),
        ),
    ),
    Section(
        "rounds",
        "When a fragment is merged, and for whom a round waits.",
        (
            Line(
                "local_steps",
                24,
                "H: local steps between two merges of the same fragment; 8 for short runs",
            ),
            Line("overlap_steps", 2, "rounds in flight at most, always on different fragments"),
            Line(
                "quorum", 1, "K: pushes a round needs; fewer where fewer learners can be counted on"
            ),
            Line("grace_safety", 0.9, "share of the spare time a round waits after its quorum"),
            Line("pace_share", 0.5, "share of the swarm's speed that must have done H steps"),
            Line("patience_s", 20.0, "seconds before a round settles for those who are there"),
            Line("pull_timeout_s", 20.0, "seconds after which a learner is late for its round"),
            Line(
                "apply",
                "overwrite",
                "what a learner does with merged weights: overwrite takes them; blend keeps a "
                "share of its own; rebase keeps all it has not handed in",
            ),
            Line("up_codec", "int4", "learner to syncer: f32, bf16, int8, int4, int2 or int1"),
            Line("down_codec", "int4", "syncer to learner: f32, bf16, int8, int4, int2 or int1"),
            Line("alpha", 0.5, "for blend: share of its own weights that a learner keeps"),
            Line(
                "weights",
                "quality",
                "what a push weighs: quality (tokens x tokens per local step), tokens, or equal",
            ),
            Line(
                "eligible",
                "cycle",
                "who counts as ready for a round: cycle needs H local steps on the fragment, step "
                "one",
            ),
            Line(
                "participants_max",
                0,
                "learners that a round asks at most, in turn: those left out keep their local "
                "steps and hand them in with later ones; 0: all",
            ),
            Line(
                "mergers_max",
                0,
                "syncers that merge at most, each some of the fragments, on a line of its own; 1: "
                "the leader alone; 0: all",
            ),
        ),
    ),
    Section(
        "limits",
        "How long, how many, how often.",
        (
            Line("tokens", 20_000_000, "the run ends after this many trained tokens"),
            Line("learners", 256, "learners at once"),
            Line("evaluate_every", 50, "merges between two measured checkpoints"),
            Line("heldout_sequences", 64, "held-out sequences in one measurement"),
            Line("lease_s", 120.0, "seconds after which a silent learner's blocks are taken back"),
            Line("lease_blocks", 1024, "blocks leased at once"),
            Line(
                "snapshot_every_s",
                0.0,
                "seconds between snapshots of the whole swarm; 0: only `shoal syncer snapshot`",
            ),
            Line("snapshots_kept", 3, "snapshots kept; the oldest go first"),
        ),
    ),
    Section(
        "seat",
        "What must happen before a merge counts; it matters once there is a second syncer.",
        (
            Line(
                "durability",
                "standby",
                "leader: on the disk of the syncer that leads; standby: also on another syncer's, "
                "as long as one is there; majority: on a majority of the syncers' disks, always",
            ),
        ),
    ),
    Section(
        "admission",
        "Who may take part.",
        (
            Line(
                "rule",
                "open",
                "open: everybody who has the link; invite: keys that came by `shoal project "
                "invite`, and allowed ones; list: allowed keys alone",
            ),
            Line("allowed", [], "keys that need no invite, 64 hex digits each"),
            Line("banned", [], "keys of refused learners, 64 hex digits each"),
        ),
    ),
    Section(
        "guard",
        "What happens once the held-out loss is far above the best, by two measurements.",
        (
            Line(
                "rule",
                "pause",
                "pause: merging pauses until the owner goes back (`shoal project undo`) or goes on "
                "(`shoal project resume`); restore: the guard goes back to the best checkpoint by "
                "itself, once; off: nothing",
            ),
        ),
    ),
    Section(
        "page",
        "What the project's page says, where a syncer serves one (`shoal syncer run --page`).",
        (
            Line(
                "about",
                "",
                "what the run is for, in your words; \\n\\n begins a new paragraph; everybody can "
                "read it",
            ),
        ),
    ),
)

ADAPTER = Section(
    "model.adapter",
    "A low-rank adapter (LoRA): it alone is trained and sent; the model beside it stays frozen.",
    (
        Line("rank", 8, "of its matrices: more can learn more, and costs more"),
        Line("alpha", 16.0, "the adapter counts alpha / rank"),
        Line("dropout", 0.0, "share of an adapter's inputs that is left out in training"),
        Line(
            "targets",
            ["all-linear"],
            "layers that get one, by the ends of their names (q_proj, v_proj); all-linear: all but "
            "the output table",
        ),
        Line(
            "trains",
            "both",
            "both matrices, or b: the first one stays as it was drawn, then merges are exact",
        ),
        Line("base_dtype", "bf16", "what the frozen model is held as: bf16, or f32"),
    ),
)
"""Only in a project that trains one."""

VOTERS = """\
# The hosts whose signatures commit a merge: one, or three or more, each in a table like this one.
# A majority of them must be there. With one, learners go on by themselves while it is away, and
# merging continues when it is back. With three, say two syncers and a witness, any one may be away:
# another syncer leads within seconds. Two cannot outvote each other. `shoal syncer key` and
# `shoal witness key` print the key of the host they are run on. Once signed, change voters one at a
# time: `shoal project add-syncer`, `add-witness` and `remove-voter`.
"""

VOTER_LINES = (
    Line("key", "this host", '"this host" is the one that signs; else 64 hex digits'),
    Line("role", "syncer", "syncer: merges and votes; witness: only votes, needs no power"),
    Line("priority", 10, "0 to 100; of several syncers the highest leads when it can"),
)


def create_text(
    name: str,
    *,
    changes: Mapping[str, Value] | None = None,
    comments: Mapping[str, str] | None = None,
    base: str | None = None,
) -> str:
    """A whole project file with every key explained.

    base: the model that it starts from; then there is no architecture and no configuration of its
    own.
    changes: other values than the usual ones, by dotted key such as `rounds.quorum`; keys below
    `model.config` may be new, and are then written without a comment. Any key below `model.adapter`
    makes it a project that trains an adapter. comments: other words.
    """
    left, words = dict(changes or {}), comments or {}
    left["project.name"] = name
    parts = [HEADER]
    has_adapter = any(key.startswith(f"{ADAPTER.name}.") for key in left)
    for section in SECTIONS if base is None else _based(base, has_adapter=has_adapter):
        lines = [
            line._replace(
                value=left.pop(f"{section.name}.{line.key}", line.value),
                comment=words.get(f"{section.name}.{line.key}", line.comment),
            )
            for line in section.lines
        ]
        if section.name == "model.config":
            added = [key for key in left if key.startswith("model.config.")]
            lines += [Line(key.rpartition(".")[2], left.pop(key), "") for key in added]
        heading = f"# {section.title}\n[{section.name}]\n"
        parts.append(heading + "".join(_written(line) for line in lines))
    parts.append(VOTERS + "[[voters]]\n" + "".join(_written(line) for line in VOTER_LINES))
    if left:
        raise InternalError(f"a project file has no key {', '.join(sorted(left))}")
    return "\n".join(parts)


def _based(base: str, *, has_adapter: bool) -> list[Section]:
    """The sections of a project that starts from a published model."""
    start = Line("from", base, "the published model whose weights are version 0: a folder, or hub")
    own = Section("model.config", "Values that differ from the published model's own.", ())
    found = {section.name: section for section in SECTIONS}
    kept = [line for line in found["model"].lines if line.key != "architecture"]
    title = "What is trained: a published model, from its weights on."
    found["model"] = Section("model", title, (start, *kept))
    found["model.config"] = own
    if not has_adapter:
        return list(found.values())
    title = "What is trained: an adapter beside a published model."
    found["model"] = found["model"]._replace(title=title)
    listed = list(found.values())
    listed.insert(listed.index(found["model"]) + 1, ADAPTER)
    return listed


def toml_value(value: Value) -> str:
    """The value as TOML writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return f"{value:_}" if abs(value) >= 100_000 else str(value)
    # JSON's strings, floats and lists are TOML's, but for DEL, which no sane value contains.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _written(line: Line) -> str:
    """The key with its comment beside it; a long comment goes on in the lines below."""
    setting = f"{line.key} = {toml_value(line.value)}"
    if not line.comment:
        return setting + "\n"
    wrapped = textwrap.wrap(line.comment, _LINE_CHARS - _COMMENT_COLUMN - 2)
    if len(setting) > _LINE_CHARS - _COMMENT_COLUMN:
        return "".join(f"# {one}\n" for one in wrapped) + setting + "\n"
    first = f"{setting:<{_COMMENT_COLUMN - 2}}  # {wrapped[0]}\n"
    column = max(_COMMENT_COLUMN, len(setting) + 2)
    return first + "".join(f"{'':{column}}# {more}\n" for more in wrapped[1:])
