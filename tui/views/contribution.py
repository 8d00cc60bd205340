"""View 7: who brought the swarm how far, and this machine's part in it."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
from rich.text import Text

from protocol.status import ContributorRow, PeerRow, SyncerStatus
from tui.frames.scene import Scene
from tui.text import fmt, layout
from tui.text.paint import Paint
from tui.views import peers
from tui.views.peers import PeerLine
from tui.views.roster import Column

BAR_CELLS = 20


class Place(NamedTuple):
    """A learner's place among all, by merged pushes."""

    number: int
    line: PeerLine
    is_you: bool
    percent: int
    """Of all merged pushes; all places together come to 100, or to what the named ones gave."""


def places(scene: Scene) -> list[Place]:
    """All contributors, also those who left, the one with most merges first."""
    if scene.leader is None:
        return []
    you = scene.node.key if scene.node is not None else ""
    ordered = sorted(
        _contributors(scene, scene.leader),
        key=lambda one: (-one.peer.merges, -one.peer.tokens, one.peer.key),
    )
    whole = max((one.merges_all for one in ordered), default=0)
    shares = fmt.percents([one.peer.merges for one in ordered], whole)
    return [
        Place(number, line, line.peer.key == you, share)
        for number, (line, share) in enumerate(zip(ordered, shares, strict=True), 1)
    ]


def _contributors(scene: Scene, leader: SyncerStatus) -> list[PeerLine]:
    """Learners as the log counts them; where only sessions are told, those."""
    here = {line.peer.key: line for line in peers.peer_lines(scene)}
    if not leader.contributors:
        return list(here.values())
    merges_all = leader.contributor_merges
    age_s = scene.silent_s(leader)
    found = [
        PeerLine(_counted(row, here.get(row.key)), merges_all, age_s) for row in leader.contributors
    ]
    known = {row.key for row in leader.contributors}
    others = (line for key, line in here.items() if key not in known)
    return found + [PeerLine(_uncounted(line.peer), merges_all, age_s) for line in others]


def _uncounted(peer: PeerRow) -> PeerRow:
    """A learner of which the log counts nothing yet, whatever it trained."""
    return msgspec.structs.replace(peer, merges=0, tokens=0)


def _counted(row: ContributorRow, line: PeerLine | None) -> PeerRow:
    """A learner with the log's counts, whether it is here or left long ago."""
    if line is None:
        line_peer = PeerRow(key=row.key, name=row.name, device="", state="left", heard_s=0.0)
    else:
        line_peer = line.peer
    return msgspec.structs.replace(
        line_peer, name=row.name, merges=row.merges, tokens=row.tokens, refused=row.refused
    )


def key_of(place: Place) -> str:
    return place.line.peer.key


def summary(scene: Scene, width: int, height: int) -> list[Text]:
    """This machine's part in words."""
    paint, node = scene.paint, scene.node
    status = scene.leader or scene.status
    if status is None:
        return [Text("No daemon has answered yet.", style=paint.quiet)]
    total = (
        f"{fmt.count(status.swarm.tokens)} tokens committed in "
        f"{fmt.plural(status.swarm.global_step, 'global step')}{_by(scene.leader)}"
    )
    stale = scene.stale(status)
    rows: list[layout.Pair] = [("swarm", total)]
    if node is None:
        rows.append(("you", "No learner of this project runs on this machine."))
    else:
        mine = f"{node.name}: {node.merged:,} of {fmt.plural(node.pushed, 'push', 'pushes')} "
        mine += f"merged, {fmt.count(node.tokens)} tokens trained so far"
        rows.append(("you", fmt.clean(mine, 200)))
        rows.append(("your share", _share(scene, node.key)))
        rows.append(("receipt", fmt.receipt(node.receipt)))
    body = layout.pairs(rows, width, paint, label=12)
    return ([Text(stale, style=paint.bad)] if stale else []) + body


def _by(leader: SyncerStatus | None) -> str:
    """How many gave that, where a syncer says."""
    if leader is None or not leader.contributors_all:
        return ""
    return f" by {fmt.plural(leader.contributors_all, 'contributor')}"


def details(scene: Scene, key: str, width: int) -> list[Text]:
    """Everything that the log says of one contributor."""
    leader = scene.leader
    found = leader.contributors if leader is not None else []
    row = next((one for one in found if one.key == key), None)
    if row is None:
        return [Text("The log has nothing from this learner yet.")]
    place = next(one for one in places(scene) if key_of(one) == key)
    refused, paint = fmt.tally(row.refused), scene.paint
    return layout.pairs(
        [
            ("name", fmt.clean(row.name)),
            ("key", fmt.clean(row.key, 80)),
            ("here", "yes" if row.is_here else "no"),
            ("place", f"{place.number}, with {place.percent} % of all merges"),
            ("tokens", f"{row.tokens:,} read and merged"),
            ("merges", f"{row.merges:,}, {row.clipped:,} of them clipped to the group"),
            ("newest", fmt.date(row.merged_at_s) if row.merged_at_s else ""),
            ("not counted", Text(refused or "nothing", style=paint.warn if refused else "")),
        ],
        width,
        paint,
        label=12,
    )


def _share(scene: Scene, key: str) -> str:
    every = places(scene)
    own = next((one for one in every if key_of(one) == key), None)
    if own is None:
        return "not known: only the syncer counts all merges, and none is attached here"
    return f"{own.percent} % of all merged pushes, place {own.number} of {len(every)}"


def _name(place: Place) -> str:
    name = fmt.clean(place.line.peer.name)
    return f"{name} (you)" if place.is_you else name


def _bar(place: Place) -> str:
    return fmt.bar(place.line.share, BAR_CELLS)


def _you_style(place: Place, paint: Paint) -> str:
    return paint.accent if place.is_you else ""


COLUMNS: tuple[Column[Place], ...] = (
    Column(
        key="place", title="#", width=4, importance=90, is_right=True,
        say=lambda one: str(one.number), rank=lambda one: one.number,
    ),
    Column(
        key="name", title="learner", width=16, importance=100, is_flexible=True, style=_you_style,
        say=_name, rank=lambda one: one.line.peer.name.casefold(),
    ),
    Column(
        key="merges", title="merges", width=8, importance=95, is_right=True, is_falling=True,
        say=lambda one: f"{one.line.peer.merges:,}", rank=lambda one: one.line.peer.merges,
    ),
    Column(
        key="share", title="share", width=6, importance=94, is_right=True, is_falling=True,
        say=lambda one: f"{one.percent} %", rank=lambda one: one.line.share,
    ),
    Column(
        key="bar", title="of all merged pushes", width=BAR_CELLS, importance=30,
        say=_bar, style=lambda one, paint: paint.chart,
    ),
    Column(
        key="tokens", title="tokens", width=8, importance=80, is_right=True, is_falling=True,
        say=lambda one: fmt.count(one.line.peer.tokens), rank=lambda one: one.line.peer.tokens,
    ),
    Column(
        key="goodput", title="goodput", width=8, importance=40, is_right=True, is_falling=True,
        say=lambda one: (
            "–" if one.line.peer.goodput is None else fmt.percent(one.line.peer.goodput)
        ),
        rank=lambda one: one.line.peer.goodput or 0.0,
    ),
    Column(
        key="refused", title="refused", width=8, importance=50, is_right=True, is_falling=True,
        say=lambda one: str(one.line.refused), rank=lambda one: one.line.refused,
    ),
)  # fmt: skip
