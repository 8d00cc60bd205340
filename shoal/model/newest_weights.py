"""The newest weights on this machine: a running daemon's, or a checkpoint's on a syncer's disk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from host.files.home import Daemon, Home
from host.files.pinned_files import PinnedFiles
from host.files.signed_project import OpenedProject, read_signed
from protocol import limits, wire
from protocol.errors import TransientError, UserError
from protocol.project import Genesis
from protocol.status import DaemonStatus, WitnessStatus
from shoal.common import daemons

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class NewestWeights:
    """All fragments of one moment."""

    genesis: Genesis
    fragments: list[NDArray[np.float32]]
    """f32 [numel] each, in fragment order."""
    words: str
    """Which they are and where they come from, as one line."""


class Source:
    """One project on this machine, whose weights are asked for again and again."""

    def __init__(self, home: Home, wanted: str, instance: str | None) -> None:
        """wanted: its name or the beginning of its id; empty for the only one.

        UserError if no project fits, or several.
        """
        self._home, self._instance = home, instance
        self._project = self._only(wanted)

    def newest(self) -> NewestWeights:
        """Of a running daemon, a syncer first, else of the newest checkpoint on the disk.

        TransientError while there are none yet. UserError if none are on this machine.
        """
        running = [one for one, status in self._running() if status.project.id == self._project]
        running.sort(key=lambda one: one.role != "syncer")
        refusals = []
        for daemon in running:
            try:
                return self._of_daemon(daemon)
            except TransientError as error:
                refusals.append(error)
        hosted = [one for one in self._hosted() if one.id.hex() == self._project]
        if hosted:
            return self._of_disk(hosted[0])
        if refusals:
            raise refusals[0]
        raise UserError(
            f"No daemon here works for the project {self._project[:8]} any more, and no syncer's "
            "checkpoints are here. Start it again with `shoal run` or `shoal syncer run`."
        )

    def _only(self, wanted: str) -> str:
        """The id of the one project that fits."""
        names = {one.project.id: one.project.name for _, one in self._running()}
        names |= {one.id.hex(): one.genesis.name for one in self._hosted()}
        fitting = {
            project: name
            for project, name in names.items()
            if not wanted or name == wanted or (len(wanted) >= 4 and project.startswith(wanted))
        }
        if not fitting:
            which = f"the project {wanted!r}" if wanted else "any project"
            raise UserError(
                f"No learner or syncer of this home has {which}. Join one with `shoal join`, or "
                "host one with `shoal syncer run`; `shoal status` shows what runs."
            )
        if len(fitting) > 1:
            listed = ", ".join(f"{name} ({project[:8]})" for project, name in fitting.items())
            raise UserError(f"Several projects fit: {listed}. Name one of them.")
        return next(iter(fitting))

    def _running(self) -> list[tuple[Daemon, DaemonStatus]]:
        """Daemons with weights that answer."""
        found = daemons.fitting(self._home, None, self._instance)
        asked = [(one, daemons.ask_all([one])[0]) for one in found if one.role != "witness"]
        return [
            (daemon, statuses[0])
            for daemon, statuses in asked
            if statuses and not isinstance(statuses[0], WitnessStatus)
        ]

    def _hosted(self) -> list[OpenedProject]:
        instance = self._instance or "default"
        return [read_signed(path) for path in self._home.hosted_projects(instance)]

    def _of_daemon(self, daemon: Daemon) -> NewestWeights:
        from host.control.weights import take

        taken = take(daemon.socket)
        genesis = wire.decode(taken.genesis, Genesis, bytes_max=limits.GENESIS_BYTES_MAX)
        step, tokens = taken.cut.global_step, taken.cut.tokens
        words = _words(genesis, step, tokens, f"the running {daemon.role}")
        return NewestWeights(genesis, list(taken.cut.fragments), words)

    def _of_disk(self, project: OpenedProject) -> NewestWeights:
        from shoal.model.export_choice import choose

        store = self._home.syncer_store(project.id, self._instance or "default")
        chosen = choose(store, "latest", project, is_untrained_wanted=True)
        words = _words(project.genesis, chosen.step, chosen.tokens, "a checkpoint on this disk")
        return NewestWeights(project.genesis, chosen.weights(), words)


def _words(genesis: Genesis, step: int, tokens: int, where: str) -> str:
    from tui.text import fmt

    return f"{fmt.clean(genesis.name)}, global step {step:,} after {tokens:,} tokens, from {where}"


def has_chat(genesis: Genesis, home: Home) -> bool:
    """Whether the project's tokenizer says how a chat is written."""
    from node.trainer.text.chat_template import chat_settings

    return chat_settings(PinnedFiles(home.data_cache(), genesis.tokenizer)) is not None
