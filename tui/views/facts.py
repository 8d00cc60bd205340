"""Facts as one line of text each, shared by the views."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec
from rich.text import Text

from protocol.status import DaemonStatus, NodeStatus, RoundRow, Status, SyncerStatus
from tui.frames.frame import Told
from tui.frames.scene import Scene
from tui.text import election, fmt, layout, status_rows
from tui.text.election import leads
from tui.text.paint import Paint

GAUGE_CELLS = 12
MARKS = {"training": "●", "gone": "✖", "silent": "✖"}
OTHER_MARK = "◐"
SAME_S = 20.0


def round_text(one: RoundRow, paint: Paint) -> Text:
    """One round in flight: how many arrived, and whom it waits for."""
    text = Text()
    share = one.arrived / one.asked if one.asked else 0.0
    style = paint.good if one.arrived >= one.quorum else paint.warn
    text.append(fmt.bar(share, GAUGE_CELLS), style=style)
    text.append(
        f" {one.arrived:,} of {one.asked:,}, needs {one.quorum}: round {one.number:,}, "
        f"fragment {one.fragment}, {fmt.clean(one.state, 20)} {fmt.duration(one.age_s)}"
    )
    if one.waiting_for:
        text.append(f"; waiting for {fmt.enumerate_names(one.waiting_for)}")
    return text


def grace(status: SyncerStatus, paint: Paint) -> Text | str:
    """How much of the slack the grace window takes."""
    if not status.grace_s and status.slack_s is None:
        return "no window measured yet"
    if not status.slack_s:
        return f"{fmt.duration(status.grace_s)} after the quorum"
    text = Text()
    share = status.grace_s / status.slack_s
    text.append(fmt.bar(share, GAUGE_CELLS), style=paint.good if share < 1 else paint.warn)
    text.append(
        f" {fmt.duration(status.grace_s)} of {fmt.duration(status.slack_s)} slack after the quorum"
    )
    return text


def last_merge(status: SyncerStatus) -> str:
    """The newest merge in words."""
    if not status.merges:
        return "no merge yet"
    last = status.merges[-1]
    return (
        f"{fmt.plural(last.participants, 'learner')} merged into fragment {last.fragment}, "
        f"{last.mean_steps:.0f} local steps each, in {fmt.duration(last.seconds)}"
    )


def tally(status: SyncerStatus, paint: Paint) -> Text:
    """How many learners are in which state, each with a mark, a number and a word."""
    counts = Counter(peer.state for peer in status.peers)
    if not leads(status):
        return Text("the leader knows them; this syncer stands by", style=paint.quiet)
    if not counts:
        return Text("no learner has joined yet", style=paint.warn)
    text = Text()
    for state in sorted(counts, key=lambda one: (one != "training", one)):
        mark = MARKS.get(state, OTHER_MARK)
        text.append("  " if text else "")
        text.append(f"{mark}{counts[state]} {fmt.clean(state, 12)}", style=paint.state(state))
    return text


def faults(status: DaemonStatus, paint: Paint) -> Text:
    """Faults counted since the daemon started, or the word none."""
    text = fmt.tally(status.faults)
    return Text(text, style=paint.bad) if text else Text("none", style=paint.good)


def identity(status: DaemonStatus) -> list[layout.Pair]:
    """Which key and which program a daemon runs with."""
    return [
        ("key", fmt.clean(status.key, 80)),
        ("program", f"version {fmt.clean(status.version, 20)}, process {status.pid}"),
    ]


def trainer(status: NodeStatus) -> str:
    detail = f" ({fmt.clean(status.trainer_detail, 120)})" if status.trainer_detail else ""
    return f"{fmt.clean(status.trainer, 20)}{status_rows.device(status)}{detail}"


_KEY = re.compile(r"(?<![\w-])[0-9a-f]{8}(?![\w-])")
"""On its own: who chose no name is called `learner-` and its key."""
_ASIDE = re.compile(r"(?P<name>\S+) \((?P<key>[0-9a-f]{8})\)")


def named(text: str, names: Mapping[str, str]) -> str:
    """`text` with the names of learners in the place of the short keys that daemons write."""
    if not names:
        return text

    def aside(found: re.Match[str]) -> str:
        name = found["name"]
        return name if names.get(found["key"]) == name else found[0]

    return _KEY.sub(lambda found: names.get(found[0], found[0]), _ASIDE.sub(aside, text))


def names_of(scene: Scene) -> dict[str, str]:
    """What learners, and daemons of this machine, are called, by the short form of their keys."""
    found = {key[: election.KEY_CHARS]: label for key, label in scene.names.items()}
    if scene.leader is not None:
        for peer in scene.leader.peers:
            found[peer.key[: election.KEY_CHARS]] = fmt.clean(peer.name, 40)
    return found


def event_lines(events: Sequence[Told], width: int, count: int, paint: Paint) -> list[Text]:
    """The newest events, newest first, one line each."""
    if not events:
        return [Text("no events yet", style=paint.quiet)]
    made = []
    for event in reversed(events[-count:]):
        line = Text()
        line.append(f"{fmt.clock(event.at_s)} ", style=paint.quiet)
        mark = "! " if event.is_fault else ""
        line.append(mark + fmt.clean(event.text, 400), style=paint.bad if event.is_fault else "")
        made.append(layout.fit(line, width))
    return made


def event_blocks(events: Sequence[Told], width: int, rows: int, paint: Paint) -> list[Text]:
    """The newest events, newest first, each in full on as many lines as it takes."""
    if not events:
        return [Text("no events yet", style=paint.quiet)]
    made: list[Text] = []
    for event in reversed(events):
        style = paint.bad if event.is_fault else ""
        words = Text(("! " if event.is_fault else "") + fmt.clean(event.text, 400), style=style)
        block = layout.pairs([(fmt.clock(event.at_s), words)], width, paint, label=9)
        if len(made) + len(block) > rows:
            break
        made += block
    return made


def you(scene: Scene) -> Text:
    """What the learners of this machine do; one by its state, several as a tally."""
    here = scene.nodes_here
    text = Text()
    if len(here) > 1:
        text.append(f"{len(here)} learners: ")
    for number, (state, count) in enumerate(Counter(_state(scene, one) for one in here).items()):
        text.append(", " if number else "")
        text.append(f"{count} " if len(here) > 1 else "")
        text.append(fmt.clean(state, 20), style=scene.paint.state(state))
    if len(here) == 1 and here[0].guest is not None and here[0].guest.is_held:
        text.append(f" because {fmt.clean(here[0].guest.because, 80)}")
    return text


def _state(scene: Scene, node: NodeStatus) -> str:
    return node.state if scene.silent_s(node) is None else "silent"


def news_in_words(scene: Scene, count: int) -> list[Told]:
    """The newest of `news`, with names in the place of keys."""
    names = names_of(scene)
    return [
        msgspec.structs.replace(one, text=named(one.text, names)) for one in news(scene)[-count:]
    ]


def news(scene: Scene) -> list[Told]:
    """Events that say something to people: not each push of each round."""
    told: dict[str, float] = {}
    picked: list[Told] = []
    for one in scene.history.events:
        if not one.is_fault and one.level == "debug":
            continue
        # What several daemons of this machine tell of the same thing is told once.
        if one.at_s - told.get(one.text, float("-inf")) > SAME_S:
            picked.append(one)
        told[one.text] = one.at_s
    return picked


def aged(scene: Scene, status: DaemonStatus, width: int, body: Sequence[Text]) -> list[Text]:
    """The lines as they are; if they are not of now, without colour and with a warning on top."""
    warning = scene.stale(status)
    if not warning:
        return list(body)
    faded = [Text(line.plain, style=scene.paint.quiet) for line in body]
    return [*layout.wrap(Text(warning, style=scene.paint.bad), width), *faded]


def leader(scene: Scene, status: Status) -> str:
    """Who leads."""
    key = status.swarm.leader
    if isinstance(status, SyncerStatus) and status.seat is not None:
        key = status.seat.leader
        if not key:
            return "none elected"
    if key == status.key and key and status.pid:  # What is told of others names no process.
        return "this syncer"
    return election.name(key, scene.names) if key else "unknown"
