"""A lab: nodes with a network of their own each, and links between them that can be broken."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import permutations
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from tests.netlab import namespaces
from tests.netlab.link import Counts, Link

T = TypeVar("T")

ROOT: Final = Path(__file__).parents[2]
SUBNET: Final = "10.77.0"
"""The same in every lab: nobody outside can see it."""

NODES_MAX: Final = 250
MTU_BYTES: Final = 1500
RELAY_ANSWER_S: Final = 10.0
RELAY_ANSWER_BYTES_MAX: Final = 4096
KILLED_S: Final = 10.0


class LabFailed(RuntimeError):
    """The lab itself does not work: a result of the test would mean nothing."""


class Lab:
    """Nodes behind emulated links, from `with Lab(["a", "b"]) as lab` until the block ends.

    Every node can reach every other. A change has taken effect when its call returns, also for
    packets that are on their way. What is broken stays broken until `heal`; links keep their shape
    meanwhile. The same seed gives the same packets the same fate.
    """

    def __init__(
        self,
        nodes: Sequence[str],
        *,
        link: Link = Link(),  # noqa: B008  # Frozen.
        seed: int = 0,
        mtu_bytes: int = MTU_BYTES,
        hosts: Path | None = None,
    ) -> None:
        """hosts: a file, as /etc/hosts, by which programs in the nodes find addresses of names."""
        if len(set(nodes)) != len(nodes) or not 0 < len(nodes) <= NODES_MAX:
            raise ValueError(f"names must differ, and be 1 to {NODES_MAX}")
        self.nodes = tuple(nodes)
        self.processes: list[subprocess.Popen[Any]] = []
        self._seed = seed
        self._mtu_bytes = mtu_bytes
        self.hosts = hosts
        self._addresses = {node: f"{SUBNET}.{k}" for k, node in enumerate(nodes, start=1)}
        self._links = dict.fromkeys(permutations(nodes, 2), link)
        self._cuts: set[tuple[str, str]] = set()
        self._nats: set[str] = set()
        self._namespaces: dict[str, int] = {}
        self._relay: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        namespaces.kill_strays()
        try:
            self._open()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Kills every process of every node and removes the network."""
        try:
            self._kill(self.nodes)
        finally:
            if self._control is not None:
                self._control.close()
                self._control = None
            if self._relay is not None:
                self._relay.kill()
                self._relay.wait(KILLED_S)
                self._relay = None
            while self._namespaces:
                os.close(self._namespaces.popitem()[1])

    @property
    def relay_pid(self) -> int:
        """The process that all packets go through."""
        if self._relay is None:
            raise LabFailed("the lab is not open")
        return self._relay.pid

    # Nodes.

    def address(self, node: str) -> str:
        """The IPv4 address of a node."""
        return self._addresses[node]

    def path(self, node: str) -> str:
        """Its namespace as a file: `nsenter --net=PATH bash` looks around while the lab is open."""
        return f"/proc/{os.getpid()}/fd/{self._namespaces[node]}"

    def run(
        self,
        node: str,
        arguments: Sequence[str | Path],
        *,
        env: Mapping[str, str] | None = None,
        **options: Any,
    ) -> subprocess.Popen[Any]:
        """Starts a program in a node; `env` is added to ours, `options` are those of `Popen`.

        Files and file-system sockets are those of the machine. It dies with the calling thread.
        """
        namespace, parent, hosts = self._namespaces[node], os.getpid(), self.hosts

        def move_in() -> None:
            namespaces.enter(namespace)
            if hosts is not None:
                namespaces.name_hosts_by(hosts)
            namespaces.die_with(parent)

        environment = {**os.environ, **(env or {}), namespaces.OWNER_VARIABLE: namespaces.owner()}
        process = subprocess.Popen(
            [str(argument) for argument in arguments],
            env=environment,
            preexec_fn=move_in,
            **options,
        )
        self.processes.append(process)
        return process

    def inside(self, node: str, function: Callable[[], T]) -> T:
        """The result of `function` in a thread that is in a node; sockets it opens stay there."""

        def move_in() -> T:
            namespaces.enter(self._namespaces[node])
            return function()

        return namespaces.in_thread(move_in)

    def kill(self, node: str) -> None:
        """kill -9 for everything that runs in a node, as a power cut would."""
        self._kill([node])

    def move(self, node: str) -> str:
        """Gives a node another address, in place of its own; its programs go on. The address.

        Connections of before are dead, and nobody is told.
        """
        (name,) = self._checked([node])
        taken = set(self._addresses.values())
        address = next(
            free
            for k in range(len(taken) + 1, NODES_MAX + 2)
            if (free := f"{SUBNET}.{k}") not in taken
        )
        self.inside(name, lambda: namespaces.move(address))
        self._ask({"moves": {name: address}})
        self._addresses[name] = address
        return address

    # Links. Those of nodes that are not named stay as they are.

    def shape(self, a: str, b: str, link: Link) -> None:
        """Changes a link in both directions."""
        self._reshape([(a, b), (b, a)], link)

    def shape_one_way(self, sender: str, receiver: str, link: Link) -> None:
        """Changes one direction."""
        self._reshape([(sender, receiver)], link)

    def shape_all(self, link: Link) -> None:
        """Changes all links."""
        self._reshape(self._links, link)

    def put_on_line(self, node: str, *, up: Link, down: Link) -> None:
        """From now on all that a node sends shares one line, and all that it gets another one.

        They come on top of its links: latencies add up, and the slower rate counts.
        """
        (name,) = self._checked([node])
        lines = (("up", up), ("down", down))
        self._ask({"lines": [[name, way, *dataclasses.astuple(link)] for way, link in lines]})

    def cut(self, a: str, b: str) -> None:
        """Lets nothing through between two nodes; nobody is told."""
        self._cut([(a, b), (b, a)])

    def cut_one_way(self, sender: str, receiver: str) -> None:
        """Lets nothing through from sender to receiver; the other direction works."""
        self._cut([(sender, receiver)])

    def partition(self, *groups: Iterable[str]) -> None:
        """Cuts every link between nodes of different groups."""
        parts = [set(group) for group in groups]
        self._cut(pair for one, other in permutations(parts, 2) for pair in _pairs(one, other))

    def silence(self, node: str) -> None:
        """Cuts a node off from everybody."""
        self.partition({node}, set(self.nodes) - {node})

    def heal(self, a: str | None = None, b: str | None = None) -> None:
        """Undoes cuts: between two nodes, all those of one, or all."""
        wanted = {node for node in (a, b) if node is not None}
        if not wanted <= set(self.nodes):
            raise ValueError(f"there is no node {wanted - set(self.nodes)}")
        healed = {pair for pair in self._cuts if wanted <= set(pair)}
        self._cuts -= healed
        self._tell(healed)

    def put_behind_nat(self, *nodes: str) -> None:
        """From now on nobody can begin a TCP connection to these nodes; nothing is answered.

        Connections that stand stay, and those that the nodes begin themselves work.
        """
        self._nats |= self._checked(nodes)
        self._ask({"nats": sorted(self._nats)})

    def forward(self, *nodes: str) -> None:
        """Takes nodes out of their NAT again, as a forwarded port would."""
        self._nats -= self._checked(nodes)
        self._ask({"nats": sorted(self._nats)})

    def _checked(self, nodes: Iterable[str]) -> set[str]:
        if not set(nodes) <= set(self.nodes):
            raise ValueError(f"there is no node {set(nodes) - set(self.nodes)}")
        return set(nodes)

    def counts(self, sender: str, receiver: str) -> Counts:
        """What became of the packets of one direction so far."""
        return Counts(**self._ask({"count": [sender, receiver]}))

    def _reshape(self, pairs: Iterable[tuple[str, str]], link: Link) -> None:
        changed = list(pairs)
        for pair in changed:
            if pair not in self._links:
                raise ValueError(f"there is no link from {pair[0]} to {pair[1]}")
            self._links[pair] = link
        self._tell(changed)

    def _cut(self, pairs: Iterable[tuple[str, str]]) -> None:
        changed = set(pairs)
        if not changed <= set(self._links):
            raise ValueError(f"there is no link {changed - set(self._links)}")
        self._cuts |= changed
        self._tell(changed)

    def _tell(self, pairs: Iterable[tuple[str, str]]) -> None:
        links = [
            [*pair, pair not in self._cuts, *dataclasses.astuple(self._links[pair])]
            for pair in pairs
        ]
        self._ask({"links": links})

    def _ask(self, message: dict[str, Any]) -> dict[str, Any]:
        if self._control is None:
            raise LabFailed("the lab is not open")
        try:
            with self._lock:
                self._control.send(json.dumps(message).encode())
                answer = self._control.recv(RELAY_ANSWER_BYTES_MAX)
        except OSError as error:
            raise LabFailed(f"the relay does not answer: {error}") from error
        if not answer:
            raise LabFailed("the relay has ended")
        found: dict[str, Any] = json.loads(answer)
        return found

    def _open(self) -> None:
        with contextlib.ExitStack() as passed:
            theirs, self._control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            passed.enter_context(theirs)
            self._control.settimeout(RELAY_ANSWER_S)
            descriptors, nodes = [theirs.fileno()], []
            for node, address in self._addresses.items():
                self._namespaces[node], tun = namespaces.create(address, mtu_bytes=self._mtu_bytes)
                passed.callback(os.close, tun)
                descriptors.append(tun)
                nodes.append(f"{node}={address}={tun}")
            command = [sys.executable, "-m", "tests.netlab.relay"]
            self._relay = subprocess.Popen(
                [*command, str(theirs.fileno()), str(self._seed), *nodes],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                pass_fds=descriptors,
                stdin=subprocess.DEVNULL,
                preexec_fn=partial(namespaces.die_with, os.getpid()),
            )
        self._tell(self._links)

    def _kill(self, nodes: Iterable[str]) -> None:
        """Again until nobody is left: a process may have had a child while we looked."""
        here = [self._namespaces[node] for node in nodes if node in self._namespaces]
        inodes = {os.fstat(namespace).st_ino for namespace in here}
        killed: set[int] = set()
        ends_s = time.monotonic() + KILLED_S
        while found := set(namespaces.processes_in(inodes)):
            if time.monotonic() > ends_s:
                raise LabFailed(f"processes that outlive kill -9: {sorted(found)}")
            for pid in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            killed |= found
        for process in self.processes:
            if process.pid in killed:
                process.wait(KILLED_S)


def _pairs(senders: set[str], receivers: set[str]) -> list[tuple[str, str]]:
    return [(one, other) for one in senders for other in receivers]
