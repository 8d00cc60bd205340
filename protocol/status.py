"""What a daemon tells people about itself: one value a time, served on its local control socket.

Screens, `shoal status --json` and the demo read these and nothing else. Keys are hex, times are
seconds, missing readings are None. Unlike wire messages these may gain fields at any time.
"""

from __future__ import annotations

from typing import Final, Literal

from msgspec import Struct, field

ON_ITS_WAY: Final = "not in its swarm yet"
"""How a daemon refuses every question until it is, with a colon and what keeps it."""


class ProjectStatus(Struct, kw_only=True):
    """The project a daemon works for."""

    id: str
    name: str
    fragments: int
    parameters: int
    token_budget: int
    local_steps: int
    """Configured H."""
    quorum: int
    admission: str = "open"
    """Who may take part: open, invite or list."""


class PauseStatus(Struct, kw_only=True):
    """The guard paused merging: the held-out loss was found far above the best."""

    at_s: float
    """Since when: Unix seconds."""
    global_step: int
    """Of the checkpoint that was measured."""
    loss: float
    """What was measured; 1,000,000 stands for whatever is higher or no number."""
    best_loss: float
    best_global_step: int
    best_checkpoint: int
    """Where `shoal project undo` goes back to: a log index."""
    words: str
    """All of it, as the beginning of a sentence."""
    record: str
    """Hash of the record with which it began."""
    goes_back: bool = False
    """Whether the guard is about to go back to the best checkpoint by itself."""
    outlook: str = ""
    """How it ends, in sentences."""


class RestoredStatus(Struct, kw_only=True):
    """The guard went back to the best checkpoint by itself."""

    at_s: float
    """When: Unix seconds."""
    paused_s: float
    """Since when merging was paused then: Unix seconds."""
    global_step: int
    """From where."""
    loss: float
    """What was measured; 1,000,000 stands for whatever is higher or no number."""
    best_loss: float
    best_global_step: int
    best_checkpoint: int
    """To where: a log index."""
    words: str
    """All of it, as a sentence without its end."""


class PaceStatus(Struct, kw_only=True):
    """How fast the log moves, as this daemon has seen it since it started."""

    still_s: float | None = None
    """Seconds since the last global step; None before the first."""
    gap_s: float | None = None
    """Usual seconds between two; None while not known."""
    tokens_per_s: float | None = None
    """Committed, over a window that fits the pace; None while not known."""
    left_s: tuple[float, float] | None = None
    """Seconds until the budget is reached at this rate, from and to; None while not known."""


class SwarmStatus(Struct, kw_only=True):
    """What the committed log says, as this daemon knows it."""

    log_index: int = 0
    epoch: int = 0
    term: int = 0
    leader: str = ""
    global_step: int = 0
    tokens: int = 0
    progress: float = 0.0
    curve: list[tuple[int, int, float]] = field(default_factory=list)
    """(global step, committed tokens, held-out loss), oldest first; none that are disputed."""
    best_checkpoint: int | None = None
    """Its log index."""
    best_loss: float | None = None
    best_measured: str = ""
    """Who measured the best checkpoint, as the end of a sentence."""
    best_is_agreed: bool = False
    """Whether two learners measured it and agree."""
    best_global_step: int | None = None
    disputed: str = ""
    """Who does not agree on the newest measured checkpoint, in a sentence."""
    guard: str = "off"
    """What happens once the held-out loss is far above the best: pause, restore, or off."""
    guard_above: float | None = None
    """From which held-out loss on; None while there is nothing to compare with."""
    pause: PauseStatus | None = None
    """Of the guard: present while merging is paused."""
    restored: RestoredStatus | None = None
    """The last time that the guard went back by itself."""
    owner_paused_at_s: float | None = None
    """Since when the project's owner pauses the run: Unix seconds; None while it goes on."""
    is_ending: bool = False
    is_ended: bool = False
    pace: PaceStatus | None = None
    """None from versions that did not measure it."""


class BulkRow(Struct, kw_only=True):
    """The way that bulk data takes between this host and a peer."""

    key: str
    way: str
    """direct or streams."""
    detail: str = ""
    """Why it is not direct; empty while that was not tried."""
    connections: int = 0
    bytes_up: int = 0
    """Over direct connections, since the start."""
    bytes_down: int = 0


