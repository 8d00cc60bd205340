"""Whether first weights are those that a project begins with."""

from __future__ import annotations

from collections.abc import Mapping

from protocol.log.records import StateDigests
from protocol.project import Genesis


def trouble(genesis: Genesis, states: Mapping[int, StateDigests]) -> str:
    """What is wrong with version 0 of these fragments; empty where nothing is.

    Without a base model every draw is as good as another: the first leader's counts.
    """
    if genesis.base is None:
        return ""
    named = dict(enumerate(genesis.base.states))
    for at, state in states.items():
        pinned = named.get(at)
        if pinned is None or (state.theta, state.momentum) != (pinned.theta, pinned.momentum):
            return f"the first weights of fragment {at} are not those of {genesis.base.source}"
    return ""
