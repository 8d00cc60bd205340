"""Recorded swarms, made to order: what daemons would have told while this and that went wrong."""

from __future__ import annotations

import contextlib
import math
from pathlib import Path

from protocol.status import (
    DeviceRow,
    GuestStatus,
    LimitRow,
    MergeRow,
    NetworkStatus,
    NodeStatus,
    PeerRow,
    ProjectStatus,
    RoundRow,
    SeatStatus,
    SwarmStatus,
    SyncerStatus,
    VoterRow,
    WitnessStatus,
)
from tui.frames.frame import Attached, Frame, Told
from tui.sources.recording import RecordingWriter

START_S = 1_790_000_000.0
NAMES = ("avocet", "curlew", "dunlin", "heron", "kestrel", "osprey", "plover", "wren")
FRAGMENTS = 24
STEP_S = 1.4
"""Seconds between global steps."""

TOKENS_PER_STEP = 330_000
BUDGET = 2_000_000_000
SYNCER, LEARNER = "syncer default", "learner heron"

PROJECT = ProjectStatus(
    id="4f2a" + "0" * 57 + "91c",
    name="python-stdlib-8m",
    fragments=FRAGMENTS,
    parameters=8_245_760,
    token_budget=BUDGET,
    local_steps=16,
    quorum=5,
)
NETWORK = NetworkStatus(
    state="up",
    addresses=["/ip4/203.0.113.7/tcp/4777"],
    peers=8,
    bytes_up=812_000_000,
    bytes_down=790_000_000,
)


def key(name: str) -> str:
    """A key that looks like one."""
    return (name.encode().hex() * 8)[:64]


def swarm(step: int) -> SwarmStatus:
    """The committed state after so many global steps."""
    curve = [
        (at, at * TOKENS_PER_STEP, 1.42 + 4.1 * math.exp(-at / 700)) for at in range(0, step, 60)
    ]
    return SwarmStatus(
        log_index=step * 3,
        term=7,
        leader=key("syncer"),
        global_step=step,
        tokens=step * TOKENS_PER_STEP,
        progress=step * TOKENS_PER_STEP / BUDGET,
        curve=curve,
        best_checkpoint=curve[-1][0] if curve else None,
        best_loss=curve[-1][2] if curve else None,
        best_global_step=curve[-1][0] if curve else None,
    )


def peer(number: int, step: int, **changes: object) -> PeerRow:
    """A learner of the healthy swarm."""
    name = NAMES[number] if number < len(NAMES) else f"gull-{number:04d}"
    speed = 52_000.0 + 1_300 * (number % 7) - 300 * (step % 3)
    row = PeerRow(
        key=key(name),
        name=name,
        device="NVIDIA H200" if number % 3 else "cpu, 16 threads",
        state="training",
        heard_s=0.1 + number % 10 / 10,
        local_step=step * 2 + number,
        step_s=8_192 / speed,
        tokens=(step * 2 + number) * 8_192,
        tokens_per_s=speed,
        loss=1.5 + 3.9 * math.exp(-step / 700) + number % 5 / 100,
        lag=int(number % 4 == 3),
        merges=step * 7 // 8 - number * 13,
        goodput=0.985 - number % 9 / 200,
        refused={"late": 2, "stale": 1} if number % 6 == 5 else {},
    )
    for field, value in changes.items():
        setattr(row, field, value)
    return row


