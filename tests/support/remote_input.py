"""Every place where bytes from others become values, with samples of what is sound there."""

from __future__ import annotations

import asyncio
import base64
import json
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from blake3 import blake3
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from host import addresses
from host.bulk import frames, handshake
from host.files import keystore
from host.files.keystore import Identity
from host.files.signed_project import open_project
from host.join_link import JoinLink, format_link, parse_link
from host.nat import probe_messages
from host.network import blobs, certificates, dht_records, leader_discovery
from host.network.foreign_errors import Loss
from host.network.slots import Slots
from host.network.streams import HELLO, ControlStream, Wire, answer_hello, hear_hello
from node.daemon.observer import read_report
from node.machine.index_proof import prove_index, read_charter
from node.machine.moments import check_moments, moments_numel
from node.trainer.text.chat_template import read_chat
from protocol import limits, wire
from protocol.errors import CorruptState, MalformedMessage, RemoteError, TransientError, UserError
from protocol.fragments import build_layout
from protocol.log.receipts import Credit, Proven, encode_book, make_book, open_book, sign_credit
from protocol.log.records import Record
from protocol.log.state import SwarmSummary
from protocol.messages import (
    Certificate,
    CertifiedRecord,
    Envelope,
    FragmentIndex,
    Probe,
    Probed,
    ProbeDeclined,
    PushHeader,
)
from protocol.numerics import chunks
from protocol.numerics.codecs import CODE_BITS, check, code_planes, decode, decode_range, encode
from protocol.numerics.outer import digest
from protocol.numerics.versions import certified_version
from protocol.peers import nearby
from protocol.peers.project_code import code_of, read_code
from protocol.project import Charter, Genesis, PublishedSpec, TensorSpec, project_id
from protocol.project import encode as encode_document
from protocol.shards import ShardManifest, ShardTable
from protocol.signing import seal, verify_ed25519
from protocol.snapshots.manifest import Manifest
from protocol.status import SyncerStatus
from shoal.page.directory import read as read_page
from shoal.page.facts import PageFacts
from tests.support.builders import merged, project, rounds
from tests.support.published import SEQUENCES, genesis_of
from tests.support.strategies import messages, values_of

NUMEL = 256
TOPIC = "shoal/00/learners"
PEER = bytes(range(32))
Samples = st.SearchStrategy[bytes]


@dataclass(frozen=True, slots=True)
class Decoder:
    """One such place."""

    read: Callable[[bytes], object]
    samples: Samples
    """Bytes that are sound there, so that what is nearly sound can be made of them."""
    refusals: tuple[type[Exception], ...] = (RemoteError,)
    """All that `read` may raise."""


@cache
def identity() -> Identity:
    """A host's key."""
    with tempfile.TemporaryDirectory() as folder:
        return keystore.load_or_create(Path(folder) / "host.key")


# Structs.


def struct(kind: type[msgspec.Struct], bytes_max: int = limits.FRAME_BYTES_MAX) -> Decoder:
    return Decoder(
        lambda content: wire.decode(content, kind, bytes_max=bytes_max),
        values_of(kind).map(encode_document if kind in (Genesis, Charter) else wire.encode),
    )


# A project, whose owner may be hostile.


@cache
def owned() -> tuple[Genesis, bytes, Charter]:
    """A project of `identity`."""
    tiny = project(rounds())
    genesis = msgspec.structs.replace(tiny.genesis, owner=identity().key)
    content = encode_document(genesis)
    charter = msgspec.structs.replace(tiny.charter, project=project_id(content))
    return genesis, content, charter


def read_genesis(content: bytes) -> object:
    charter = owned()[2]
    envelope = seal("charter", project_id(content), encode_document(charter), identity())
    return open_project(content, envelope)


def read_shards(content: bytes) -> object:
    """A list of shards that a hostile owner pinned."""
    genesis, _ = genesis_of(blocks=23, shard_blocks=5)
    spec = PublishedSpec(blake3(content).digest(), max(1, len(content)), 5, 2)
    return ShardTable(msgspec.structs.replace(genesis, published=spec), content)


def lists_of_shards() -> Samples:
    name = st.binary(min_size=32, max_size=32)
    return st.builds(
        lambda train, heldout: wire.encode(ShardManifest(tuple(train), (heldout,), SEQUENCES)),
        st.lists(name, min_size=5, max_size=5),
        name,
    )


def signed_charter(content: bytes) -> Envelope:
    return seal("charter", project_id(owned()[1]), content, identity())