class NetworkStatus(Struct, kw_only=True):
    """The local network engine."""

    state: str = "down"
    detail: str = ""
    addresses: list[str] = field(default_factory=list)
    peers: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    bulk_port: int = 0
    """Where direct connections are taken; 0: nowhere."""
    bulk: list[BulkRow] = field(default_factory=list)
    """Peers with which bulk data was exchanged directly, or with which that was tried."""
    reach: str = ""
    """How others reach this host: unknown, direct, relayed, or outward where they cannot."""
    reach_detail: str = ""
    """The same in a sentence, and what to do about it."""
    split: str = ""
    """What is wrong with the swarm as a whole; empty if nothing is known."""
    carrying: int = 0
    """Streams carried for others now."""
    carried_bytes: int = 0
    """What was carried for others since the start."""
    router: str = ""
    """What came of asking the router to forward a port, as a sentence; empty where nobody asked."""


class EventRow(Struct, kw_only=True):
    """One fact that a daemon told, for the event list."""

    number: int
    """Grows by one; a reader asks for what comes after the last it has."""
    at_s: float
    """Wall clock, Unix seconds."""
    level: Literal["debug", "info", "warning"]
    kind: str
    """Name of the fact, such as FragmentCommitted."""
    text: str
    is_fault: bool = False
    """Whether it belongs in the faults-only view."""


class PeerRow(Struct, kw_only=True):
    """One learner as the syncer sees it."""

    key: str
    name: str
    device: str
    state: str
    """training, starting, syncing, starved, suspended; unfit, if its trainer cannot start; left on
    purpose; silent, or gone without a word."""
    heard_s: float
    """Seconds since it was last heard."""
    local_step: int = 0
    step_s: float = 0.0
    tokens: int = 0
    tokens_per_s: float = 0.0
    loss: float | None = None
    lag: int = 0
    """Versions that its oldest fragment is behind."""
    merges: int = 0
    """That have a push of its key in them, as the log counts, whoever led."""
    goodput: float | None = None
    """Seconds in local steps over seconds alive, less start-up and evaluation."""
    refused: dict[str, int] = field(default_factory=dict)
    """Pushes and messages that did not count, by reason."""
    left: str = ""
    """Why it left, in its own words, if it left on purpose."""
    path: str = ""
    """How it is reached: direct or relayed; empty where that is not known."""
    rtt_s: float | None = None
    """Shortest of its latest answers, from question to first byte."""
    bulk: str = ""
    """The way of bulk data: direct or streams; empty where none was large enough to choose."""
    bulk_detail: str = ""
    """Why it is not direct."""
    trust: float = 1.0
    """How far its pushes count, from 0 to 1."""
    direction: float | None = None
    """Mean of their cosines to where the others point; None where nothing was compared."""
    doubted: int = 0
    """Merges in which a push of its key did not count in full."""
    is_new: bool = False
    """Beside enough established learners its pushes add little, and make no quorum."""
    share: float | None = None
    """What its newest push added of a merge, where trust is earned; None before the first."""
    clipped: int = 0
    """Merges in which a push of its key was scaled down."""
    standing: str = ""
    """What is known of its key: new, established, doubted, suspended, or that its text is another
    one, so that nobody can check its pushes; empty in projects where all count."""
    probes: int = 0
    """Pushes of it that others probed."""
    contrast: float | None = None
    """Standard errors by which its pushes lower the loss of their own text more than of other text,
    on average; None before the first probe."""
    evidence: float | None = None
    """What stands against it by its probers, as a number of nats below 0: at -9 it is suspended;
    None before the first probe."""
    suspended: str = ""
    """Why it is suspended; empty if it is not."""
    taken_back: int = 0
    """Tokens of its key that were merged and are no progress of the run."""
    load: float | None = None
    """Share of the last half minute in which its device computed local steps, from 0 to 1; None
    where it does not tell, or has not trained for long enough."""


class ContributorRow(Struct, kw_only=True):
    """What one key gave, whether it is here or left long ago."""

    key: str
    name: str
    """As it wants to be called; the key's first digits while the log says nothing else."""
    tokens: int
    """Read and merged, as the log counts: the mean over fragments."""
    merges: int
    fragment_tokens: int = 0
    """The same summed over fragments: what adds up exactly."""
    clipped: int = 0
    """Merges in which it was scaled down to the group."""
    refused: dict[str, int] = field(default_factory=dict)
    """Pushes that did not count, by outcome and reason."""
    merged_at_s: float = 0.0
    """When something of it was last merged: Unix seconds; 0 for never."""
    is_here: bool = False
    first_at_s: float = 0.0
    """When something of it was first merged: Unix seconds; 0 where nobody knows."""


