"""Flower's FedAvg: a server and its clients over gRPC, NumPy arrays.

A round of the server is its fit, which brings the displacements up and averages them, and its
evaluation, which brings the mean down; the model that fit would carry down first is left empty.
`start_server` and `start_client` are Flower's direct gRPC streams. Flower advises its SuperLink
instead, where the same messages go through a store between server and clients.
"""

from __future__ import annotations

import queue
import socket
import threading
import warnings
from typing import Any

import numpy as np
from flwr.client import NumPyClient
from flwr.common import FitIns, Parameters
from flwr.compat.client.app import start_client
from flwr.compat.server.app import start_server
from flwr.server import ServerConfig
from flwr.server.client_manager import ClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.strategy import FedAvg
from work import Floats, Process, Task, serve

ROUNDS_MAX = 10_000
MESSAGE_BYTES_MAX = 2**31 - 1
CLIENTS_S = 120.0


class OnDemand(FedAvg):
    """FedAvg whose rounds begin when they are asked for."""

    def __init__(self, workers: int) -> None:
        super().__init__(
            min_fit_clients=2,
            min_evaluate_clients=1,
            min_available_clients=2,
            initial_parameters=Parameters(tensors=[], tensor_type="numpy.ndarray"),
        )
        self.go: queue.Queue[None] = queue.Queue()
        self.done: queue.Queue[int] = queue.Queue()
        self.workers = workers

    def configure_fit(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> list[tuple[ClientProxy, FitIns]]:
        if server_round == 1:
            client_manager.wait_for(self.workers, int(CLIENTS_S))
        self.go.get()
        empty = Parameters(tensors=[], tensor_type="numpy.ndarray")
        return super().configure_fit(server_round, empty, client_manager)

    def aggregate_evaluate(self, *given: Any) -> Any:
        self.done.put(len(given[1]))
        return super().aggregate_evaluate(*given)


class Server(Process):
    """Whoever asks for a round gets an answer when all evaluations are back."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        with socket.create_server((task.host, 0)) as found:
            self.address = f"{task.host}:{found.getsockname()[1]}"
        self.strategy = OnDemand(task.workers)

    def run(self) -> None:
        """Flower's server wants the main thread, for its signal handlers."""
        start_server(
            server_address=self.address,
            config=ServerConfig(num_rounds=ROUNDS_MAX),
            strategy=self.strategy,
            grpc_max_message_length=MESSAGE_BYTES_MAX,
        )

    def place(self) -> Any:
        return self.address

    def sync(self) -> None:
        self.strategy.go.put(None)
        self.strategy.done.get()


class Worker(Process):
    """A client; a round is over for it when the mean has come down."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.own = [np.zeros(size, np.float32) for size in task.sizes]
        self.mean: list[Floats] = []
        self.came: queue.Queue[list[Floats]] = queue.Queue()

    def connect(self, places: list[Any]) -> None:
        client = Client(self).to_client()

        def run() -> None:
            start_client(
                server_address=places[0],
                client=client,
                insecure=True,
                grpc_max_message_length=MESSAGE_BYTES_MAX,
            )

        threading.Thread(target=run, daemon=True).start()

    def load(self) -> None:
        self.mean = []
        for fragment, own in enumerate(self.own):
            own[:] = self.task.displacement(fragment)

    def sync(self) -> None:
        self.mean = self.came.get()

    def result(self, fragment: int) -> Floats:
        return self.mean[fragment]


class Client(NumPyClient):
    def __init__(self, worker: Worker) -> None:
        self.worker = worker

    def fit(self, parameters: Any, config: Any) -> Any:
        return list(self.worker.own), 1, {}

    def evaluate(self, parameters: Any, config: Any) -> Any:
        self.worker.came.put(parameters)
        return 0.0, 1, {}


def main() -> None:
    """The runner is answered by a second thread."""
    warnings.simplefilter("ignore")
    begun: queue.Queue[Process] = queue.Queue()

    def begin(task: Task) -> Process:
        process = Server(task) if task.role == "server" else Worker(task)
        begun.put(process)
        return process

    answering = threading.Thread(target=serve, args=(begin,))
    answering.start()
    process = begun.get()
    if isinstance(process, Server):
        process.run()
    answering.join()


if __name__ == "__main__":
    main()