def read_proven_charter(content: bytes) -> Charter:
    return read_charter(
        signed_charter(content),
        project=project_id(owned()[1]),
        owner=identity().key,
        verify=verify_ed25519,
    )


def read_index(summary: bytes) -> object:
    return prove_index(
        FragmentIndex(1, bytes(32), summary),
        [],
        adopted=[],
        charters=[owned()[2]],
        fragments=1,
        block_sequences=4,
        verify=verify_ed25519,
    )


def book(credit: Credit) -> bytes:
    _, content, charter = owned()
    credit = msgspec.structs.replace(
        credit, project=charter.project, learner=identity().key, revision=charter.revision
    )
    proven = Proven(credit, identity().key, sign_credit(credit, identity()))
    envelope = signed_charter(encode_document(charter))
    return encode_book(make_book(content, (envelope,), (proven,), identity()))


# Payloads.

FRAGMENT = build_layout(
    [TensorSpec("one", (100,), "rda"), TensorSpec("two", (90,), "mean")], "tensor", 1
).fragments[0]
INNER = project().charter.inner

arrays = st.builds(
    lambda seed, scale: (
        np.random.default_rng(seed).standard_normal(NUMEL, dtype=np.float32) * np.float32(scale)
    ),
    st.integers(0, 99),
    st.sampled_from([0.0, 1e-30, 1.0, 1e20]),
)


def codec_of(name: Any) -> Decoder:
    def read(payload: bytes) -> object:
        check(name, payload, NUMEL)
        found = decode(name, payload, NUMEL)
        assert np.isfinite(found).all()
        decode_range(name, payload, NUMEL, 128, 256)
        if name in ("int8", "int4"):
            code_planes(name, payload, NUMEL)
        theta = np.zeros(NUMEL, np.float32)
        body = merged(codec=name, payload=digest(payload), payload_bytes=len(payload))
        with suppress(CorruptState):  # The record names another outcome.
            certified_version(theta, theta, payload, body)
        return found

    return Decoder(read, arrays.map(lambda values: bytes(encode(name, values))))


