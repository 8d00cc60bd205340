"""Every bound in the system, each with its reason. Remote input is checked against these first."""

from __future__ import annotations

WIRE_VERSION = 3
"""Spoken on every stream; peers of another version are told so and refused."""

FRAME_BYTES_MAX = 1 << 20
"""One control message. Weights never travel as messages, so a megabyte is generous."""

OUTBOX_BYTES_MAX = 8 * FRAME_BYTES_MAX
"""Of messages that wait for a peer that reads slowly, on top of the some 11 MB that the engines
between us buffer. Whatever is said in one step waits until after it."""

GENESIS_BYTES_MAX = 4 << 20
"""The tensor table of a model with 20 000 tensors fits."""

TOKENIZER_BYTES_MAX = 64 << 20
"""Of the files of a tokenizer together; the largest published ones have about half of that."""

PINNED_FILES_MAX = 8
"""Files that a genesis pins by digest: a tokenizer, its settings, special tokens, chat template."""

BLOB_BYTES_MAX = 4 << 30
"""One content-addressed blob: a fragment of a very large model in f32."""

BLOB_CHUNK_BYTES = 256 << 10
"""One write on a bulk stream; larger gains nothing, smaller costs system calls."""

STATE_CHUNK_BYTES = 1 << 20
"""What is asked of one donor at once; its digest can be checked when it arrives. Part of what a
state's digest means: never to be changed within a wire version."""

STREAMS_PER_PEER_MAX = 12
"""Parallel bulk streams to one peer: a stream carries 256 KiB per round trip at first, so that a
long line of 100 Mbit/s needs about ten."""

STREAMS_SERVED_MAX = 32
"""Bulk streams served at once; the network engine's accept queue fails above about 64."""

TOPIC_ENTRIES_MAX = 512
"""Entries of one topic of the swarm's table that a host holds, or takes from an answer. With the
largest values that are 2.2 MB, and an answer must stay below 4 MiB."""

TABLE_STORES_MAX = 64
"""Values in one message to the table. An honest host sends one, and one a topic to a host that it
has met."""

LOSS_MAX = 1e6
"""Nats per token. A held-out loss that is not below it, or no number, is told as just this."""

LEARNERS_MAX = 1024
"""Sessions at one syncer, and participants named in one merge record."""

SYNCER_COPIES = 16
"""Of a merged payload, that a syncer sends whose line carries them. Learners beyond have it from
learners."""

PROBE_SEQUENCES_MAX = 256
"""Of one kind of text in one probe: more would say little more and cost the prober more."""

REINSTATED_MAX = 1024
"""Suspensions that an owner lifted, in one charter."""

HELD_PIECE_BYTES = 8 << 20
"""Of a frozen base model in one blob: as long as a slow line may be cut off and lose nothing."""

HELD_PIECES_MAX = 65_536
"""Half a terabyte of frozen base model."""

SHARD_BYTES_MAX = 64 << 20
"""Of published data in one blob. They are cut at about half a megabyte; a block may be larger."""

MIXTURE_SOURCES_MAX = 32
"""Sources in a mixture."""

SHARDS_MAX = 65_536
"""Of the training data of one project, and of what is held out: 32 GiB of half a megabyte each."""

MANIFEST_BYTES_MAX = 5 << 20
"""The list of so many shards twice over, 34 bytes each."""

TARGETS_MAX = 64
"""Kinds of layers that an adapter may name; models have about ten."""

TENSORS_MAX = 20_000
FRAGMENTS_MAX = 1024
IMAGE_CLASSES_MAX = 4096
IMAGE_SIDE_MAX = 2048
NAME_CHARS_MAX = 64
TEXT_CHARS_MAX = 2_000
VOTERS_MAX = 15
VOTES_MAX = 2 * VOTERS_MAX
"""Signatures in one certificate: while the charter changes, voters of before and of now sign."""

RECORDS_PER_MESSAGE_MAX = 512
ENTRIES_BYTES_MAX = FRAME_BYTES_MAX // 2
"""Certified records in one message: a merge of a thousand learners takes over 100 KiB."""

