"""Which donor to ask for which piece of the weights next: the planner of all downloads of a joiner.

A learner that serves the manifest of a version is taken to hold its chunks until it says
otherwise; each donor is asked for one of the two manifests of a fragment to find out. Chunks of
the version with the fewest holders go first, and of these in an order that is drawn once, so that
versions are complete before their holders move on to newer ones. Within a version the order is
random. Joiners that come together say which sections of a version they have, begin at the syncer
with different ones, and give the chunks of these to each other. At the end a chunk that is slow to
come is asked of a second donor, if that one is sure to be faster. The syncer is asked only for what
no learner has, and beside learners that need long where it is much faster
(`node.download.syncer_help`).

Sans IO: the owner carries out what `asks` returns and reports each with `arrived` or `failed`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection
from dataclasses import dataclass, field
from enum import Enum

from node.download import syncer_help
from node.download.assembly import Assembly, Part
from node.download.donors import Donor
from node.download.syncer_help import Given, Help
from node.download.throughput import WINDOW_S, ThroughputMeter
from protocol import limits
from protocol.ids import Digest, short
from protocol.numerics import chunks

IN_FLIGHT_MAX = 32
"""Requests under way in all: three donors on long fat lines; half of the streams that we open."""

OPEN_MIN = 8
"""Versions at once of which it is found out who holds them: among these the rarest goes first. A
version that nothing was fetched of is given up for a newer one, so more would be of little use."""

OPEN_AMONG_JOINERS = 64
"""The same beside other joiners: each has some versions, and nobody knows which."""

SOURCES_MAX = 8
"""Donors of one version at once; more would only be asked whether they hold it."""

GRACE_S = 2.0
"""A version that was just committed reaches the learners within this: only then the syncer is
asked for it."""

LEARNERS_MAX = 32
"""Learners among whom the donors of all versions are looked for."""

PART_FAILURES_MAX = 12
"""Failures after which one piece is asked of the syncer; without it the whole version fails, to be
tried again later."""

SLOW_S = 2.0
"""A donor of which nothing comes for this long is asked for nothing that others have; what is
under way this long is slow, where it is not known how fast another donor is."""

SLOW_S_MIN = 0.5

ASKED_MAX = 3
"""Donors that one chunk is asked of: the second may turn out to be as slow as the first."""

WORTH_A_TRY_S = 5.0
"""A chunk that will take longer is asked also of a donor of which nothing is known."""

LEAVE_S = 4.0
"""A donor of which nothing came for this long gets no more time, where somebody else may be asked.
Above the wait of a busy host for a slot of its own, after which it says so."""

LOOK_EVERY_S = 0.25
"""Counting what came lately costs a little."""

HELP_MAX = 8
"""Requests at the syncer beside those at learners."""

OWN_PAUSE_S = 1.0
"""Rest after our own network engine failed: that is no donor's fault."""


class Trouble(Enum):
    """Why a request came to nothing."""

    NOT_HELD = "does not hold it"
    BUSY = "is busy"
    GONE = "is gone"
    WRONG = "sent something else"
    OURS = "our own network is down"


@dataclass(slots=True)
class Ask:
    """One request: this blob of this donor."""

    number: int
    donor: bytes
    fragment: int
    digest: Digest
    length: int
    asked_s: float
    is_manifest: bool
    left_bytes: int
    """What has not come yet."""
    heard_s: float
    """When something of it came last, or it was asked."""


@dataclass(slots=True)
class Want:
    """An assembly in progress."""

    assembly: Assembly
    rank: float
    """Of several as rare, the lowest goes first. Drawn, so that joiners who come together begin
    with different ones, and can give them to each other."""
    opened_s: float | None = None
    was_held: bool = False
    """Some learner held it: if none does any more, waiting helps nothing."""
    is_superseded: bool = False
    trouble: str = "no known host has it"


@dataclass(slots=True)
class Probed:
    """How far it is found out who holds a version."""

    asked: set[bytes] = field(default_factory=set)
    """Donors that are asked for one of its manifests just now."""
    is_enough: bool = False
    """More donors would be of no use; those that have sections of it are still asked for more."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far all present downloads are."""

    done_bytes: int
    total_bytes: int
    rate: float
    """Bytes per second, over the last seconds."""
    sources: frozenset[bytes]
    """Who sent something in the last seconds."""


