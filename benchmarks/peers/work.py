"""The work that every contender of run.py does, and how its processes are spoken to.

Each of M workers holds a displacement of N float32 parameters in a few fragments. After a round
each holds their mean. A process reads one JSON object per line and answers with one: first it says
where it is found (`place`), then it is told all places (`connect`); `load` puts the displacement
where the contender wants it, `sync` is what is timed, and `check` compares the result with the mean
in float64.

Where a model is trained (`training.py`), `train` takes local steps and puts what they moved where
`load` finds it, `apply` goes on from the mean, and `loss` measures held-out text.

Only numpy is needed here, and torch to train: it is imported in the environments of all contenders.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
SCALE = 1e-3
"""Of a displacement; outer gradients are of the size of learning rate times local steps."""


@dataclass(frozen=True)
class Task:
    """One process of one contender."""

    role: str
    rank: int
    workers: int
    sizes: list[int]
    """Parameters of each fragment."""
    variant: str
    folder: str
    """For this contender alone."""
    data: str
    """Where everybody's displacements lie."""
    project: str
    """Shoal's; the others do without."""
    host: str
    """The IPv4 address that this process listens on."""
    interface: str
    """The network device that has it."""

    @property
    def fragments(self) -> int:
        return len(self.sizes)

    def displacement(self, fragment: int, rank: int | None = None) -> Floats:
        """Of a worker, ours by default."""
        own = self.rank if rank is None else rank
        return np.fromfile(_file(Path(self.data), fragment, own), np.float32)

    def mean(self, fragment: int, ranks: list[int]) -> NDArray[np.float64]:
        """The exact one of these workers."""
        total = np.zeros(self.sizes[fragment])
        for rank in ranks:
            total += self.displacement(fragment, rank)
        return total / len(ranks)


def _file(data: Path, fragment: int, rank: int) -> Path:
    return data / f"{fragment}-{rank}.f32"


def write_nothing(data: Path, sizes: list[int], workers: int) -> None:
    """Displacements of zero, for a round before anything is trained."""
    data.mkdir(parents=True, exist_ok=True)
    for fragment, size in enumerate(sizes):
        for rank in range(workers):
            np.zeros(size, np.float32).tofile(_file(data, fragment, rank))


def write_displacements(data: Path, sizes: list[int], workers: int) -> None:
    """A part that all workers share and a part of their own, as large and normally distributed."""
    data.mkdir(parents=True, exist_ok=True)
    for fragment, size in enumerate(sizes):
        shared = np.random.default_rng([1, fragment]).standard_normal(size, np.float32)
        for rank in range(workers):
            found = np.random.default_rng([2, fragment, rank]).standard_normal(size, np.float32)
            found += shared
            found *= np.float32(SCALE)
            found.tofile(_file(data, fragment, rank))


class Process:
    """What a contender fills in; services leave out what they have no part in."""

    _averages = False
    """Whether what was handed in last are gradients."""

    def __init__(self, task: Task) -> None:
        self.task = task

    def place(self) -> Any:
        """Where others find this process; anything that JSON can say."""
        return None

    def connect(self, places: list[Any]) -> None:
        """With the places of all processes, in the order of starting."""

    def load(self) -> None:
        """Brings our displacement to where the next round takes it from."""

    def sync(self) -> None:
        """One round; raises where the contender gives up."""

    def result(self, fragment: int) -> Floats | None:
        """What this worker has after the round."""
        return None

    def result_over_rounds(self, fragment: int) -> Floats | None:
        """The mean of the results of all rounds so far, where errors of one make up for another."""
        return None

    def close(self) -> None:
        """Ends what this process started."""

    def note(self) -> dict[str, Any]:
        """Other things worth telling about the last round."""
        return {}

    def answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        """To one line of the runner."""
        verb = asked["do"]
        began_s = time.monotonic()
        if verb == "connect":
            self.connect(asked["places"])
        elif verb == "load":
            self.load()
        elif verb == "sync":
            self.sync()
        elif verb == "train":
            return self._train(asked["steps"])
        elif verb == "apply":
            self._apply()
        elif verb == "loss":
            return {"loss": self.training.loss()} if self.task.role == "worker" else {}
        elif verb == "check":
            return self._check(asked["means"])
        return {"began_s": began_s, "ended_s": time.monotonic(), **self.note()}

    @functools.cached_property
    def training(self) -> Any:
        """Of the model that is trained, where one is."""
        # Found beside the script of each contender, whatever environment that runs in.
        module = importlib.import_module("training")
        return module.Training(self.task.rank, self.task.sizes)

    def _train(self, steps: int) -> dict[str, Any]:
        """steps: local steps; 0 for the gradients of one. Services train nothing."""
        if self.task.role != "worker":
            return {}
        training, began_s = self.training, time.process_time()
        moved = training.local_steps(steps) if steps else training.gradients()
        self._averages = not steps
        took_s = time.process_time() - began_s
        for fragment, values in enumerate(moved):
            values.tofile(_file(Path(self.task.data), fragment, self.task.rank))
        return {"trained_s": took_s}

    def _apply(self) -> None:
        if self.task.role != "worker":
            return
        found = [self.result(fragment) for fragment in range(self.task.fragments)]
        means = [one for one in found if one is not None]
        if self._averages:
            self.training.averaged(means)
        else:
            self.training.merged(means)

    def _check(self, means: list[list[int]]) -> dict[str, Any]:
        """Relative L2 error, each fragment against the nearest of these means, and a digest.

        A mean is told by the workers that are in it.
        """
        off = whole = over = 0.0
        digest = hashlib.blake2b(digest_size=16)
        for fragment in range(self.task.fragments):
            found = self.result(fragment)
            if found is None:
                return {}
            pairs = [self._off(found, fragment, ranks) for ranks in means]
            nearest = min(pairs, key=lambda pair: pair[0] / pair[1])
            off, whole = off + nearest[0], whole + nearest[1]
            digest.update(np.ascontiguousarray(found).tobytes())
            mean = self.result_over_rounds(fragment)
            over += 0.0 if mean is None else self._off(mean, fragment, means[0])[0]
        told = {"error": (off / whole) ** 0.5, "digest": digest.hexdigest()}
        return {**told, "error_over_rounds": (over / whole) ** 0.5} if over else told

    def _off(self, found: Floats, fragment: int, ranks: list[int]) -> tuple[float, float]:
        """Squared lengths: of the difference from a mean, and of the mean."""
        wanted = self.task.mean(fragment, ranks)
        whole = float(wanted @ wanted)
        wanted -= found
        return float(wanted @ wanted), whole


def serve(made: Callable[[Task], Process]) -> None:
    """Until the runner closes our stdin. Libraries that print to stdout print to stderr instead."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    process = made(Task(**json.loads(sys.argv[1])))
    _say(out, {"place": process.place()})
    for line in sys.stdin:
        try:
            _say(out, process.answer(json.loads(line)))
        except Exception as error:  # The runner decides what a failed round means.
            traceback.print_exc()
            what = f"{type(error).__name__}: {error}".splitlines()[0][:200]
            _say(out, {"failed": what, "ended_s": time.monotonic()})
    process.close()
    sys.stderr.flush()
    os._exit(0)  # Some contenders leave threads behind that never end.


def _say(out: TextIO, what: dict[str, Any]) -> None:
    out.write(json.dumps(what) + "\n")
    out.flush()
