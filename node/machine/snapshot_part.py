"""A learner's part of a snapshot as values: everything that its machine and trainer go on from.

The arrays beside it are, of every fragment: the local value, the optimizer's moments, the global
value and momentum that the local value stands on, and, where there are such, the carried
quantisation error and a merged push that is still to be given back.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec
from msgspec import Struct

from node.machine.fragment_state import LocalFragment
from node.machine.token_accounts import TokenAccounts
from protocol import decoders
from protocol.ids import Count, Digest, NodeKey
from protocol.log.records import StateDigests
from protocol.project import InnerSpec


class TokenAccountsState(Struct, frozen=True, array_like=True):
    """Token accounts at the cut, open pushes given up: after a restore nobody else has them."""

    merged: int
    discarded: int
    lost: int
    mark: int
    dead: int

    @classmethod
    def of(cls, accounts: TokenAccounts) -> TokenAccountsState:
        still_open = {at: one for at, one in accounts.open.items() if one.gone}
        kept = replace(accounts, open=still_open, given_up={})
        kept.give_up(is_final=True)
        return decoders.convert(kept, cls, from_attributes=True)

    def accounts(self) -> TokenAccounts:
        return TokenAccounts(**msgspec.structs.asdict(self))


class LocalFragmentState(Struct, frozen=True, array_like=True):
    """Where a fragment stood in this learner."""

    standing: int
    marked_step: int
    marked_tokens: int
    handed_step: int
    must_assign: bool
    merged_sequence: int | None
    merged_version: int
    discarded_steps: int
    accounts: TokenAccountsState

    @classmethod
    def of(cls, local: LocalFragment) -> LocalFragmentState:
        kept = {name: getattr(local, name) for name in cls.__struct_fields__}
        return cls(**kept | {"accounts": TokenAccountsState.of(local.accounts)})


class PartState(Struct, frozen=True, array_like=True):
    """What the machine goes on from."""

    project: Digest
    snapshot: Count
    learner: NodeKey
    incarnation: int
    """The session goes on under it: blocks leased to it are still its own."""
    epoch: int
    index: int
    sequence: int
    """Of the last push made."""
    inner: InnerSpec
    """The settings under which the optimizer's state came about."""
    local_fragments: tuple[LocalFragmentState, ...]


class BaseState(Struct, frozen=True, array_like=True):
    """The version that a fragment's local value stands on."""

    version: int
    state: StateDigests