class RoundRow(Struct, kw_only=True):
    """One round in flight."""

    number: int
    fragment: int
    state: str
    arrived: int
    asked: int
    quorum: int
    age_s: float
    waiting_for: list[str] = field(default_factory=list)


class MergeRow(Struct, kw_only=True):
    """One committed merge."""

    global_step: int
    fragment: int
    participants: int
    mean_steps: float
    seconds: float


class VoterRow(Struct, kw_only=True):
    """One voter as this host sees it."""

    key: str
    role: str
    priority: int
    is_self: bool = False
    is_leader: bool = False
    is_here: bool = False
    """There is a stream, and its hello was accepted."""
    heard_s: float | None = None
    lag: int | None = None
    """Records it has still to store, as the leader knows; None where that is not known."""
    trouble: str = ""
    """Why it was turned away, or why it turned this host away."""
    name: str = ""
    """As it says that its owner calls it; empty where it has no name, or was not heard yet."""
    fragments: int | None = None
    """Of how many it is the merger, as the leader has it; None where the leader merges alone."""
    merge_bytes_per_s: float | None = None
    """Of pushes that it took in while it had merges to do; None where that is not known yet."""


class SeatStatus(Struct, kw_only=True):
    """The election, as this host sees it."""

    role: str
    """following, asking whether it would be elected, standing for election, leading."""
    epoch: int
    term: int
    leader: str
    """Key; empty while nobody is known to lead."""
    leader_heard_s: float | None = None
    """Seconds since the leader was last heard; 0 for the leader itself."""
    leaderless_s: float | None = None
    """Seconds since a leader was last heard, while none is known; None where that is not known."""
    beat_in_s: float | None = None
    """Seconds until a leader with other voters says again that it leads."""
    election_in_s: float | None = None
    """Seconds until this host would stand; None for a leader or one that may not stand."""
    durability: str = ""
    standbys: int = 0
    """Other syncers that hold everything, as the leader knows."""
    charter_revision: int = 0
    newest_charter_revision: int = 0
    """Higher than the one in force while the voters have not adopted it."""
    is_drained: bool = False
    trouble: str = ""
    voters: list[VoterRow] = field(default_factory=list)


class SnapshotRow(Struct, kw_only=True):
    """A consistent snapshot of the whole swarm, on this syncer's disk."""

    name: str
    """When it was begun, UTC."""
    epoch: int
    log_index: int
    global_step: int
    parts: list[str] = field(default_factory=list)
    """Learners that are in."""
    skipped: dict[str, str] = field(default_factory=dict)
    """Learners that are not in, and why."""


class RestoreRow(Struct, kw_only=True):
    """What a learner went on from after the owner went back to a snapshot."""

    name: str
    is_restored: bool
    """Whether from its own part; otherwise it started over."""
    local_step: int
    trouble: str = ""


class SnapshotStatus(Struct, kw_only=True):
    """Snapshots, as the syncer that leads knows them."""

    kept: list[SnapshotRow] = field(default_factory=list)
    """Oldest first."""
    taking: str = ""
    """The one that is being taken."""
    waiting_for: list[str] = field(default_factory=list)
    """Learners whose part is still to come."""
    trouble: str = ""
    """Why the last one was not kept."""
    next_s: float | None = None
    """Seconds until the next scheduled one."""
    restored: str = ""
    """The one at which this epoch began."""
    restores: list[RestoreRow] = field(default_factory=list)


class SyncerStatus(Struct, kw_only=True, tag="syncer"):
    """A syncer daemon."""

    key: str
    name: str
    pid: int
    version: str
    uptime_s: float
    phase: str
    sentence: str
    """How things are, in words."""
    join_link: str
    project: ProjectStatus
    swarm: SwarmStatus
    network: NetworkStatus
    peers: list[PeerRow] = field(default_factory=list)
    peers_unnamed: int = 0
    """Learners beyond those in `peers`, where only some are told."""
    rounds: list[RoundRow] = field(default_factory=list)
    merges: list[MergeRow] = field(default_factory=list)
    """The newest, oldest first."""
    merges_here: int = 0
    """Merges since this daemon started."""
    participants_mean: float = 0.0
    """Pushes in a merge of this run, whoever led."""
    effective_h: float = 0.0
    """Mean local steps per merged push since this daemon started; 0 before the first merge."""
    grace_s: float = 0.0
    slack_s: float | None = None
    outcomes: dict[str, int] = field(default_factory=dict)
    """What became of all pushes of the run, as the log counts, whoever led."""
    faults: dict[str, int] = field(default_factory=dict)
    fragments: list[int] = field(default_factory=list)
    """Committed version of each fragment."""
    push_bytes: int = 0
    """Payload bytes received in merged pushes."""
    push_params: int = 0
    """Parameters those payloads carried."""
    payload_bytes: int = 0
    """Payload bytes of published versions."""
    payload_params: int = 0
    checkpoint_dir: str = ""
    seat: SeatStatus | None = None
    snapshots: SnapshotStatus = field(default_factory=SnapshotStatus)
    contributors: list[ContributorRow] = field(default_factory=list)
    """Those that gave most, in that order."""
    contributors_all: int = 0
    """How many there are."""
    contributor_merges: int = 0
    """Pushes merged from all of them."""
    contributor_fragment_tokens: int = 0
    """Tokens of all of them, summed over fragments."""
    loop_lag: dict[str, float] = field(default_factory=dict)
    """How late timers of the event loop were in the last minute: p50_s, p99_s, max_s."""


