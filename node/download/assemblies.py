"""What a joiner has begun of each fragment, and what others may have of it meanwhile.

The daemon and the simulator download and give by it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from host.files.rooms import MemoryRoom, Rooms
from node.download.assembly import Assembly
from node.machine.jobs import FetchState
from protocol.ids import Digest


@dataclass(slots=True)
class Assemblies:
    """All of one life of a learner, by fragment."""

    rooms: Rooms = MemoryRoom
    """Where their arrays gather."""
    _begun: dict[int, Assembly] = field(default_factory=dict)
    """Also where a try failed: the next one goes on where that ended."""

    def begin(self, job: FetchState, numel: int) -> Assembly:
        """That of this version; empty, unless something of it is here."""
        assembly = self._begun.get(job.fragment)
        if assembly is None or assembly.state != job.state:
            assembly = self._begun[job.fragment] = Assembly(
                job.fragment, job.version, job.state, numel, self.rooms
            )
        return assembly

    def begun(self, fragment: int) -> Assembly | None:
        """What was begun of this fragment last, if it was not forgotten."""
        return self._begun.get(fragment)

    def forget(self, fragment: int) -> None:
        """What was begun of this fragment is not needed any more."""
        self._begun.pop(fragment, None)

    def find(self, digest: Digest) -> memoryview | None:
        """A chunk that is here of what is not complete yet, or not forgotten."""
        for assembly in self._begun.values():
            if (chunk := assembly.held.get(digest)) is not None:
                return chunk
        return None

    def held_sections(self, root: Digest) -> int:
        """What is here of the array whose manifest has this digest: one bit for each section."""
        return max((one.held_sections.get(root, 0) for one in self._begun.values()), default=0)

    @property
    def has_any(self) -> bool:
        """Whether others can fetch a chunk here."""
        return any(one.held for one in self._begun.values())
