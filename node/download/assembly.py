"""One version of one fragment, put together from chunks that may come from anywhere, in any order.

What arrived was checked against its digest by whoever fetched it; a chunk's digest is believed
because it stands in a manifest, and a manifest because its digest is certified. What arrived stays,
whatever happens to its donor.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Mapping
from dataclasses import dataclass, field

from host.files.rooms import MemoryRoom, Room, Rooms, kept_chunks
from protocol.ids import Digest
from protocol.log.records import StateDigests
from protocol.numerics import chunks
from protocol.numerics.buffers import F32

Section = tuple[Digest, int]
"""A section of one of the two arrays: the array's digest, and which of its `chunks.SECTIONS`."""

HeldSections = Mapping[Digest, int]
"""An array's digest -> one bit for each section of it that is held as a whole."""


@dataclass(slots=True)
class Part:
    """A manifest or a chunk that has not arrived."""

    length: int
    is_manifest: bool
    places: list[tuple[Room, int]] = field(default_factory=list)
    """Where a chunk belongs, and from which byte: an array may repeat one chunk many times."""
    written: int = 0
    """How many of its places have it already."""
    sections: list[Section] = field(default_factory=list)
    """The sections of the arrays that it belongs to."""
    asks: set[int] = field(default_factory=set)
    """Numbers of the requests that are under way."""
    failures: int = 0