class WitnessStatus(Struct, kw_only=True, tag="witness"):
    """A witness daemon: it votes and keeps the log."""

    key: str
    name: str
    pid: int
    version: str
    uptime_s: float
    sentence: str
    project: ProjectStatus
    seat: SeatStatus
    log_index: int
    """Last record that is certified here."""
    stored_from: int
    """First record that this disk still has."""
    network: NetworkStatus
    faults: dict[str, int] = field(default_factory=dict)


class ReceiptStatus(Struct, kw_only=True):
    """The newest receipt that was proven."""

    index: int
    """Last record that it counts."""
    merges: int
    tokens: int
    """Read and merged: the mean over fragments."""
    clipped: int
    at_s: float
    """When it was signed: Unix seconds."""
    signer: str = ""


class DownloadStatus(Struct, kw_only=True):
    """Weights that a learner is fetching."""

    done_bytes: int
    """Verified."""
    total_bytes: int
    rate: float
    """Bytes per second over the last seconds."""
    learners: int
    """Learners that sent something in the last seconds."""
    is_from_syncer: bool
    """Whether the syncer did."""
    left_s: float | None
    """Seconds until the rest is here at this rate."""


class DeviceRow(Struct, kw_only=True):
    """A processor or accelerator of this machine."""

    name: str
    """cpu, cuda:0 ..."""
    model: str
    mode: str = "always"
    """always, idle, never: what its owner set."""
    is_used: bool = False
    """The trainer is on it."""
    temperature_c: float | None = None
    busy_frac: float | None = None
    """By whomever."""
    memory_used_bytes: int | None = None
    memory_bytes: int | None = None


class LimitRow(Struct, kw_only=True):
    """A ceiling that the owner set, and what is taken now."""

    key: str
    """The setting, such as limits.cpu_percent."""
    words: str
    """What it is about."""
    unit: Literal["percent", "bytes", "bytes/s", "celsius"]
    ceiling: float | None = None
    """None: not limited."""
    used: float | None = None
    """None: not known."""


class GuestStatus(Struct, kw_only=True):
    """How a learner behaves on the machine that it is a guest of."""

    because: str = ""
    """Why it does less than its owner allows at best, in one clause; empty if it does not."""
    is_held: bool = False
    """For that reason it does not train at all."""
    is_suspended: bool = field(default=False, name="is_parked")
    """No trainer runs: its whole state lies in files, and its memory is free."""
    is_beside: bool = False
    """Somebody uses the machine, and narrower limits are in force."""
    duty_frac: float = 1.0
    """Share of the time in which the trainer works."""
    devices: list[DeviceRow] = field(default_factory=list)
    limits: list[LimitRow] = field(default_factory=list)
    hours: list[str] = field(default_factory=list)
    """When training is allowed; empty: always."""
    owner: str = ""
    """How it is known whether somebody uses the machine, or why not."""
    absent: list[str] = field(default_factory=list)
    """Readings that this machine does not give, and why."""
    trainer_log: list[str] = field(default_factory=list)
    """The newest lines that the trainer wrote, oldest first."""


class SampleStatus(Struct):
    """What the model wrote lately."""

    prompt: str
    text: str
    """What came behind the prompt."""
    global_step: int
    at_s: float
    """Unix seconds."""


class SwarmSeen(Struct, kw_only=True):
    """The answer to the control verb `swarm`: what the leading syncer said to a learner."""

    number: int
    """Of this report; grows by one."""
    age_s: float
    """Seconds since it came."""
    period_s: float
    """Seconds from one to the next, while somebody looks."""
    status: SyncerStatus | None = None
    """None if the asker has it already."""


