"""The accounts of all contributors, and their sums. A run of months has a hundred thousand.

Whatever is asked again and again costs nothing more for those who left long ago: sums are kept, who
leads is found among those that changed, and a copy of the book shares each account with it until
that account changes.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import ItemsView, Iterable, Iterator, Mapping, ValuesView

from msgspec import structs

from protocol.log.accounts import GUESTS_MAX, Account, ChosenName, Refusal, count_kind, fate_of

NOTHING: Mapping[bytes, Account] = {}


def place(item: tuple[bytes, Account]) -> tuple[int, int, bytes]:
    """By this contributors stand in lists: who gave most first."""
    key, account = item
    return (-account.tokens, -account.merges, key)


class AccountBook(Mapping[bytes, Account]):
    """Every account by its key. To change one, ask for it with `opened` or `merged`."""

    def __init__(self, accounts: Mapping[bytes, Account] = NOTHING) -> None:
        """accounts: are not changed, whatever happens to the book."""
        self.merges = 0
        """Pushes merged, of all contributors."""
        self.tokens = 0
        """Tokens merged into every fragment, added up, of all contributors."""
        self._clipped = 0
        self._refused: Counter[str] = Counter()
        self._by_key = dict(accounts)
        self._own: set[bytes] | None = set() if accounts else None
        """Keys of accounts that nobody else has; None: all of them."""
        self._guests = {key for key, one in accounts.items() if not one.merges}
        """Of whom nothing was ever merged."""
        self._leading: tuple[int, list[bytes]] | None = None
        """Those that gave most when that was asked last, and how many were asked for."""
        self._changed: set[bytes] = set()
        """Whose accounts changed since then."""
        for one in accounts.values():
            self._count(one, 1)

    def __getitem__(self, key: bytes) -> Account:
        return self._by_key[key]

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._by_key)

    def __len__(self) -> int:
        return len(self._by_key)

    def items(self) -> ItemsView[bytes, Account]:
        return self._by_key.items()

    def values(self) -> ValuesView[Account]:
        return self._by_key.values()

    # What all of them add up to.

    def fates(self) -> dict[str, int]:
        """What became of all pushes, in a word for each: `Account.fates` of everybody."""
        found = {"merged": self.merges - self._clipped, "clipped": self._clipped, **self._refused}
        return {word: pushes for word, pushes in found.items() if pushes}

    def leading(self, count: int) -> list[tuple[bytes, Account]]:
        """Those that gave most tokens, so many at most, the first one first.

        What somebody gave never gets less, so that only one whose account changed can rise.
        """
        known = self._leading
        among: Iterable[bytes] = self._by_key
        if known is not None and known[0] == count:
            among = self._changed.union(known[1])
        found = heapq.nsmallest(count, among, key=lambda key: place((key, self._by_key[key])))
        self._leading, self._changed = (count, found), set()
        return [(key, self._by_key[key]) for key in found]

    def shared(self) -> dict[bytes, Account]:
        """All accounts as they are now; none of these is changed any more."""
        self._own = set()
        return dict(self._by_key)

    # Changes.

    def opened(self, learner: bytes) -> Account:
        """The account of a key, to be changed in what no sum has; a new one if it has none.

        Strangers of whom nothing was merged cannot fill the memory of others: at most `GUESTS_MAX`
        of them are kept.
        """
        if learner not in self._by_key:
            self._make_room()
            self._guests.add(learner)
        return self._writable(learner)

    def merged(self, learner: bytes, tokens: int, *, is_clipped: bool, at_s: float) -> Account:
        """One push more went into a merge; the account, to be changed in what no sum has."""
        account = self._writable(learner)
        if not account.merges:
            self._guests.discard(learner)
        account.merged(tokens, is_clipped=is_clipped, at_s=at_s)
        self.merges += 1
        self.tokens += tokens
        self._clipped += is_clipped
        return account

    def note(self, names: Iterable[ChosenName], refusals: Iterable[Refusal]) -> None:
        """Take what a leader noted into the accounts. A name counts only for who has one."""
        for chosen in names:
            if chosen.learner in self._by_key:
                self._writable(chosen.learner).name = chosen.name
        for refusal in refusals:
            counts = self.opened(refusal.learner).refused
            kind = count_kind(counts, refusal.kind, refusal.pushes)
            self._refused[fate_of(kind)] += refusal.pushes

    def put(self, learner: bytes, account: Account) -> None:
        """This is somebody's account from now on, whatever it was."""
        self._forget(learner)
        self._by_key[learner] = account
        self._note_own(learner)
        if self._leading is not None:
            self._changed.add(learner)
        if not account.merges:
            self._guests.add(learner)
        self._count(account, 1)

    def _writable(self, learner: bytes) -> Account:
        account = self._by_key.get(learner)
        if account is None:
            account = self._by_key[learner] = Account()
            self._note_own(learner)
        elif self._own is not None and learner not in self._own:
            account = structs.replace(account, refused=dict(account.refused))
            self._by_key[learner] = account
            self._own.add(learner)
        if self._leading is not None:
            self._changed.add(learner)
        return account

    def _note_own(self, learner: bytes) -> None:
        if self._own is not None:
            self._own.add(learner)

    def _make_room(self) -> None:
        """Forget a guest if there are too many: the same one everywhere, however they came."""
        if len(self._guests) >= GUESTS_MAX:
            self._forget(min(self._guests, key=lambda key: (self._by_key[key].refusals, key)))

    def _forget(self, learner: bytes) -> None:
        account = self._by_key.pop(learner, None)
        if account is None:
            return
        self._guests.discard(learner)
        self._count(account, -1)
        if self._leading is not None and learner in self._leading[1]:
            self._leading = None  # Somebody rises whose account did not change.
        self._changed.discard(learner)

    def _count(self, account: Account, sign: int) -> None:
        """Add an account to the sums, or take it away."""
        self.merges += sign * account.merges
        self.tokens += sign * account.tokens
        self._clipped += sign * account.clipped
        for kind, pushes in account.refused.items():
            self._refused[fate_of(kind)] += sign * pushes
            if not self._refused[fate_of(kind)]:
                del self._refused[fate_of(kind)]
