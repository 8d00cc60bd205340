"""Makes version 0 of a project's weights: `python -m node.trainer.tools.initialise GENESIS OUT`.

They are drawn from the project's seed, or taken from its base model (`--from FOLDER`).

A process of its own, so that the syncer daemon that needs the weights once never imports torch.
Exit code 0, or 2 with one line on stderr if the user can fix it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from host.files.pinned_files import PinnedFiles
from host.runtime import garbage
from node.trainer.files import read_document, write_fragments
from node.trainer.main import be_quiet
from protocol.errors import UserError
from protocol.project import Genesis


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="node.trainer.tools.initialise", description=__doc__)
    parser.add_argument("genesis", type=Path, help="genesis bytes")
    parser.add_argument("out", type=Path, help="safetensors file to write")
    parser.add_argument("--from", type=Path, dest="base", help="folder of the base model")
    parser.add_argument("--cache", type=Path, help="the home's; gets the base model's tokenizer")
    given = parser.parse_args(arguments)
    be_quiet()
    try:
        with garbage.seldom_sought():
            _make(given)
    except UserError as error:
        print(error, file=sys.stderr)
        return UserError.exit_code
    return 0


def _make(given: argparse.Namespace) -> None:
    genesis = read_document(given.genesis, Genesis)
    if genesis.trainer is not None:
        from node.trainer import making
        from node.trainer.own import installed

        place, cache = installed.require(genesis.trainer), given.cache or given.out.parent
        write_fragments(making.first_weights(place, genesis, cache), given.out)
        return
    from node.trainer.base_model import first_weights
    from node.trainer.base_source import find_base
    from node.trainer.tools.hold import hold

    folder = None
    if genesis.adapter is not None:
        if given.cache is None:
            raise UserError("an adapter's project needs --cache, where its frozen base lies")
        hold(genesis, given.base, given.cache)
    elif genesis.base is not None:
        folder = find_base(genesis.base.source, given.base)
        if given.cache is not None:
            PinnedFiles(given.cache, genesis.tokenizer).take_from(folder)
    write_fragments(first_weights(genesis, folder), given.out)


if __name__ == "__main__":
    sys.exit(main())