class ShardStatus(Struct):
    """What a learner has of published data."""

    held: int
    """Shards here, those of held-out data included."""
    total: int
    """Shards of the whole project, those of held-out data included."""
    held_bytes: int
    fetched_bytes: int
    """From other hosts, since the daemon started."""
    fed_bytes: int
    """Of the text that its trainer was given since then."""
    waiting: str = ""
    """What the trainer waits for; empty if for none of them."""


class NodeStatus(Struct, kw_only=True, tag="node"):
    """A learner daemon."""

    key: str
    name: str
    pid: int
    version: str
    uptime_s: float
    state: str
    """syncing, starting, training, starved, paused, finishing, unfit, adrift, ended."""
    sentence: str
    link: str
    link_detail: str
    heard_s: float | None
    """Seconds since the syncer was last heard."""
    path: str = ""
    """How the syncer is reached: direct or relayed; empty where that is not known."""
    rtt_s: float | None = None
    """Shortest of the syncer's latest answers, from question to first byte."""
    trainer: str
    trainer_detail: str
    trainer_pid: int | None
    device: str
    micro_batch: int | None
    batch_sequences: int = 0
    """In each local step; 0 before the first trainer, and from those that do not tell."""
    project: ProjectStatus
    swarm: SwarmStatus
    network: NetworkStatus
    local_step: int = 0
    tokens: int = 0
    tokens_per_s: float = 0.0
    step_s: float = 0.0
    loss: float | None = None
    goodput: float | None = None
    work_s: float = 0.0
    """Seconds in local steps of this trainer; the rest of a throttled one counts as work."""
    alive_s: float = 0.0
    """Seconds that this trainer has lived, less start-up and evaluation."""
    pushed: int = 0
    merged: int = 0
    outcomes: dict[str, int] = field(default_factory=dict)
    discarded_steps: int = 0
    """Local steps overwritten before they could be handed in, mean over fragments."""
    lost_steps: int = 0
    """Local steps that died with a trainer."""
    trainer_restarts: int = 0
    versions: list[int] = field(default_factory=list)
    lag: int = 0
    weights_from_peers: int = 0
    """Fragments fetched from other learners alone and verified."""
    weights_from_syncer: int = 0
    """Fragments of which the syncer had to send at least a part."""
    weights_sources: dict[str, int] = field(default_factory=dict)
    """Bytes of weights by who sent them; the keys are hex."""
    download: DownloadStatus | None = None
    """What is being fetched now."""
    weights_held: int = 0
    """Fragments held in a verified version."""
    moments: str = ""
    """Where the optimizer state of this trainer comes from, or how far its recovery is."""
    evaluations: int = 0
    push_bytes: int = 0
    push_params: int = 0
    payload_bytes: int = 0
    payload_params: int = 0
    faults: dict[str, int] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)
    """What the owner should know: a differing corpus, a missing accelerator, a full disk."""
    guest: GuestStatus | None = None
    """How it behaves on this machine; None before the first look at its sensors."""
    ranks: int = 1
    """Processes of the trainer, a device each."""
    loop_lag: dict[str, float] = field(default_factory=dict)
    receipt: ReceiptStatus | None = None
    """What a leader signed that this learner gave; None before the first merge with it."""
    sample: SampleStatus | None = None
    """None where the owner of the machine wants none, and before the first."""
    trust: float = 1.0
    """How far its newest merged push counted, by where its pushes point."""
    suspended: str = ""
    """Why nothing of it counts, and what to do; empty if it is not suspended."""
    younger: str = ""
    """What is wrong with the history that the leader shows, and the way out; empty if nothing is"""
    probes: int = 0
    """Pushes of other learners that it measured for the leader."""
    probes_declined: int = 0
    swarm_seen: SwarmSeen | None = None
    """Filled in by `shoal status`, where no syncer that leads runs beside it."""
    shards: ShardStatus | None = None
    """Of published data; None where every learner has them itself."""
    is_sharded: bool = False
    """Each of the ranks holds a part of the model."""
    precision: str = ""
    """In which the trainer computes; empty before the first one."""


Status = SyncerStatus | NodeStatus
"""Of daemons that follow the model, which is what the screens are about."""

DaemonStatus = SyncerStatus | WitnessStatus | NodeStatus


class StatusAnswer(Struct, kw_only=True):
    """The answer to the control verb `status`."""

    status: DaemonStatus


Verb = Literal["status", "stop"]
