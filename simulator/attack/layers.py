"""The layers of the defence, so that each can be left out to see what it is for.

A layer is left out by a setting that a project's owner has, or by one of the numbers that every
syncer merges by (`protocol.merge_rules`): what merges has no switch for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from msgspec import structs

from protocol.merge_rules import RULES, MergeRules
from protocol.project import Charter

CLIP_NOTHING = 1e6
"""The largest multiple of the median that a charter may name."""

NOBODY_DOUBTED = (-2e9, -1e9)
"""Shares of the median direction that nobody's is below."""

NOBODY_REPEATS = (3.0, 4.0)
"""How far nobody can be above the median."""


@dataclass(frozen=True, slots=True)
class Layer:
    """One of them."""

    about: str
    """What it does, in one line."""
    leave_out: Callable[[Charter], Charter] = lambda charter: charter
    rules: MergeRules = RULES
    """By which is merged without it."""


def _outer(**changes: Any) -> Callable[[Charter], Charter]:
    def leave_out(charter: Charter) -> Charter:
        return structs.replace(charter, outer=structs.replace(charter.outer, **changes))

    return leave_out


LAYERS: Mapping[str, Layer] = {
    "trust": Layer("everything below: all pushes count alike", _outer(trust="all")),
    "clipping": Layer(
        "a push longer than a multiple of the median is scaled down, and so is a tensor of it; "
        "newcomers stay clipped to the median",
        _outer(clip_to_median=CLIP_NOTHING),
    ),
    "tensors": Layer(
        "single tensors are clipped too", rules=MergeRules(tensor_length_max=math.inf)
    ),
    "length": Layer(
        "a push is little longer than its local steps are worth",
        rules=MergeRules(length_max=math.inf),
    ),
    "norms": Layer(
        "norms are compared with those of earlier pushes, which the log knows",
        rules=MergeRules(norms_known=0),
    ),
    "direction": Layer(
        "a push counts as far as its learner's point where others' do",
        rules=MergeRules(trust_bounds=NOBODY_DOUBTED),
    ),
    "repeats": Layer(
        "a learner whose pushes always have the same beside what others have counts less",
        rules=MergeRules(repeats_bounds=NOBODY_REPEATS, other_text_repeats_bounds=NOBODY_REPEATS),
    ),
    "shares": Layer(
        "no push adds more than a third where four count, or half where three do",
        rules=MergeRules(share_max=1.0, share_of_three_max=1.0),
    ),
    "newcomers": Layer(
        "new learners together add a tenth beside established ones",
        rules=MergeRules(new_share_max=1.0),
    ),
    "copies": Layer(
        "pushes that are alike share one weight", rules=MergeRules(likeness_max=math.inf)
    ),
    "novelty": Layer(
        "pushes that only repeat what was merged lately do not count",
        rules=MergeRules(merges_compared=0),
    ),
    "beginning": Layer(
        "the first merge of a fragment needs pushes of half of the learners",
        rules=MergeRules(first_pushes=0),
    ),
    "taking-back": Layer(
        "tokens of who is found are no progress", rules=MergeRules(doubts_in_row=10**9)
    ),
    "probes": Layer(
        "others measure whether a push was trained on its text; whose are not is suspended",
        _outer(probes_frac=0.0),
    ),
}
