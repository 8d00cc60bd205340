"""What a daemon writes: lines for people on the terminal, everything as JSON in a rotated file."""

from __future__ import annotations

import json
import logging
import logging.handlers
import sys
import time
from pathlib import Path

from protocol import trace
from protocol.trace import Fact

FILE_BYTES_MAX = 8 << 20
FILES_KEPT = 3

LOUD = (
    trace.SessionOpened,
    trace.SessionClosed,
    trace.SessionRefused,
    trace.LinkChanged,
    trace.WeightsReady,
    trace.TrainerChanged,
    trace.MomentsTaken,
    trace.CheckpointScored,
    trace.PhaseChanged,
)
"""Facts that belong on a terminal; all others only go to the file."""

facts = logging.getLogger("shoal.facts")


class _JsonLines(logging.Formatter):
    """One JSON object a line: time, level, logger, text."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "at": round(record.created, 3),
            "level": record.levelname.lower(),
            "from": record.name.removeprefix("shoal."),
            "text": record.getMessage(),
        }
        fact = getattr(record, "fact", None)
        if fact is not None:
            line["fact"] = fact
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


class _HumanLines(logging.Formatter):
    """`12:34:56  text`, with the level in front only when it is not ordinary."""

    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        level = "" if record.levelno <= logging.INFO else f"{record.levelname.lower()}: "
        text = f"{clock}  {level}{record.getMessage()}"
        if record.exc_info:
            text += f"\n{self.formatException(record.exc_info)}"
        return text


def set_up(path: Path, *, is_json: bool) -> None:
    """Send Shoal's log to the terminal and to a rotated file; silence foreign chatter."""
    shoal = logging.getLogger("shoal")
    shoal.setLevel(logging.DEBUG)
    shoal.propagate = False
    for old in list(shoal.handlers):
        shoal.removeHandler(old)
        old.close()
    kept = logging.handlers.RotatingFileHandler(
        path, maxBytes=FILE_BYTES_MAX, backupCount=FILES_KEPT, encoding="utf-8"
    )
    kept.setFormatter(_JsonLines())
    shoal.addHandler(kept)
    screen = logging.StreamHandler(sys.stderr)
    screen.setLevel(logging.INFO)
    screen.setFormatter(_JsonLines() if is_json else _HumanLines())
    shoal.addHandler(screen)
    logging.getLogger("hivemind").setLevel(logging.CRITICAL)


def tell(fact: Fact) -> None:
    """Log a fact at the level it deserves."""
    if isinstance(fact, trace.PeerMisbehaved | trace.TapeStopped):
        level = logging.WARNING
    else:
        level = logging.INFO if isinstance(fact, LOUD) else logging.DEBUG
    if facts.isEnabledFor(level):
        facts.log(level, "%s", fact.text, extra={"fact": type(fact).__name__})