def read_moments(content: bytes) -> object:
    whole = content[: len(content) // 4 * 4]
    return check_moments(FRAGMENT, np.frombuffer(whole, np.float32), INNER)


def sound_moments(seed: int) -> bytes:
    chance, n = np.random.default_rng(seed), FRAGMENT.numel
    values = np.zeros(moments_numel(FRAGMENT), np.float32)
    values[n : 2 * n] = 1e-4 * chance.random(n)
    values[2 * n :] = 9
    return values.tobytes()


def read_manifest(content: bytes) -> object:
    found = chunks.digests(content)
    assert b"".join(found) == content
    return found


# Streams.


class NoLoss(Loss):
    """Of an engine that lives: nobody waits for news of its end."""

    async def settle(self) -> None:
        return


class Sink:
    """Takes what is written."""

    @property
    def transport(self) -> Sink:
        return self

    def write(self, data: bytes | memoryview, /) -> None: ...
    async def drain(self) -> None: ...
    def close(self) -> None: ...
    def abort(self) -> None: ...


def over_stream(read: Callable[[Wire], Any]) -> Callable[[bytes], object]:
    """A reader of a stream that carries just these bytes."""

    async def run(content: bytes) -> object:
        source = asyncio.StreamReader()
        source.feed_data(content)
        source.feed_eof()
        return await read(Wire(identity().key, source, Sink(), loss=NoLoss(), counters=()))  # type: ignore[arg-type]

    return lambda content: asyncio.run(run(content))


async def read_control(stream: Wire) -> list[object]:
    await hear_hello(stream)
    await answer_hello(stream, has_room=True)
    control, found = ControlStream(stream), []
    while True:
        try:
            found.append(wire.decode_message(await control.recv()))
        except TransientError:
            return found


async def read_offer(stream: Wire) -> None:
    handshake.check(await handshake.read_offer(stream), stream.peer)


async def serve_blob(stream: Wire) -> None:
    shelf = {bytes(32): memoryview(bytes(100))}
    slots, small = Slots(4, 4), Slots(4, 4)
    await blobs.serve_one(stream, lambda _, name: shelf.get(name), slots, small)


def note(kind: type[msgspec.Struct]) -> Decoder:
    return Decoder(
        over_stream(lambda stream: probe_messages.receive(stream, kind)),
        values_of(kind).map(lambda one: framed(wire.encode(one))),
        (RemoteError, TransientError),
    )


def framed(content: bytes) -> bytes:
    return len(content).to_bytes(4, "big") + content


def offer(certificate: bytes) -> bytes:
    head = frames.GREETING + bytes([0]) + (4100).to_bytes(2, "big")
    return head + len(certificate).to_bytes(2, "big") + certificate


def read_frames(content: bytes) -> list[object]:
    """As a connection does, with memory for four requests."""

    def room(id: int) -> memoryview:
        if id > 3:
            raise MalformedMessage("nobody asked for this")
        return memoryview(bytearray(1 << 12))

    reader, found, at = frames.FrameReader(room), [], 0
    while at < len(content):
        place = reader.buffer()
        part = content[at : at + len(place)]
        place[: len(part)] = part
        at += len(part)
        frame = reader.took(len(part))
        if frame is not None:
            found.append(frame)
    return found


channel_frames = st.lists(
    st.one_of(
        st.builds(
            lambda id, offset, count: frames.request_bytes(frames.Request(id, PEER, offset, count)),
            st.integers(0, 2**32 - 1),
            st.integers(0, 1 << 32),
            st.integers(0, 1 << 22),
        ),
        st.builds(
            lambda id, total: frames.answer_bytes(frames.Answer(id, 0, total)),
            st.integers(0, 3),
            st.integers(0, 2**64 - 1),
        ),
        st.binary(min_size=1, max_size=40).map(
            lambda content: frames.data_header(1, len(content)) + content
        ),
    ),
    max_size=4,
).map(lambda parts: frames.GREETING + b"".join(parts))


# The table of the swarm, and texts.


def read_table(content: bytes) -> bool:
    """A value under our own key, in a topic of ours."""
    key = dht_records.DHTID.generate(TOPIC).to_bytes()
    record = dht_records.DHTRecord(key, content[:34], content[34:], EXPIRES_S)
    return bool(judge().validate(record))


EXPIRES_S = time.time() + 60.0


@cache
def judge() -> dht_records.SignedRecords:
    return dht_records.SignedRecords(identity(), [TOPIC])


def stored(value: bytes) -> bytes:
    subkey = b"\xc4\x20" + identity().key
    key = dht_records.DHTID.generate(TOPIC).to_bytes()
    record = dht_records.DHTRecord(key, subkey, value, EXPIRES_S)
    return subkey + bytes(judge().sign_value(record))


def as_text(read: Callable[[str], object]) -> Callable[[bytes], object]:
    return lambda content: read(content.decode("utf-8", "replace"))


PEER_TEXT = "12D3KooWA1fSTf6iTo2cKnh1epDYJH4Lot8SZcFnaHakq96muaQr"
ADDRESS = f"/ip4/203.0.113.7/tcp/4100/p2p/{PEER_TEXT}"
texts = st.sampled_from(
    [ADDRESS, f"/dns4/example.org/tcp/1/p2p/{PEER_TEXT}", f"/ip6/::1/tcp/9/p2p/{PEER_TEXT}"]
).map(str.encode)


def checksummed_link(payload: bytes) -> object:
    """A link around any payload, its checksum right."""
    sum_of = blake3(payload, derive_key_context="shoal 1 join link").digest(4)
    return parse_link("shoal:" + base64.urlsafe_b64encode(payload + sum_of).decode().rstrip("="))


LINK = JoinLink(PEER, 4321, "name", (ADDRESS,))

STREAM = (RemoteError, TransientError)

CHATS = (
    {"chat_template": "{{ messages }}", "eos_token": {"content": "<|end|>"}, "bos_token": None},
    {"chat_template": [{"name": "default", "template": "hi"}, {"name": ["x"]}, 7]},
)
"""As a tokenizer's settings say how a chat is written."""

NONCE = bytes(range(16))


def nearby_answers() -> Samples:
    """Answers to our question, each signed."""
    return values_of(nearby.NearbyNotice).map(
        lambda notice: nearby.answer(
            PEER,
            msgspec.structs.replace(
                notice, nonce=NONCE, addresses=(), name=notice.name[:16] or "name"
            ),
            identity(),
        )
    )


DECODERS: dict[str, Decoder] = {
    "nearby-question": Decoder(
        nearby.read_question,
        st.binary(min_size=16, max_size=16).map(nearby.question),
    ),
    "nearby-answer": Decoder(
        lambda content: nearby.read_answer(content, NONCE, verify_ed25519), nearby_answers()
    ),
    "project-code": Decoder(
        as_text(read_code),
        st.binary(min_size=32, max_size=32).map(lambda project: code_of(project).encode()),
        (UserError,),
    ),
    "message": Decoder(wire.decode_message, messages.map(wire.encode)),
    "record": struct(Record),
    "certified-record": struct(CertifiedRecord),
    "certificate-of-record": struct(Certificate),
    "probe": struct(Probe),
    "probed": struct(Probed),
    "probe-declined": struct(ProbeDeclined),
    "envelope": struct(Envelope),
    "push-header": struct(PushHeader),
    "summary": struct(SwarmSummary),
    "credit": struct(Credit),
    "snapshot-manifest": struct(Manifest),
    "list-of-shards": Decoder(read_shards, lists_of_shards()),
    "genesis-on-the-wire": struct(Genesis, limits.GENESIS_BYTES_MAX),
    "charter-on-the-wire": struct(Charter),
    "genesis": Decoder(read_genesis, values_of(Genesis).map(encode_document)),
    "charter": Decoder(
        lambda content: open_project(owned()[1], signed_charter(content)),
        values_of(Charter).map(encode_document),
    ),
    "charter-proven": Decoder(read_proven_charter, values_of(Charter).map(encode_document)),
    "index": Decoder(read_index, values_of(SwarmSummary).map(wire.encode)),
    "contributions": Decoder(
        lambda content: open_book(content, verify_ed25519), values_of(Credit).map(book)
    ),
    "page": Decoder(read_page, values_of(PageFacts).map(msgspec.json.encode)),
    "report": Decoder(read_report, values_of(SyncerStatus).map(msgspec.msgpack.encode)),
    **{f"payload-{name}": codec_of(name) for name in CODE_BITS},
    "moments": Decoder(read_moments, st.integers(0, 9).map(sound_moments)),
    "manifest-of-state": Decoder(read_manifest, st.binary(max_size=96), ()),
    "seat-notice": Decoder(
        lambda content: leader_discovery.read_notice(content, PEER),
        values_of(leader_discovery.SeatNotice).map(wire.encode),
        (),
    ),
    "learner-notice": struct(leader_discovery.LearnerNotice),
    "table-record": Decoder(read_table, st.binary(max_size=40).map(stored), ()),
    "reach-ask": note(probe_messages.ReachAsk),
    "reach-told": note(probe_messages.ReachTold),
    "relay-ask": note(probe_messages.RelayAsk),
    "relay-offer": note(probe_messages.RelayOffer),
    "relay-told": note(probe_messages.RelayTold),
    "chat-settings": Decoder(
        lambda content: read_chat(content, content, b""),
        st.sampled_from(CHATS).map(json.dumps).map(str.encode),
        (),
    ),
    "control-stream": Decoder(
        over_stream(read_control),
        st.lists(messages, max_size=3).map(
            lambda said: HELLO + b"".join(framed(wire.encode(one)) for one in said)
        ),
        STREAM,
    ),
    "blob-request": Decoder(
        over_stream(serve_blob),
        st.integers(0, 200).map(lambda at: blobs.MAGIC + bytes(32) + at.to_bytes(8, "big")),
        STREAM,
    ),
    "channel-offer": Decoder(
        over_stream(read_offer),
        st.builds(lambda: offer(certificates.certificate(identity()))),
        STREAM,
    ),
    "channel-frames": Decoder(read_frames, channel_frames),
    "certificate-of-host": Decoder(
        certificates.key_of_certificate, st.builds(lambda: certificates.certificate(identity()))
    ),
    "link": Decoder(
        as_text(parse_link), st.builds(lambda: format_link(LINK).encode()), (UserError,)
    ),
    "link-checksummed": Decoder(
        checksummed_link, st.builds(lambda: msgspec.msgpack.encode(LINK)), (UserError,)
    ),
    "address": Decoder(as_text(addresses.parse_peer), texts, (UserError,)),
    "addresses-of-others": Decoder(as_text(lambda text: addresses.readable([text])), texts, ()),
    "host-id": Decoder(as_text(keystore.key_of_peer_text), st.just(PEER_TEXT.encode())),
}
"""By name."""


@cache
def sound(name: str, count: int) -> tuple[bytes, ...]:
    """So many samples, or as many as there are, of what is sound there: the same ones each time."""
    found: list[bytes] = []

    @seed(1)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(DECODERS[name].samples)
    def collect(content: bytes) -> None:
        found.append(content)

    collect()
    return tuple(found)
