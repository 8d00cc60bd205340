"""hivemind's network parts, without its training parts, and so without torch.

hivemind's own `__init__` modules import everything: averaging, experts, optimizers, and with them
torch, some 200 MB and a second of processor time in a daemon that never touches a tensor of torch.
Here the three packages on our way get empty `__init__`s instead; their modules are untouched. It
holds for the one version that is pinned, and `tests/repo` looks at what a daemon has loaded.

Nothing else imports hivemind. Where somebody else imported it whole already, nothing changes.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType
from typing import Any, Final

NAMES: Final = {
    "hivemind": {},
    "hivemind.utils": {
        "MSGPackSerializer": "serializer",
        "SerializerBase": "serializer",
        "get_dht_time": "timed_storage",
        "get_logger": "logging",
    },
    "hivemind.dht": {},
}
"""Package -> what its modules, or those of the others, import from it -> where that is."""


def install() -> None:
    """Puts the packages in place, once. ImportError where hivemind is not installed."""
    if "hivemind" in sys.modules:
        return
    for package, names in NAMES.items():
        _place(package, names)


def _place(package: str, names: dict[str, str]) -> None:
    spec = importlib.util.find_spec(package)
    if spec is None:
        raise ImportError(f"{package} is not installed", name=package)
    module = importlib.util.module_from_spec(spec)  # Not executed.

    def find(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"{package}.{name} is not among what Shoal loads of hivemind")
        return getattr(importlib.import_module(f"{package}.{names[name]}"), name)

    module.__dict__["__getattr__"] = find
    sys.modules[package] = module
    _attach(module)


def _attach(module: ModuleType) -> None:
    """As an import would: `hivemind.utils` is an attribute of `hivemind`."""
    parent, _, child = module.__name__.rpartition(".")
    if parent:
        setattr(sys.modules[parent], child, module)


install()

from hivemind.dht import node as dht_node  # noqa: E402
from hivemind.dht.node import DHTNode  # noqa: E402
from hivemind.dht.protocol import DHTProtocol, ValidationError  # noqa: E402
from hivemind.dht.routing import DHTID  # noqa: E402
from hivemind.dht.storage import DHTLocalStorage, DictionaryDHTValue  # noqa: E402
from hivemind.dht.validation import DHTRecord, RecordValidatorBase  # noqa: E402
from hivemind.p2p import P2P, P2PDaemonError, P2PHandlerError, PeerID  # noqa: E402
from hivemind.p2p.p2p_daemon_bindings.utils import raise_if_failed  # noqa: E402
from hivemind.p2p.p2p_daemon_bindings.utils import read_pbmsg_safe as read_message  # noqa: E402
from hivemind.p2p.p2p_daemon_bindings.utils import write_pbmsg as write_message  # noqa: E402
from hivemind.proto import dht_pb2, p2pd_pb2  # noqa: E402
from hivemind.utils.multiaddr import Multiaddr  # noqa: E402
from hivemind.utils.serializer import MSGPackSerializer  # noqa: E402

# A protocol answers once its handlers are registered, and learns who it is only after that: a peer
# that asks in between, as neighbours of a restarted host do, met an AttributeError.
DHTProtocol.node_info = dht_pb2.NodeInfo()

__all__ = [
    "DHTID",
    "P2P",
    "DHTLocalStorage",
    "DHTNode",
    "DHTProtocol",
    "DHTRecord",
    "DictionaryDHTValue",
    "MSGPackSerializer",
    "Multiaddr",
    "P2PDaemonError",
    "P2PHandlerError",
    "PeerID",
    "RecordValidatorBase",
    "ValidationError",
    "dht_node",
    "dht_pb2",
    "p2pd_pb2",
    "raise_if_failed",
    "read_message",
    "write_message",
]
