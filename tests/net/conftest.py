"""What tests of real processes share: one import of a trainer's libraries for each worker.

Swarms here start some trainers each, and what one imports takes longer than most of what is tested.
So they are forked (`host.runtime.fork_server`), but for files marked `bare`, which test the start
itself, or look at a learner with all that is below it.
"""

from __future__ import annotations

import os

import pytest

from host.runtime.fork_server import VARIABLE, ForkServer
from host.runtime.python_path import python_path
from shoal.local_swarm.processes import TRAINERS_IMPORTS


@pytest.fixture(scope="session")
def _server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fork-server")
    environment = {**os.environ, "PYTHONPATH": python_path()}
    server = ForkServer(folder, [TRAINERS_IMPORTS], environment, folder / "log")
    yield server
    server.close()


@pytest.fixture(scope="module", autouse=True)
def _trainers_are_forked(request):
    with pytest.MonkeyPatch.context() as patched:
        if request.node.get_closest_marker("bare") is None:
            patched.setenv(VARIABLE, str(request.getfixturevalue("_server").path))
        yield