def syncer(step: int, peers: list[PeerRow], **changes: object) -> SyncerStatus:
    """A syncer of the healthy swarm."""
    training = sum(one.state == "training" for one in peers)
    status = SyncerStatus(
        key=key("syncer"),
        name="default",
        pid=4242,
        version="0.1.0",
        uptime_s=3600.0 + step * STEP_S,
        phase="training",
        sentence=f"All is well. {training} learners training.",
        join_link="shoal:" + "x" * 300,
        project=PROJECT,
        swarm=swarm(step),
        network=NETWORK,
        peers=peers,
        rounds=[
            RoundRow(
                number=step + 1,
                fragment=(step + 1) % FRAGMENTS,
                state="grace",
                arrived=min(training, 6),
                asked=len(peers),
                quorum=PROJECT.quorum,
                age_s=0.4,
                waiting_for=["kestrel"],
            )
        ],
        merges=[
            MergeRow(
                global_step=at,
                fragment=at % FRAGMENTS,
                participants=7 if at % 5 else 6,
                mean_steps=15.6,
                seconds=0.04,
            )
            for at in range(max(step - 30, 1), step + 1)
        ],
        merges_here=step,
        participants_mean=6.9,
        effective_h=15.7,
        grace_s=0.38,
        slack_s=0.82,
        outcomes={"merged": step * 7, "late": step // 40, "clipped": step // 90},
        fragments=[(step - i) // FRAGMENTS + 1 for i in range(FRAGMENTS)],
        push_bytes=step * 7 * 190_000,
        push_params=step * 7 * 343_000,
        payload_bytes=step * 180_000,
        payload_params=step * 343_000,
        checkpoint_dir="/home/volunteer/.local/share/shoal/projects/4f2a/syncer-default/checkpoints",
    )
    for field, value in changes.items():
        setattr(status, field, value)
    return status


def learner(step: int, **changes: object) -> NodeStatus:
    """The learner heron of this machine."""
    row = peer(NAMES.index("heron"), step)
    status = NodeStatus(
        key=key("heron"),
        name="heron",
        pid=4343,
        version="0.1.0",
        uptime_s=3000.0 + step * STEP_S,
        state="training",
        sentence="Training.",
        link="following",
        link_detail="",
        heard_s=0.2,
        trainer="stepping",
        trainer_detail="",
        trainer_pid=4344,
        device="NVIDIA H200",
        micro_batch=32,
        project=PROJECT,
        swarm=swarm(step),
        network=NETWORK,
        local_step=row.local_step,
        tokens=row.tokens,
        tokens_per_s=row.tokens_per_s,
        step_s=row.step_s,
        loss=row.loss,
        goodput=row.goodput,
        pushed=row.merges + 3,
        merged=row.merges,
        outcomes={"merged": row.merges, "late": 3},
        versions=[(step - i) // FRAGMENTS + 1 for i in range(FRAGMENTS)],
        weights_from_peers=20,
        weights_from_syncer=4,
        weights_held=FRAGMENTS,
        evaluations=12,
        push_bytes=190_000 * 900,
        push_params=343_000 * 900,
        payload_bytes=180_000 * 990,
        payload_params=343_000 * 990,
    )
    for field, value in changes.items():
        setattr(status, field, value)
    return status


def guest(**changes: object) -> GuestStatus:
    """A machine with an accelerator, ceilings, and a trainer that wrote something."""
    status = GuestStatus(
        devices=[
            DeviceRow(
                name="cpu",
                model="16 cores",
                temperature_c=61.0,
                busy_frac=0.07,
                memory_used_bytes=9_000_000_000,
                memory_bytes=64_000_000_000,
            ),
            DeviceRow(
                name="cuda:0",
                model="NVIDIA H200",
                mode="idle",
                is_used=True,
                temperature_c=71.4,
                busy_frac=0.98,
                memory_used_bytes=31_000_000_000,
                memory_bytes=141_000_000_000,
            ),
        ],
        limits=[
            LimitRow(key="limits.cpu_percent", words="processor", unit="percent",
                     ceiling=100.0, used=9.0),
            LimitRow(key="limits.ram_bytes_max", words="memory", unit="bytes",
                     ceiling=8e9, used=7.5e9),
            LimitRow(key="when.temperature_c_max", words="heat", unit="celsius",
                     ceiling=70.0, used=71.4),
            LimitRow(key="limits.up_bytes_per_s", words="sending", unit="bytes/s",
                     ceiling=1e6, used=2.5e5),
        ],
        hours=["mon-fri 22:00-07:00", "sat sun"],
        absent=["battery: there is none"],
        trainer_log=["12:00:01  ready on cuda:0 after 4.1 s, micro-batch 32"],
    )  # fmt: skip
    for field, value in changes.items():
        setattr(status, field, value)
    return status


def told(number: int, at_s: float, kind: str, text: str, **changes: object) -> Told:
    """An event of the syncer."""
    event = Told(number=number, at_s=at_s, level="info", kind=kind, text=text, daemon=SYNCER)
    for field, value in changes.items():
        setattr(event, field, value)
    return event


def attached(at_s: float, *, is_syncer_up: bool = True, up_s: float = 0.0) -> tuple[Attached, ...]:
    """Syncer and learner of one machine; up_s: when the syncer answered last, if it is down."""
    trouble = "" if is_syncer_up else "No daemon answers at /home/v/run/syncer-default.sock."
    return (
        Attached(
            label=SYNCER,
            key=key("syncer"),
            since_s=START_S,
            answered_s=at_s if is_syncer_up else up_s,
            trouble=trouble,
        ),
        Attached(label=LEARNER, key=key("heron"), since_s=START_S, answered_s=at_s),
    )


def committed(number: int, at_s: float, step: int) -> Told:
    """A merge, as it is told."""
    text = f"fragment {step % FRAGMENTS} is version {step // FRAGMENTS + 1}: 7 merged in 38 ms"
    return told(number, at_s, "FragmentCommitted", text)


def frame(second: int, **changes: object) -> Frame:
    """A second of the healthy swarm."""
    at_s = START_S + second
    step = 900 + int(second / STEP_S)
    made = Frame(
        at_s=at_s,
        statuses=(syncer(step, [peer(i, step) for i in range(8)]), learner(step)),
        events=(committed(second + 1, at_s, step),),
        daemons=attached(at_s),
    )
    for field, value in changes.items():
        setattr(made, field, value)
    return made


def healthy(seconds: int = 90) -> list[Frame]:
    """Eight learners train, all is well."""
    return [frame(second) for second in range(seconds)]


def learner_killed(seconds: int = 60, killed: int = 20) -> list[Frame]:
    """osprey dies without a word: silent after 15 s, gone after 30 s."""
    frames = healthy(seconds)
    for second in range(killed, seconds):
        silent_s = float(second - killed)
        status = frames[second].statuses[0]
        assert isinstance(status, SyncerStatus)
        row = status.peers[5]
        row.heard_s = silent_s
        row.state = "training" if silent_s < 15 else "silent" if silent_s < 30 else "gone"
        status.rounds[0].waiting_for = ["osprey"] if silent_s < 30 else []
        if silent_s == 30:
            frames[second].events += (
                told(900, START_S + second, "SessionClosed", "osprey (6f73) left: heartbeat lost",
                     is_fault=True),
            )  # fmt: skip
        if silent_s >= 30:
            status.sentence = "All is well. 7 learners training. Gone: osprey."
    return frames


def leader_silent(seconds: int = 40, killed: int = 10) -> list[Frame]:
    """The syncer's process is killed; the learner on the same machine trains on without it."""
    frames = healthy(seconds)
    last = frames[killed - 1].statuses[0]
    for second in range(killed, seconds):
        at_s = START_S + second
        silent_s = second - killed + 1
        node = learner(
            900 + int(killed / STEP_S),
            state="adrift",
            link="waiting",
            link_detail="no leader is known",
            heard_s=float(silent_s),
            sentence="Training without a syncer: waiting (no leader is known). "
            "Local steps continue; nothing is lost.",
        )
        frames[second] = Frame(
            at_s=at_s,
            statuses=(last, node),
            daemons=attached(at_s, is_syncer_up=False, up_s=START_S + killed - 1),
        )
    return frames


def quorum_short(seconds: int = 60) -> list[Frame]:
    """Only three of the five learners that a round needs are there; nothing merges."""
    frames = []
    for second in range(seconds):
        peers = [peer(i, 900) for i in range(3)]
        peers += [peer(i, 900, state="gone", heard_s=40.0 + second) for i in range(3, 6)]
        waiting = RoundRow(
            number=901, fragment=13, state="open", arrived=2, asked=3, quorum=5,
            age_s=float(second), waiting_for=["curlew", "dunlin"],
        )  # fmt: skip
        status = syncer(
            900, peers, rounds=[waiting],
            sentence="All is well. 3 learners training. Gone: heron, kestrel, osprey. "
            "Waiting: 3 of 5 learners ready.",
        )  # fmt: skip
        frames.append(Frame(at_s=START_S + second, statuses=(status,)))
    return frames


def ended(seconds: int = 5) -> list[Frame]:
    """The run is complete."""
    step = BUDGET // TOKENS_PER_STEP + 1
    frames = []
    for second in range(seconds):
        status = syncer(
            step, [peer(i, step, state="ended") for i in range(8)], phase="ended", rounds=[],
            sentence=f"The run is complete: {step:,} global steps, best held-out loss 1.4208.",
        )  # fmt: skip
        status.swarm.is_ended = True
        frames.append(Frame(at_s=START_S + second, statuses=(status,)))
    return frames


def thousand(seconds: int = 5, count: int = 1000) -> list[Frame]:
    """A thousand learners."""
    frames = []
    for second in range(seconds):
        step = 900 + second
        peers = [peer(i, step, local_step=step * 2 + (i * 7 + second) % 50) for i in range(count)]
        frames.append(Frame(at_s=START_S + second, statuses=(syncer(step, peers),)))
    return frames


def daemon_gone(seconds: int = 5) -> list[Frame]:
    """Nobody runs here, or the one that should does not answer."""
    return [
        Frame(at_s=START_S + second, trouble="No daemon runs on this machine yet; still looking.")
        for second in range(seconds)
    ]


SECOND, WITNESS = "reserve", "scales"
STANDBY_LABEL, WITNESS_LABEL = "syncer reserve", "witness scales"


def seat(leader: str, me: str, **changes: object) -> SeatStatus:
    """Three voters, as `me` sees them; everybody is here unless said otherwise."""
    leads = leader == me
    voters = [
        VoterRow(
            key=key(name),
            role=role,
            priority=priority,
            is_self=name == me,
            is_leader=name == leader,
            is_here=True,
            heard_s=0.0 if name == me else 0.4,
            lag=0 if leads else None,
        )
        for name, role, priority in (
            ("syncer", "syncer", 10), (SECOND, "syncer", 5), (WITNESS, "witness", 0)
        )
    ]  # fmt: skip
    made = SeatStatus(
        role="leading" if leads else "following",
        epoch=0,
        term=7,
        leader=key(leader) if leader else "",
        leader_heard_s=(0.0 if leads else 0.4) if leader else None,
        beat_in_s=0.6 if leads else None,
        election_in_s=None if leads or me == WITNESS else 3.1,
        durability="standby",
        standbys=int(leads),
        charter_revision=3,
        newest_charter_revision=3,
        voters=voters,
    )
    for field, value in changes.items():
        setattr(made, field, value)
    return made


def leading(second: int = 0, **changes: object) -> SyncerStatus:
    """The elected syncer with eight learners."""
    step = 900 + int(second / STEP_S)
    status = syncer(step, [peer(i, step) for i in range(8)], seat=seat("syncer", "syncer"))
    for field, value in changes.items():
        setattr(status, field, value)
    return status


def standing_by(seat: SeatStatus, sentence: str, **changes: object) -> SyncerStatus:
    """The second syncer, which does not lead."""
    status = syncer(
        900, [], key=key(SECOND), name=SECOND, phase="standby", sentence=sentence, rounds=[],
        merges=[], merges_here=0, outcomes={}, push_bytes=0, push_params=0, seat=seat,
    )  # fmt: skip
    for field, value in changes.items():
        setattr(status, field, value)
    return status


def witness(seat: SeatStatus, sentence: str) -> WitnessStatus:
    """A host that only votes."""
    return WitnessStatus(
        key=key(WITNESS), name=WITNESS, pid=4545, version="0.1.0", uptime_s=7200.0,
        sentence=sentence, project=PROJECT, seat=seat, log_index=2_700, stored_from=1_201,
        network=NETWORK,
    )  # fmt: skip


def voters_away(seconds: int = 30) -> list[Frame]:
    """The witness cannot be reached and the standby is turned away; the leader leads on."""
    frames = []
    for second in range(seconds):
        now = seat("syncer", "syncer", standbys=0, newest_charter_revision=4)
        now.voters[1].trouble = "its disk was not admitted: the log does not know it"
        now.voters[1].lag = 1_204
        now.voters[2].is_here, now.voters[2].heard_s = False, 12.0 + second
        now.voters[2].lag = None
        sentence = f"All is well. 8 learners training. Not here: witness {key(WITNESS)[:8]}."
        status = leading(second, sentence=sentence, seat=now)
        frames.append(Frame(at_s=START_S + second, statuses=(status,)))
    return frames


def standby(seconds: int = 5) -> list[Frame]:
    """A syncer that stands by for a leader elsewhere."""
    said = f"Standing by for {key('syncer')[:8]}, heard 0 s ago."
    return [
        Frame(at_s=START_S + second, statuses=(standing_by(seat("syncer", SECOND), said),))
        for second in range(seconds)
    ]


def election(seconds: int = 40, lost: int = 5) -> list[Frame]:
    """The leader's machine is lost and with it the majority: nobody can be elected."""
    frames = standby(lost)
    for second in range(lost, seconds):
        away_s = float(second - lost)
        now = seat("syncer" if away_s < 3 else "", SECOND)
        now.voters[0].is_here, now.voters[0].heard_s = False, away_s
        now.voters[0].is_leader = away_s < 3
        now.leader_heard_s = away_s if away_s < 3 else None
        now.leaderless_s = None if away_s < 3 else away_s
        now.election_in_s = max(4.0 - away_s, 0.0) if away_s < 4 else 1.5 - away_s % 1.5
        phase = "standby" if away_s < 3 else "electing"
        said = f"Standing by for {key('syncer')[:8]}, heard {away_s:.0f} s ago."
        if away_s >= 3:
            now.role = "asking whether it would be elected"
            said = f"No leader: not here: {key('syncer')[:8]}."
        if second >= 20:
            now.voters[2].is_here = False
            now.voters[2].heard_s = float(second - 20)
            said = f"No leader: not here: {key('syncer')[:8]}, {key(WITNESS)[:8]}."
        status = standing_by(now, said, phase=phase)
        frames.append(Frame(at_s=START_S + second, statuses=(status,)))
    return frames


def two_here(seconds: int = 5) -> list[Frame]:
    """Leader, standby and witness on one machine."""
    frames = []
    said = f"Standing by for {key('syncer')[:8]}, heard 0 s ago."
    votes = f"All is well. Voting with {key('syncer')[:8]}, heard 0 s ago."
    for second in range(seconds):
        at_s = START_S + second
        names = (("syncer", SYNCER), (SECOND, STANDBY_LABEL), (WITNESS, WITNESS_LABEL))
        frames.append(
            Frame(
                at_s=at_s,
                statuses=(
                    leading(second),
                    standing_by(seat("syncer", SECOND), said),
                    witness(seat("syncer", WITNESS), votes),
                ),
                daemons=tuple(
                    Attached(label=label, key=key(name), since_s=START_S, answered_s=at_s)
                    for name, label in names
                ),
            )
        )
    return frames


def witness_alone(seconds: int = 5) -> list[Frame]:
    """Only a witness runs here."""
    votes = f"All is well. Voting with {key('syncer')[:8]}, heard 0 s ago."
    return [
        Frame(at_s=START_S + second, statuses=(witness(seat("syncer", WITNESS), votes),))
        for second in range(seconds)
    ]


def left(seconds: int = 5) -> list[Frame]:
    """kestrel and wren left on purpose; osprey is reached through a relay."""
    frames = []
    for second in range(seconds):
        status = leading(second, sentence="All is well. 6 learners training.")
        for row in status.peers:
            row.path, row.rtt_s = "direct", 0.004 + len(row.name) / 300
            row.bulk = "direct"
        status.peers[5].path, status.peers[5].rtt_s = "relayed", 0.182
        status.peers[5].bulk = "streams"
        status.peers[5].bulk_detail = "it is reachable only through a relay"
        for place, why in ((4, "stopped by its owner"), (7, "finished")):
            row = status.peers[place]
            row.state, row.left, row.heard_s = "left", why, 40.0 + second
            row.path, row.rtt_s = "", None
        frames.append(Frame(at_s=START_S + second, statuses=(status,)))
    return frames


PROBED = ((31, 2.2), (28, 1.9), (30, 2.4), (6, 1.1), (2, 1.6))
"""Of the five learners beside a liar: probes, and their mean contrast."""


def copier() -> list[Frame]:
    """The one that points elsewhere only copies, and was found out."""
    made = liar()
    for one in made:
        status = one.statuses[0]
        assert isinstance(status, SyncerStatus)
        found = status.peers[3]
        found.direction, found.probes, found.contrast, found.evidence = 0.3, 24, 0.1, -11.2
        found.standing, found.share = "suspended", 0.0
        found.suspended = (
            "3 of 4 learners that probed its pushes found that they do no more for the text that "
            "it was leased than for other text, on average by +0.1 standard errors in 24 probes"
        )
        said = f"{found.name} ({found.key[:8]})"
        status.sentence = f"Suspended: {said}, because {found.suspended}. 4 learners training."
    return made


def liar() -> list[Frame]:
    """Four established learners, one of which points elsewhere, and a fifth that is new."""
    trusts = ((0.34, 0.31), (0.33, 0.28), (0.24, 0.19), (0.0, -0.27), (0.09, 0.24))
    made = []
    for second in range(5):
        one = frame(second)
        status = one.statuses[0]
        assert isinstance(status, SyncerStatus)
        step = status.swarm.global_step
        peers = [peer(at, step, share=share, direction=d) for at, (share, d) in enumerate(trusts)]
        peers[3].trust, peers[3].doubted, peers[3].clipped = 0.0, 41, 44
        peers[4].is_new, peers[4].merges = True, 3
        for shown, (probes, contrast) in zip(peers, PROBED, strict=True):
            shown.probes, shown.contrast, shown.evidence = probes, contrast, 0.0
            shown.standing = "established"
        peers[3].standing, peers[4].standing = "doubted", "new"
        said = f"{peers[3].name} ({peers[3].key[:8]})"
        status.peers = peers
        status.sentence = (
            f"Not counted, because their pushes point elsewhere: {said}. 5 learners training."
        )
        made.append(one)
    return made


RECORDINGS = {
    "healthy": healthy,
    "leader-silent": leader_silent,
    "learner-killed": learner_killed,
    "quorum-short": quorum_short,
    "ended": ended,
    "thousand": thousand,
    "daemon-gone": daemon_gone,
    "voters-away": voters_away,
    "standby": standby,
    "election": election,
    "two-here": two_here,
    "witness-alone": witness_alone,
    "left": left,
    "liar": liar,
    "copier": copier,
}


def write(path: Path, frames: list[Frame]) -> Path:
    """The frames as a recording."""
    with contextlib.closing(RecordingWriter(path)) as writer:
        for one in frames:
            writer.write(one)
    return path
