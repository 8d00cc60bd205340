"""The control socket of a daemon on its way into its swarm: it says what keeps it, and stops.

The way may take as long as the swarm is away. Without this `shoal status` would say all the time
that nothing runs here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NoReturn

from host.control import client
from host.control.server import ControlServer
from host.runtime.lifecycle import Stopper
from protocol.errors import TransientError
from protocol.status import ON_ITS_WAY


class Entering:
    """What is answered before there is a daemon to ask."""

    def __init__(self, path: Path, project: bytes, stopper: Stopper) -> None:
        """path: of the control socket. project: its id."""
        self._path, self._project, self._stopper = path, project, stopper
        self._trouble = "connecting to it"

    def tell(self, reason: str) -> None:
        """Why the last try came to nothing."""
        self._trouble = reason

    @asynccontextmanager
    async def answering(self) -> AsyncIterator[None]:
        """The socket is there within this block. UserError as `ControlServer.start`."""
        # Nothing was done yet that could be handed in: to finish is to stop.
        verbs = {"stop": self._stop, "finish": self._stop, client.ENTERING: self._tell_project}
        control = ControlServer(self._path, verbs, otherwise=self._refuse)
        await control.start()
        try:
            yield
        finally:
            await control.close()

    def _stop(self, _: dict[str, Any]) -> dict[str, Any]:
        asyncio.get_running_loop().call_soon(self._stopper.ask, "stopped by its owner")
        return {}

    def _tell_project(self, _: dict[str, Any]) -> dict[str, Any]:
        return {"project": self._project.hex()}

    def _refuse(self, _: dict[str, Any]) -> NoReturn:
        raise TransientError(f"{ON_ITS_WAY}: {self._trouble}")
