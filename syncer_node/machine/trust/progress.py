"""What counts as progress: tokens of a learner whose pushes turn out not to count are taken back.

A learner is doubted only after some pushes, and what it handed in until then was counted. Nobody
can say which of that was honest, so all of it is taken back, and the run goes on for as long as if
that learner had not been there. If as many of its pushes count again, it is given back.
"""

from __future__ import annotations

from protocol.log.records import Body, FragmentMerged, TokensGivenBack, TokensTakenBack
from protocol.log.state import TAKEN_BACK_MAX, SwarmState
from protocol.merge_rules import RULES, MergeRules


def taking_back(state: SwarmState, learner: bytes) -> TokensTakenBack | None:
    """The record by which the tokens of a learner are no progress any more.

    None if nothing of it counts, or it is taken back already. Also for who is put out for good.
    """
    account = state.accounts.get(learner)
    if account is None or not account.tokens or learner in state.taken_back:
        return None
    if len(state.taken_back) >= TAKEN_BACK_MAX:
        return None
    return TokensTakenBack(learner, account.tokens)


def revisions(state: SwarmState, merged: FragmentMerged, rules: MergeRules = RULES) -> list[Body]:
    """What this merge, which the state knows of already, changes about what counted before.

    A revision that is on its way and not yet committed may be proposed once more: the log takes it
    once.
    """
    found: list[Body] = []
    for learner in dict.fromkeys(part.learner for part in merged.contributions):
        row = state.accounts[learner].in_row
        if row <= -rules.doubts_in_row:
            taken = taking_back(state, learner)
            found += [taken] if taken is not None else []
        elif row >= rules.doubts_in_row and learner in state.taken_back:
            found.append(TokensGivenBack(learner))
    return found