PIECES_AT_ONCE_MAX = 8
"""Messages full of entries of the log that a learner is told at once: half of what may wait for
it."""

PIECES_AHEAD_MAX = 4
"""Messages full of a state that are told before it is known that former ones came: a quarter of
what may wait, beside what is said of the log meanwhile."""

REPORT_BYTES_MAX = FRAME_BYTES_MAX - 1024

ACCOUNTS_MAX = 1 << 20
"""Contributors of one project."""

INDEX_ENTRIES_MAX = 4096
"""Certified records that a joiner keeps before it is welcomed."""

LINK_CHARS_MAX = 4_096
"""A join link is pasted by people; a megabyte in it is an attack or an accident."""

WATCHERS_MAX = 32
"""Hosts that only look on, at one syncer."""

REPORT_EVERY_S = 1.0

LEARNERS_TOLD_MAX = 64
"""Learners in a report for a learner, who may sit behind a slow line: about 30 kB."""

REPORT_BYTES_PER_S = 4000
"""A learner that is looked at asks for reports no faster than this, about 240 kB a minute."""

ADDRESSES_MAX = 16

BANNED_MAX = 10_000
"""Keys that an owner banned."""

ALLOWED_MAX = 4096
"""Keys that an owner lists: they are in the charter, which is one message."""

INVITES_REVOKED_MAX = 4096
"""Invites that an owner revoked; those that have expired leave the list."""

INVITE_BYTES_MAX = 512
"""What an owner signs in an invite: a few numbers and a name."""

INVITE_USES_MAX = 1024
"""Keys that one invite may bring, as many as a swarm may have."""

INVITED_MAX = 4096
"""Keys that invites brought to one project; the log remembers each of them."""

AT_S_MAX = 2e11
"""Whoever signs a time may say anything; this is the last millennium that has a calendar."""

CLOCK_SKEW_S_MAX = 3.0
"""The DHT rejects records of hosts whose clocks differ by more."""

HEARTBEAT_S = 4.0
"""A learner that has nothing new to say says at least this often that it lives."""

HEARTBEATS_PER_S = 400
"""Of all learners together, on change; a syncer asks for fewer of each when they are many."""

ALIVE_EVERY_S = 1.0
"""A syncer that has said nothing to all for so long says that it lives."""

ALIVE_EVERY_S_MAX = 5.0
"""It says so at least this often, since that also tells how often it wants to hear news."""

LEADER_SUSPECT_AFTER_S = 4.0
"""Silence of a leader after which a learner looks whether another one was elected."""

BEAT_EVERY_S = 1.0
"""A leader says at least this often to the other voters that it leads."""

ELECTION_TIMEOUT_S_MIN = 3.0
ELECTION_TIMEOUT_S_MAX = 5.0
"""Silence of the leader after which a voter stands for election; by priority between these."""

TERM_STEP_MAX = 1 << 24
"""A term further ahead than this is a lie: so many elections, one a second, take half a year."""

QUIET_AFTER_S = 5.0
"""Silence that people are told of, of hosts that say at least every `HEARTBEAT_S` that they live.
Nothing is decided by it: whoever is only slow costs nobody an election or a session."""

SUSPECT_AFTER_S = 15.0
GONE_AFTER_S = 30.0
"""Silence on a standing stream. The transport alone notices a black hole only after 37 s."""

PUSH_LAG_MAX = 2
"""A push against an anchor older than this many versions is stale."""

PAYLOAD_RING = 4
"""Merged payloads of each fragment that every holder keeps for those that missed one."""

MOMENTS_CHUNK_BYTES = 64 << 20
"""Optimizer state travels in blobs of at most this, so that one broken transfer costs little."""

MOMENTS_CHUNKS_MAX = 16_384
"""Blobs that one message can name; enough for 128 billion parameters."""

SNAPSHOTS_MAX = 64
"""Snapshots that a syncer keeps at most."""

OPEN_PUSHES_MAX = 4 * FRAGMENTS_MAX
"""Pushes without a fate that a learner names at its cut: one for each fragment, and those of
trainers that are gone."""
