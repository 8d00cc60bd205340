"""Draws version 0 of a project's weights: `python -m node.trainer.tools.initialise GENESIS OUT`.

A process of its own, so that the syncer daemon that needs the weights once never imports torch.
Exit code 0, or 2 with one line on stderr if the user can fix it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from node.trainer.files import read_document, write_fragments
from node.trainer.main import be_quiet
from protocol.errors import UserError
from protocol.project import Genesis


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="node.trainer.tools.initialise", description=__doc__)
    parser.add_argument("genesis", type=Path, help="genesis bytes")
    parser.add_argument("out", type=Path, help="safetensors file to write")
    given = parser.parse_args(arguments)
    be_quiet()
    try:
        genesis = read_document(given.genesis, Genesis)
        from node.trainer.model import initial_weights

        write_fragments(initial_weights(genesis), given.out)
    except UserError as error:
        print(error, file=sys.stderr)
        return UserError.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
