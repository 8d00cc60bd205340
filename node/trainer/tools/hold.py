"""Puts a project's frozen base model into the home's cache, from a folder of this machine:
`python -m node.trainer.tools.hold GENESIS CACHE --from FOLDER`.

A process of its own, so that the daemon that wants it never imports torch. Exit code 0, or 2 with
one line on stderr if the user can fix it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from host.files.held_base import HeldBase
from host.files.pinned_files import PinnedFiles
from node.trainer.files import read_document
from node.trainer.main import be_quiet
from protocol.errors import UserError
from protocol.project import Genesis


def hold(genesis: Genesis, folder: Path | None, cache: Path) -> None:
    """The frozen base is whole in `cache`, and the tokenizer's files that lie beside it.

    folder: where the base model is, if somebody said so. UserError if it is nowhere, or another.
    """
    held = HeldBase(cache, genesis)
    if not held.missing():
        return
    from node.trainer.base_model import frozen_values
    from node.trainer.base_source import find_base

    found = find_base(held.source, folder)
    PinnedFiles(cache, genesis.tokenizer).take_from(found)
    held.keep_all(memoryview(frozen_values(genesis, found)))


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="node.trainer.tools.hold", description=__doc__)
    parser.add_argument("genesis", type=Path, help="genesis bytes")
    parser.add_argument("cache", type=Path, help="the home's")
    parser.add_argument("--from", type=Path, dest="base", help="folder of the base model")
    given = parser.parse_args(arguments)
    be_quiet()
    try:
        hold(read_document(given.genesis, Genesis), given.base, given.cache)
    except UserError as error:
        print(error, file=sys.stderr)
        return UserError.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