class Assembly:
    """Value and momentum of one fragment version, as far as they are here."""

    def __init__(
        self,
        fragment: int,
        version: int,
        state: StateDigests,
        numel: int,
        rooms: Rooms = MemoryRoom,
    ) -> None:
        """rooms: where its arrays gather."""
        self.fragment = fragment
        self.version = version
        self.state = state
        self.size_bytes = 4 * numel
        """Of each of the two arrays."""
        self.done_bytes = 0
        self.sources: dict[bytes, int] = {}
        """Donor -> bytes of chunks that it sent."""
        self.parts: dict[Digest, Part] = {}
        self.held: dict[Digest, memoryview] = {}
        """Chunks that are here."""
        self.held_sections: dict[Digest, int] = {}
        """Of each of the two arrays that some section is here: one bit for each."""
        self._idle: dict[Section, list[Digest]] = {}
        """Chunks that nobody was asked for, by the first section that they belong to."""
        self._idle_sections: dict[Digest, int] = {}
        """The same as bits of each array."""
        self._missing: dict[Section, int] = {}
        """Different chunks of a section that have not arrived."""
        self._begun: dict[Digest, int] = {}
        """Sections of which a chunk was asked for, as bits."""
        self._rooms = [rooms(root, self.size_bytes) for root in (state.theta, state.momentum)]
        self._found: dict[Digest, frozenset[int]] = {}
        """Of an array, the chunks that were there from a life before, by their places."""
        self.kept_bytes = 0
        """What of `done_bytes` that was."""
        self.manifest_bytes = chunks.manifest_bytes(self.size_bytes)
        for root in (state.theta, state.momentum):
            self.parts[root] = Part(self.manifest_bytes, is_manifest=True)

    @property
    def total_bytes(self) -> int:
        return 2 * self.size_bytes

    @property
    def is_complete(self) -> bool:
        return not self.parts

    @property
    def has_idle_chunks(self) -> bool:
        return bool(self._idle)

    @property
    def unasked(self) -> int:
        """About how many requests could be made: an unknown manifest stands for its chunks."""
        unknown = sum(part.length // chunks.DIGEST_BYTES for _, part in self.manifests())
        return sum(map(len, self._idle.values())) + unknown

    def manifests(self) -> list[tuple[Digest, Part]]:
        """The manifests that have not arrived."""
        roots = dict.fromkeys((self.state.theta, self.state.momentum))
        found = ((root, self.parts.get(root)) for root in roots)
        return [(root, part) for root, part in found if part is not None and part.is_manifest]

    def arrays(self) -> tuple[F32, F32]:
        """Value and momentum, once complete."""
        assert self.is_complete, "it is complete before it is used"
        theta, momentum = self._rooms
        return theta.values(), momentum.values()

    def roots_lacking(self) -> list[Digest]:
        """The arrays of which something has not arrived."""
        lacking = {section[0] for section in self._missing} | {root for root, _ in self.manifests()}
        return [root for root in (self.state.theta, self.state.momentum) if root in lacking]

    def pick_idle(
        self,
        rng: random.Random,
        held: HeldSections | None = None,
        beside: HeldSections | None = None,
        share: tuple[int, int] = (0, 1),
    ) -> Digest | None:
        """Some chunk that nobody was asked for; it counts as asked for from now on.

        One of a section that was begun, if there is one: others can fetch it here once it is whole.
        held: of these sections only. beside: of none of these. share: only of those whose turn it
        is, of so many turns. None where there is no such chunk.
        """
        found = {}
        for root, idle in self._idle_sections.items():
            may = idle if held is None else idle & held.get(root, 0)
            may &= ~(beside.get(root, 0) if beside else 0)
            if may := may & _share(root[0], *share):
                found[root] = may
        if not found:
            return None
        begun = {root: found[root] & self._begun.get(root, 0) for root in found}
        root = rng.choice([root for root in found if begun[root]] or list(found))
        at = rng.choice(_bits(begun[root] or found[root]))
        self._begun[root] = self._begun.get(root, 0) | 1 << at
        digests = self._idle[root, at]
        picked = digests.pop(rng.randrange(len(digests)))
        if not digests:
            del self._idle[root, at]
            self._idle_sections[root] &= ~(1 << at)
        return picked

    def put_back(self, digest: Digest) -> None:
        """Nobody is asked for this chunk any more."""
        part = self.parts.get(digest)
        if part is not None and not part.is_manifest and not part.asks:
            self._add_idle(part.sections[0], digest)

    def look_for(self, root: Digest, manifest: memoryview) -> None:
        """Find out which chunks of an array are here from a life before; from any thread.

        To be done before its manifest is taken; reads all that is there, if there is anything.
        """
        room = self._rooms[0 if root == self.state.theta else 1]
        if root in self.parts and root not in self._found:
            self._found[root] = kept_chunks(room, manifest, self.size_bytes)

    def take_manifest(self, digest: Digest, content: memoryview) -> None:
        """The chunks of an array are known now."""
        del self.parts[digest]
        for root, room in zip((self.state.theta, self.state.momentum), self._rooms, strict=True):
            if root == digest:
                self._expect(root, content, room)

    def _expect(self, root: Digest, manifest: memoryview, room: Room) -> None:
        spans = chunks.spans(self.size_bytes)
        found = self._found.get(root, frozenset())
        for index, (name, (start, end)) in enumerate(
            zip(chunks.digests(manifest), spans, strict=True)
        ):
            section = root, chunks.section_of(index, len(spans))
            self.held_sections[root] = self.held_sections.get(root, 0) | 1 << section[1]
            if index in found:
                self.kept_bytes += end - start
                self._have(name, room, start, end)
                continue
            if name == chunks.digest_of_zeros(end - start):
                if room.is_begun:
                    room.write(start, bytes(end - start))
                self._have(name, room, start, end)
                continue
            part = self.parts.get(name)
            if part is None:
                part = self.parts[name] = Part(end - start, is_manifest=False)
                self._add_idle(section, name)
            part.places.append((room, start))
            if section not in part.sections:
                part.sections.append(section)
                self._missing[section] = self._missing.get(section, 0) + 1
        for _, at in filter(lambda section: section[0] == root, self._missing):
            self.held_sections[root] &= ~(1 << at)

    def _add_idle(self, section: Section, digest: Digest) -> None:
        root, at = section
        self._idle.setdefault(section, []).append(digest)
        self._idle_sections[root] = self._idle_sections.get(root, 0) | 1 << at

    def _have(self, digest: Digest, room: Room, start: int, end: int) -> None:
        """What need not come: it is here from before, or consists of zeros, as the momentum of a
        run that has just begun."""
        self.done_bytes += end - start
        self.held[digest] = room.view(start, end)

    def write(self, digest: Digest, content: memoryview) -> None:
        """Put a chunk to all its places, before it is taken; from any thread."""
        part = self.parts.get(digest)
        if part is None or part.is_manifest:
            return
        places = part.places[:]
        for room, start in places:
            room.write(start, content)
        part.written = max(part.written, len(places))

    def take_chunk(self, digest: Digest, content: memoryview, donor: bytes) -> None:
        """A chunk is here; it goes to those of its places where it was not written before."""
        part = self.parts.pop(digest)
        for room, start in part.places[part.written :]:
            room.write(start, content)
        room, start = part.places[0]
        self.held[digest] = room.view(start, start + part.length)
        self.done_bytes += len(part.places) * part.length
        for section in part.sections:
            self._missing[section] -= 1
            if not self._missing[section]:
                del self._missing[section]
                root, at = section
                self.held_sections[root] = self.held_sections.get(root, 0) | 1 << at
        self.sources[donor] = self.sources.get(donor, 0) + len(content)


@functools.lru_cache(1024)
def _share(first: int, turn: int, turns: int) -> int:
    """The sections whose turn it is, as bits; which one is first is for the array to say."""
    return sum(1 << at for at in range(chunks.SECTIONS) if (first + at) % turns == turn)


def _bits(mask: int) -> list[int]:
    return [at for at in range(mask.bit_length()) if mask >> at & 1]
