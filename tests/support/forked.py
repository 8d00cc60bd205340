"""A program that a test starts to see what it is given, by a word and what belongs to it."""

from __future__ import annotations

import os
import signal
import sys


def main() -> int:
    word, *rest = sys.argv[1:]
    if word == "tell":
        pid, session = os.getpid(), os.getsid(0)
        print(rest, os.environ.get("WORD"), os.getcwd(), pid == session, sep="|")
    elif word == "write":
        os.write(int(rest[0]), b"through the descriptor")
    elif word == "leave":
        raise SystemExit(int(rest[0]))
    elif word == "fail":
        raise RuntimeError("on purpose")
    elif word == "stay":
        print("staying", flush=True)
        signal.pause()
    elif word == "is-forked":
        print("tests.support.imported_once" in sys.modules)
    return 0


if __name__ == "__main__":
    sys.exit(main())
