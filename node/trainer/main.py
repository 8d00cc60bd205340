"""Entry of the child process that trains: `python -m node.trainer.main --fd N`.

Only a daemon starts it, with one end of a socket pair as descriptor N. It dies with its daemon:
by a parent-death signal, and at end of file on the socket should that signal be missed.
It ends with one of the exit codes in `node.trainer.link.messages`.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
import traceback
from collections.abc import Sequence
from typing import Any, Final

from host.runtime.parent_death import end_with_parent
from node.trainer.failures import failure_of
from node.trainer.link import messages
from node.trainer.link.endpoint import BlockingEnd, TrainerEnd
from node.trainer.session import Session

QUIET: Final = {
    "TOKENIZERS_PARALLELISM": "false",
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
}
"""The log is for trouble; progress bars and adverts are not."""


def be_quiet() -> None:
    """Silences the libraries; must be called before they are imported."""
    os.environ.update(QUIET)


def tell_failure(error: Exception, end: BlockingEnd[Any]) -> int:
    """Says at the other end why this process ends; its exit code."""
    traceback.print_exc()
    failed = failure_of(error)
    try:
        end.send(failed)
    except messages.LinkClosed:
        print("the other end left before it could be told", file=sys.stderr)
    return messages.EXIT_CODES[failed.kind]


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code of the trainer."""
    end_with_parent(signal.SIGKILL)
    # Ctrl-C reaches the whole terminal group; the daemon decides when a trainer stops.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parser = argparse.ArgumentParser(prog="node.trainer.main", description=__doc__)
    parser.add_argument("--fd", type=int, required=True, help="the inherited end of the link")
    be_quiet()
    end = TrainerEnd(socket.socket(fileno=parser.parse_args(arguments).fd))
    try:
        Session(end).run()
    except messages.LinkClosed:
        return messages.EXIT_OK  # Nobody is left to train for.
    except Exception as error:  # Root of the process: every end must reach the daemon as a reason.
        return tell_failure(error, end)
    finally:
        end.close()
    return messages.EXIT_OK


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    # Worker threads of the libraries can make an orderly exit hang; nothing here is left to save.
    os._exit(code)
