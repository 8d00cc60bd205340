"""Fuzzing that is guided by coverage: bytes that reach new code are kept and changed further.

    python -m tests.support.guided_fuzz --seconds 60 --keep /tmp/corpus message payload-int4

tries each named decoder of `tests.support.remote_input`, or all of them, for so long. It begins
with what lies in `tests/fuzz_corpus`, with what a former run kept, and with samples of what is
sound. Bytes over which a decoder fails are written to `--found` (what they did is on stderr), and
the exit code is then 1. Needs atheris.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import atheris

if TYPE_CHECKING:
    from tests.support.remote_input import Decoder

INSTRUMENTED = ["protocol", "host", "node"]
COMPILED = [f"protocol.numerics.compiled.{name}" for name in ("kernels", "sum_kernels", "vectors")]
"""Numba reads these functions; it knows none that calls the fuzzer."""
SAMPLES = 30
BYTES_MAX = 4096
MEMORY_MIB = 4096
"""Of one process, all that was imported included."""
WAITS_S = 60
"""For one input."""


def fuzz(
    name: str, decoder: Decoder, samples: tuple[bytes, ...], keep: Path, asked: argparse.Namespace
) -> None:
    """Never returns: the fuzzer ends the process, with another code than 0 where it found one."""
    kept, start = keep / name, keep / f"{name}-start"
    for folder in (kept, start):
        folder.mkdir(parents=True, exist_ok=True)
    for number, content in enumerate(samples):
        (start / f"{number}.bin").write_bytes(content)
    known = Path(__file__).parents[1] / "fuzz_corpus" / name

    @atheris.instrument_func
    def read(content: bytes) -> None:
        if asked.plant and content[:1] == b"s" and content[1:2] == b"h" and content[2:3] == b"o":
            raise AssertionError("planted, to see that the fuzzer finds it")
        with suppress(*decoder.refusals):
            decoder.read(content)

    options = {
        "max_total_time": asked.seconds,
        "max_len": BYTES_MAX,
        "rss_limit_mb": MEMORY_MIB,
        "timeout": WAITS_S,
        "runs": asked.runs,
        "seed": 1,
        "verbosity": 0,
        "print_final_stats": 1,
        "artifact_prefix": f"{asked.found.absolute()}/{name}-",
    }
    words = [f"-{key}={value}" for key, value in options.items()]
    places = [str(kept), str(start), *([str(known)] if known.is_dir() else [])]
    atheris.Setup([name, *words, *places], read, enable_python_coverage=True)
    atheris.Fuzz()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="decoders; all by default")
    parser.add_argument("--seconds", type=int, default=10, help="for each of them")
    parser.add_argument("--runs", type=int, default=-1, help="inputs for each of them at most")
    parser.add_argument("--keep", type=Path, help="where what reaches new code is kept")
    parser.add_argument("--plant", action="store_true", help="a fault, to see that it is found")
    parser.add_argument("--found", type=Path, default=Path(), help="where failures are written")
    asked = parser.parse_args()
    with atheris.instrument_imports(include=INSTRUMENTED, exclude=COMPILED):
        from tests.support.remote_input import DECODERS, sound
    unknown = sorted(set(asked.names) - set(DECODERS))
    if unknown:
        parser.error(f"no such decoder: {', '.join(unknown)}; there are {', '.join(DECODERS)}")
    failed = []
    with tempfile.TemporaryDirectory() as scratch:
        keep = asked.keep or Path(scratch)
        for name in asked.names or DECODERS:
            samples = sound(name, SAMPLES)
            for content in samples:  # With them, all is built that is built once.
                with suppress(*DECODERS[name].refusals):
                    DECODERS[name].read(content)
            # A process each: the fuzzer ends the one that it runs in. Imports are shared.
            child = os.fork()
            if not child:
                fuzz(name, DECODERS[name], samples, keep, asked)
            _, status = os.waitpid(child, 0)
            print(f"{name}: {'sound' if status == 0 else 'FAILED'}", flush=True)
            failed += [name] if status else []
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
