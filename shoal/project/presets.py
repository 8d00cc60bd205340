"""Sets of values for a new project file: the usual ones, those for slow lines, and those of the
published algorithm.

A preset changes values and the words beside them, nothing else: it is no setting of its own, and
what it writes can be edited like anything in the file.

Source: Decoupled DiLoCo, arXiv 2604.21428, as summaries of it agree. Where no published value is
known to us, the line says so and holds a value of ours, or of DiLoCo (arXiv 2311.08105).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

from shoal.project.template import Value

PresetName = Literal["small", "slow-lines", "paper"]


class Preset(NamedTuple):
    """Values and comments by dotted key, where they differ from the usual ones."""

    values: Mapping[str, Value]
    comments: Mapping[str, str]


NOT_PUBLISHED: Final = "no published value known"

PAPER_VALUES: Final[Mapping[str, Value]] = {
    "model.fragments": 24,
    "model.strategy": "balanced",
    "model.merge.embeddings": "mean",
    "model.merge.matrices": "rda",
    "model.merge.vectors": "rda",
    "model.config.initializer_range": 0.02,
    "training.optimizer": "adamw",
    "training.beta1": 0.9,
    "training.moments": "peer",
    "outer.learning_rate": 0.7,
    "outer.momentum": 0.9,
    "outer.clip_to_median": 1e6,
    "outer.nesterov": True,
    "outer.trust": "all",
    "outer.probes_frac": 0.0,
    "rounds.local_steps": 24,
    "rounds.overlap_steps": 2,
    "rounds.quorum": 1,
    "rounds.grace_safety": 0.9,
    "rounds.pace_share": 0.0,
    "rounds.apply": "overwrite",
    "rounds.up_codec": "bf16",
    "rounds.down_codec": "bf16",
    "rounds.weights": "quality",
    "rounds.eligible": "step",
}

PAPER_COMMENTS: Final[Mapping[str, str]] = {
    "model.fragments": "P of the paper; as many as local steps, so each merges one fragment",
    "model.strategy": "the paper's choice; also rows, tensor or layer",
    "model.merge.vectors": "all but embeddings are merged by rda in the paper",
    "model.config.initializer_range": "spread of the first weights; what `transformers` has",
    "training.optimizer": "as in the paper; muon takes the hidden matrices",
    "training.learning_rate": f"at its peak; {NOT_PUBLISHED}",
    "training.weight_decay": f"0 switches it off; {NOT_PUBLISHED}",
    "training.beta1": f"memory of the mean gradient; {NOT_PUBLISHED}",
    "training.beta2": f"memory of the mean squared gradient; {NOT_PUBLISHED}",
    "training.grad_norm_max": f"a longer gradient is scaled down; {NOT_PUBLISHED}",
    "training.batch_sequences": f"sequences in one local step; {NOT_PUBLISHED}",
    "training.warmup_frac": f"share of the budget in which the rate rises; {NOT_PUBLISHED}",
    "training.final_learning_rate_frac": f"rate at the end, of the peak; {NOT_PUBLISHED}",
    "training.fresh_moment_steps": "local steps in which a new learner eases in; ours",
    "training.moments": "a learner that comes (back) copies a healthy one; the paper copies a "
    f"checkpoint; whether optimizer state is in it: {NOT_PUBLISHED}",
    "outer.learning_rate": f"{NOT_PUBLISHED}; 0.7 is DiLoCo's",
    "outer.momentum": f"{NOT_PUBLISHED}; 0.9 is DiLoCo's. Small models on few tokens do better "
    "with 0.8, as `--preset small` has it",
    "outer.clip_to_median": "the paper is not known to clip pushes; this never does",
    "outer.nesterov": "as in the paper; false: plain momentum",
    "outer.trust": "the paper is not known to doubt anybody; earned: by where pushes point",
    "outer.probes_frac": "the paper is not known to probe pushes; 0.02 is the default otherwise",
    "rounds.local_steps": "H of the paper",
    "rounds.overlap_steps": "tau of the paper: two rounds in flight",
    "rounds.quorum": "K of the paper: the first push is enough, grace brings the others",
    "rounds.grace_safety": f"gamma, below 1; {NOT_PUBLISHED}",
    "rounds.pace_share": "the paper waits for K learners only, whatever their speed",
    "rounds.patience_s": "seconds before a round settles for those who are there; ours",
    "rounds.pull_timeout_s": "seconds after which a learner is late for its round; ours",
    "rounds.up_codec": "bf16 is the paper's baseline; int4 it found almost free",
    "rounds.down_codec": "bf16 is the paper's baseline; whether int4 went down is not known",
    "rounds.weights": "tokens x tokens per local step, as in the paper",
    "rounds.eligible": "a learner with one local step on a fragment is ready, as in the paper",
    "limits.tokens": "the run ends after this many trained tokens; the paper's smallest model "
    "saw 26 billion",
}

SLOW_LINES_VALUES: Final[Mapping[str, Value]] = {
    "model.fragments": 12,
    "outer.momentum": 0.7,
    "rounds.overlap_steps": 12,
    "rounds.apply": "rebase",
    "rounds.up_codec": "int2",
}
"""Where a fragment is on its way for several local steps: small ones, all in flight, half of the
bytes up, and local steps done meanwhile live on."""

SLOW_LINES_COMMENTS: Final[Mapping[str, str]] = {
    "model.fragments": "many small ones are each on their way for a shorter time",
    "outer.momentum": "0 switches it off; a little less than usual suits rebase",
    "rounds.overlap_steps": "rounds in flight at most: every fragment's",
    "rounds.apply": "rebase: local steps done while a merge was on its way live on",
    "rounds.up_codec": "2 bits a value up, where lines are slowest",
}

PRESETS: Final[Mapping[PresetName, Preset]] = {
    "small": Preset({}, {}),
    "slow-lines": Preset(SLOW_LINES_VALUES, SLOW_LINES_COMMENTS),
    "paper": Preset(PAPER_VALUES, PAPER_COMMENTS),
}