class Planner:
    """All downloads of one joiner."""

    def __init__(self, rng: random.Random, key: bytes = b"") -> None:
        """key: the joiner's own."""
        self.rng = rng
        self.key = key
        self.meter = ThroughputMeter()
        self.asked: dict[int, Ask] = {}
        """Requests under way, by number."""
        self._wants: dict[int, Want] = {}
        self._donors: dict[bytes, Donor] = {}
        self._is_informed = False
        """Who the donors are has been said at least once."""
        self._rest_until_s = 0.0
        self._help = Help()
        self._fed_s: float | None = None
        """When something came of a learner first, since something is wanted."""
        self._looked_s = -math.inf
        self._number = 0
        self._cancelled: list[int] = []

    # What is wanted, and of whom.

    @property
    def is_idle(self) -> bool:
        return not self._wants

    def want(self, assembly: Assembly) -> None:
        """Download this; whatever else of the fragment was wanted is dropped.

        What an assembly holds already is not asked for again.
        """
        self.drop(assembly.fragment)
        self._wants[assembly.fragment] = Want(assembly, self.rng.random())
        for part in assembly.parts.values():
            part.failures = 0

    def drop(self, fragment: int) -> None:
        """Download this no more; what arrived stays in its assembly."""
        if fragment not in self._wants:
            return
        self._cancel([ask.number for ask in self.asked.values() if ask.fragment == fragment])
        del self._wants[fragment]
        for donor in self._donors.values():
            donor.forget(fragment)

    def supersede(self, fragment: int, version: int) -> None:
        """A newer version of the fragment is committed: its holders move on."""
        want = self._wants.get(fragment)
        if want is not None and want.assembly.version < version:
            want.is_superseded = True
            want.trouble = "a newer version is committed"

    def know(
        self,
        learners: list[bytes],
        last_resort: bytes | None,
        now_s: float,
        joiners: Collection[bytes] = (),
    ) -> None:
        """Who may be asked: some of these learners, and the syncer for what none of them has.

        Whoever was asked before stays; those who come first in the list come in for them.
        joiners: those that fetch weights themselves, and have some fragments already.
        """
        self._is_informed = True
        learners = [*learners, *joiners]
        listed = set(learners)
        known = [donor for donor in self._donors.values() if donor.key in listed]
        # Those that are of no use now are kept in mind, but leave room for others.
        room = LEARNERS_MAX - sum(donor.is_promising(now_s) for donor in known)
        fresh = [key for key in learners if key not in self._donors]
        chosen = {donor.key for donor in known} | set(fresh[: max(0, room)])
        if last_resort is not None:
            chosen.add(last_resort)
        for key in sorted(chosen - self._donors.keys()):
            self._donors[key] = Donor(key)
        for donor in list(self._donors.values()):
            donor.is_listed = donor.key in chosen
            donor.is_last_resort = donor.key == last_resort
            donor.is_joiner = donor.key in joiners
            if not donor.is_listed and not donor.asks:
                del self._donors[donor.key]

    def reached(self, host: bytes) -> None:
        """Something else was heard of this host: it is not away any more, if it was."""
        if host in self._donors:
            self._donors[host].back()

    # What to do.

    def asks(self, now_s: float) -> list[Ask]:
        """Requests to make now."""
        found: list[Ask] = []
        if not self._is_informed or now_s < self._rest_until_s:
            return found
        self._open(now_s)
        self._leave(now_s)
        self._look_for_help(now_s)
        while len(self.asked) < IN_FLIGHT_MAX + HELP_MAX:
            ask = self._next(now_s)
            if ask is None:
                break
            found.append(ask)
        return found

    def ended(self, now_s: float) -> list[tuple[Assembly, str | None]]:
        """Downloads that are complete, or failed for the stated reason; they are wanted no more."""
        found: list[tuple[Assembly, str | None]] = []
        for fragment, want in list(self._wants.items()):
            if want.assembly.is_complete:
                found.append((want.assembly, None))
            elif self._is_hopeless(want, now_s):
                found.append((want.assembly, want.trouble))
            else:
                continue
            self.drop(fragment)
        return found

    def cancelled(self) -> list[int]:
        """Numbers of requests that are not needed any more; each is told once."""
        numbers, self._cancelled = self._cancelled, []
        return numbers

    # What came of it.

    def arrived(self, number: int, content: memoryview, now_s: float) -> None:
        """A blob is here and has the digest asked for."""
        ask = self.asked.pop(number, None)
        if ask is None:
            return
        donor = self._donors[ask.donor]
        is_full = not ask.is_manifest and ask.length == limits.STATE_CHUNK_BYTES
        donor.ended(number)
        donor.served(now_s - ask.asked_s if is_full else None)
        want = self._wants.get(ask.fragment)
        if want is None:
            return
        is_of_values = ask.digest == want.assembly.state.theta
        if ask.is_manifest and (is_of_values or not donor.is_joiner):
            donor.hold(ask.fragment)
            want.was_held = want.was_held or not donor.is_last_resort
        elif ask.is_manifest and ask.fragment not in donor.holds:
            donor.has_sections(ask.fragment, ask.digest, chunks.ALL_SECTIONS, now_s)
        part = want.assembly.parts.get(ask.digest)
        if part is None:
            return  # It only served to find out, or somebody else was faster.
        part.asks.discard(number)
        if ask.is_manifest:
            want.assembly.take_manifest(ask.digest, content)
            return  # Others that were asked for it still tell whether they hold it.
        others = list(part.asks)
        want.assembly.take_chunk(ask.digest, content, ask.donor)
        self._cancel(others)

    def received(self, number: int, count: int, now_s: float) -> None:
        """Some bytes of a request came in."""
        ask = self.asked.get(number)
        if ask is not None:
            ask.heard_s = now_s
            ask.left_bytes = max(0, ask.left_bytes - count)
            donor = self._donors[ask.donor]
            donor.received(number, count, now_s)
            if self._fed_s is None and not donor.is_last_resort:
                self._fed_s = now_s
            self.meter.add(ask.donor, count, now_s)

    def failed(
        self, number: int, trouble: Trouble, words: str, now_s: float, held_sections: int = 0
    ) -> None:
        """A request came to nothing; what it was for is asked of others.

        held_sections: what the donor has of the array whose manifest it does not give, one bit for
        each section.
        """
        ask = self.asked.pop(number, None)
        if ask is None:
            return
        donor = self._donors[ask.donor]
        donor.ended(number)
        # Who is gone for long is gone for every piece: that says nothing of this one.
        is_of_part = trouble is Trouble.WRONG or (trouble is Trouble.GONE and not donor.is_gone)
        self._judge(donor, ask, trouble, held_sections, now_s)
        want = self._wants.get(ask.fragment)
        if want is None:
            return
        want.trouble = f"{short(ask.donor)}: {words}"
        part = want.assembly.parts.get(ask.digest)
        if part is not None:
            part.asks.discard(number)
            part.failures += is_of_part
            want.assembly.put_back(ask.digest)

    def progress(self, now_s: float) -> Progress:
        """For people."""
        assemblies = [want.assembly for want in self._wants.values()]
        return Progress(
            sum(assembly.done_bytes for assembly in assemblies),
            sum(assembly.total_bytes for assembly in assemblies),
            self.meter.rate(now_s),
            self.meter.sources(now_s),
        )

    # Inside: choosing.

    def _open(self, now_s: float) -> None:
        """Look for the holders of some versions, and of as many as keep everybody busy."""
        room = IN_FLIGHT_MAX
        open_min = OPEN_MIN if not self._has_joiners() else OPEN_AMONG_JOINERS
        for at, want in enumerate(self._by_rank()):
            if at >= open_min and room <= 0:
                return
            if want.opened_s is None:
                want.opened_s = now_s
            room -= want.assembly.unasked

    def _by_rank(self) -> list[Want]:
        return sorted(self._wants.values(), key=lambda want: want.rank)

    def _has_joiners(self) -> bool:
        return any(donor.is_joiner and donor.is_listed for donor in self._donors.values())

    def _leave(self, now_s: float) -> None:
        """Take back what was asked of donors that send nothing, where somebody else is ready."""
        for donor in list(self._donors.values()):
            asks = [self.asked[number] for number in donor.asks]
            if not asks or donor.is_last_resort:
                continue
            heard_s = max(ask.heard_s for ask in asks)
            is_quiet = now_s - heard_s > LEAVE_S and not donor.is_steady(LEAVE_S, now_s)
            if is_quiet and any(
                other.is_ready(now_s) for other in self._donors.values() if other is not donor
            ):
                self._cancel([ask.number for ask in asks])
                donor.shun(now_s)

    def _look_for_help(self, now_s: float) -> None:
        """Let the syncer help where learners take long to feed us."""
        opened = [want.opened_s for want in self._wants.values() if want.opened_s is not None]
        if not opened:
            self._fed_s = None
            self._help.end()
            return
        if self._help.is_on(now_s) or now_s < self._looked_s + LOOK_EVERY_S:
            return
        self._looked_s = now_s
        since_s = self._fed_s if self._fed_s is not None else min(opened)
        if self._help.is_due(now_s):
            self._help.judge(self._given(now_s, syncer_help.WINDOW_S), now_s)
            return
        long_s = syncer_help.patience_s(now_s - since_s, is_fed=self._fed_s is not None)
        if long_s is None:
            return
        span_s = min(now_s - since_s, WINDOW_S)
        rate = self._given(now_s, span_s).learners / span_s
        assemblies = [want.assembly for want in self._wants.values()]
        left_bytes = sum(one.total_bytes - one.done_bytes for one in assemblies)
        self._help.consider(rate, left_bytes, now_s, long_s)

    def _given(self, now_s: float, span_s: float) -> Given:
        learners = {donor.key for donor in self._donors.values() if not donor.is_last_resort}
        syncers = {donor.key for donor in self._donors.values() if donor.is_last_resort}
        return Given(
            self.meter.bytes_of(learners, now_s, span_s),
            self.meter.bytes_of(syncers, now_s, span_s),
        )

    def _next(self, now_s: float) -> Ask | None:
        is_full = len(self.asked) >= IN_FLIGHT_MAX
        donors = [
            donor
            for donor in self._donors.values()
            if donor.is_ready(now_s) and (donor.is_last_resort or not is_full)
        ]
        # The idlest first, then who gave least: three donors are three sources.
        donors.sort(key=lambda donor: (len(donor.asks), donor.taken, self.rng.random()))
        wants = [want for want in self._by_rank() if want.opened_s is not None]
        wants.sort(key=lambda want: self._hopes(want, now_s))
        probed = self._probed(wants, now_s)
        for donor in donors:
            asked_bytes = sum(self.asked[number].length for number in donor.chunks)
            if not donor.has_room(asked_bytes, now_s):
                continue
            may = [want for want in wants if self._may_ask(donor, want, now_s)]
            found = self._manifest(donor, may, now_s)
            if not any(self.asked[number].is_manifest for number in donor.asks):
                found = found or self._probe(donor, may, probed, now_s)
            found = (
                found
                or self._chunk(donor, may, now_s)
                or self._probe(donor, may, probed, now_s)
                or self._second(donor, may, now_s)
            )
            if found is not None:
                return self._ask(donor, *found, now_s)
        return None

    def _manifest(
        self, donor: Donor, wants: list[Want], now_s: float
    ) -> tuple[Want, Digest] | None:
        """A manifest of a version that this donor holds, if nobody is about to send it."""
        for want in wants:
            if want.assembly.fragment not in donor.holds:
                continue
            for digest, part in want.assembly.manifests():
                asked = [self.asked[number] for number in part.asks]
                is_slow = all(now_s - ask.asked_s > SLOW_S for ask in asked)
                if is_slow and all(ask.donor != donor.key for ask in asked):
                    return want, digest
        return None

    def _chunk(self, donor: Donor, wants: list[Want], now_s: float) -> tuple[Want, Digest] | None:
        if donor.is_last_resort and self._has_joiners() and not self._help.is_on(now_s):
            held = [want for want in wants if want.assembly.fragment in donor.holds]
            return self._chunk_of_nobody(held, now_s)
        for want in wants:
            assembly, sections = want.assembly, None
            if assembly.fragment not in donor.holds:
                sections = donor.sections.get(assembly.fragment)
                if sections is None:
                    continue
            digest = assembly.pick_idle(self.rng, sections) if assembly.has_idle_chunks else None
            if digest is not None:
                return want, digest
        return None

    def _chunk_of_nobody(self, wants: list[Want], now_s: float) -> tuple[Want, Digest] | None:
        """One for the syncer: no joiner has it yet, nor will another one ask for it just now.

        Each begins with a share of its own. When that is here it helps with those of others.
        """
        others = sorted(one.key for one in self._donors.values() if one.is_joiner and one.is_listed)
        turn = sum(key < self.key for key in others)
        for share in ((turn, len(others) + 1), (0, 1)):
            for want in wants:
                if not want.assembly.has_idle_chunks:
                    continue
                beside = self._sections_of_joiners(want.assembly.fragment, now_s)
                digest = want.assembly.pick_idle(self.rng, None, beside, share)
                if digest is not None:
                    return want, digest
        return None

    def _sections_of_joiners(self, fragment: int, now_s: float) -> dict[Digest, int]:
        """What one joiner or another has of a fragment."""
        found: dict[Digest, int] = {}
        for donor in self._donors.values():
            if donor.is_listed and not donor.is_shunned(now_s):
                for root, sections in donor.sections.get(fragment, {}).items():
                    found[root] = found.get(root, 0) | sections
        return found

    def _probe(
        self, donor: Donor, wants: list[Want], probed: dict[int, Probed], now_s: float
    ) -> tuple[Want, Digest] | None:
        """A manifest of a version of which it is not known whether this donor holds it."""
        for want in wants:
            fragment = want.assembly.fragment
            found = probed[fragment]
            is_of_use = not found.is_enough or fragment in donor.sections
            if is_of_use and donor.key not in found.asked and donor.is_unknown(fragment, now_s):
                return want, self._telling(want.assembly, donor)
        return None

    def _telling(self, assembly: Assembly, donor: Donor) -> Digest:
        """The manifest by which it is found out what a donor has.

        Of one that has everything either will do, so two such donors bring both. One that joins is
        asked for that of the values: its momentum may be nothing but zeros, and then that of many
        fragments. Where it has some sections it is that of which was heard longest ago.
        """
        missing = assembly.manifests()
        if missing and not donor.is_joiner:
            return min(missing, key=lambda found: len(found[1].asks))[0]
        told = list(donor.sections.get(assembly.fragment, ()))
        lacking = assembly.roots_lacking()
        if not told or not lacking:
            return assembly.state.theta
        return min(lacking, key=lambda root: told.index(root) if root in told else -1)

    def _second(self, donor: Donor, wants: list[Want], now_s: float) -> tuple[Want, Digest] | None:
        """The chunk that lets us wait longest for the donors that were asked for it, if this one is
        sure to be much faster: a chunk that comes twice is a chunk less for everybody.
        """
        is_proven = not donor.chunks or donor.rate(now_s) is not None
        if not is_proven or self._is_stuck(donor, donor, now_s):
            return None
        may = {want.assembly.fragment: want for want in wants}
        found: tuple[Want, Digest] | None = None
        longest_s = 0.0
        for ask in self.asked.values():  # The oldest first.
            want = may.get(ask.fragment)
            if want is None or ask.is_manifest or ask.fragment not in donor.holds:
                continue
            others = [self.asked[number] for number in want.assembly.parts[ask.digest].asks]
            if len(others) < ASKED_MAX and all(one.donor != donor.key for one in others):
                left_s = min(self._left_s(one, donor, now_s) for one in others)
                if left_s > longest_s:
                    found, longest_s = (want, ask.digest), left_s
        return found

    def _left_s(self, ask: Ask, donor: Donor, now_s: float) -> float:
        """Seconds until a chunk will have come, if `donor` needs far less for it; 0 otherwise."""
        first = self._donors[ask.donor]
        if self._is_stuck(first, donor, now_s):
            return math.inf
        rate = first.rate(now_s)
        is_known = first.is_sure and donor.rate(now_s) is not None
        patience_s = SLOW_S_MIN if is_known else _patience_s(donor)
        if rate is None or now_s - ask.asked_s <= patience_s:
            return 0.0
        # All that a donor was asked for shares its line.
        left_s = ask.left_bytes * len(first.chunks) / rate
        if donor.rate(now_s) is None and not donor.chunks and left_s > WORTH_A_TRY_S:
            return left_s  # Else it would never show how fast it is: all the rest is asked for.
        before_bytes = sum(self.asked[number].left_bytes for number in donor.chunks)
        need_s = (before_bytes + ask.length) / (donor.rate(now_s) or rate)
        return left_s if left_s > 2 * need_s else 0.0

    def _is_stuck(self, donor: Donor, judge: Donor, now_s: float) -> bool:
        """Whether nothing comes of what was asked of a donor, in times of another one."""
        return donor.is_silent(min(SLOW_S, _patience_s(judge)), now_s)

    def _ask(self, donor: Donor, want: Want, digest: Digest, now_s: float) -> Ask:
        part: Part | None = want.assembly.parts.get(digest)
        self._number += 1
        fragment, number = want.assembly.fragment, self._number
        if part is None:  # The manifest is here; whether the donor holds it is not known.
            length, is_manifest = want.assembly.manifest_bytes, True
        else:
            length, is_manifest = part.length, part.is_manifest
            part.asks.add(number)
        ask = Ask(number, donor.key, fragment, digest, length, now_s, is_manifest, length, now_s)
        self.asked[number] = ask
        donor.asked(number, now_s, is_chunk=not is_manifest)
        return ask

    # Inside: judging.

    def _hopes(self, want: Want, now_s: float) -> int:
        """How many learners hold this version or may hold it, for all that is known."""
        fragment = want.assembly.fragment
        return sum(
            not donor.is_last_resort
            and not donor.is_shunned(now_s)
            and (fragment in donor.holds if donor.is_joiner else not donor.lacked(fragment))
            for donor in self._donors.values()
        )

    def _probed(self, wants: list[Want], now_s: float) -> dict[int, Probed]:
        """How far it is found out who holds each version."""
        probed = {want.assembly.fragment: Probed() for want in wants}
        for ask in self.asked.values():
            if ask.is_manifest and ask.fragment in probed:
                probed[ask.fragment].asked.add(ask.donor)
        for fragment, found in probed.items():
            sources = len(found.asked) + sum(
                fragment in donor.holds or fragment in donor.sections
                for donor in self._donors.values()
                if donor.key not in found.asked
            )
            found.is_enough = sources >= SOURCES_MAX and not self._help.is_on(now_s)
        return probed

    def _may_ask(self, donor: Donor, want: Want, now_s: float) -> bool:
        is_last = donor.is_last_resort
        return not is_last or self._help.is_on(now_s) or self._needs_last_resort(want, now_s)

    def _needs_last_resort(self, want: Want, now_s: float) -> bool:
        """Whether no learner can be expected to give the rest of this version."""
        if want.opened_s is None:
            return False
        if any(part.failures >= PART_FAILURES_MAX for part in want.assembly.parts.values()):
            return True
        fragment = want.assembly.fragment
        learners = [
            donor
            for donor in self._donors.values()
            if not donor.is_last_resort and donor.is_listed and not donor.is_shunned(now_s)
        ]
        whole = [donor for donor in learners if not donor.is_joiner]
        # A joiner is no hope until it says that it has it.
        if any(
            fragment in donor.holds if donor.is_joiner else not donor.lacks_now(fragment, now_s)
            for donor in learners
        ):
            return False
        is_patient = bool(whole) and not want.was_held and not want.is_superseded
        return not is_patient or now_s >= want.opened_s + GRACE_S

    def _is_hopeless(self, want: Want, now_s: float) -> bool:
        """Whether nobody at all can be expected to give the rest."""
        fragment = want.assembly.fragment
        if any(ask.fragment == fragment for ask in self.asked.values()):
            return False
        if want.is_superseded and not want.assembly.done_bytes:
            return True
        if want.opened_s is None:
            return False
        if not self._is_informed or not self._needs_last_resort(want, now_s):
            return False
        return not any(
            donor.is_last_resort
            and donor.is_listed
            and not donor.is_shunned(now_s)
            and not donor.lacks_now(fragment, now_s)
            for donor in self._donors.values()
        )

    def _judge(
        self, donor: Donor, ask: Ask, trouble: Trouble, held_sections: int, now_s: float
    ) -> None:
        match trouble:
            case Trouble.NOT_HELD if held_sections and ask.is_manifest:
                donor.has_sections(ask.fragment, ask.digest, held_sections, now_s)
            case Trouble.NOT_HELD:
                donor.lack(ask.fragment, now_s)
            case Trouble.BUSY:
                donor.busy(now_s)
            case Trouble.GONE:
                donor.shun(now_s)
            case Trouble.WRONG:
                donor.blame(now_s)
            case Trouble.OURS:
                self._rest_until_s = now_s + OWN_PAUSE_S

    def _cancel(self, numbers: list[int]) -> None:
        self._cancelled += numbers
        for number in numbers:
            ask = self.asked.pop(number)
            self._donors[ask.donor].ended(number)
            want = self._wants[ask.fragment]
            part = want.assembly.parts.get(ask.digest)
            if part is not None:
                part.asks.discard(number)
                want.assembly.put_back(ask.digest)


def _patience_s(donor: Donor) -> float:
    """What is under way this long elsewhere is slow beside this donor."""
    return SLOW_S if donor.chunk_s is None else max(SLOW_S_MIN, 2 * donor.chunk_s)
