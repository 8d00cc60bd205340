"""Standing streams between voters: who dials, who is let in, who is turned away and why."""

from __future__ import annotations

from protocol import limits, wire
from protocol.backoff import Backoff
from protocol.errors import WrongProject
from protocol.log.records import CharterAdopted
from protocol.machine import Connect, Disconnect
from protocol.messages import Alive, CharterOffer, Envelope, Refused, VoterHello
from protocol.project import Charter
from protocol.signing import open_envelope
from protocol.trace import VoterGreeted
from syncer_node.raft.ballot import Pin
from syncer_node.raft.context import Context, PeerVoter

DIAL_AGAIN = Backoff((0.3, 0.6, 1.0, 2.0, 3.0))
"""Pauses between tries to reach another voter."""

PASSIVE_DIAL_S = 8.0
"""One of two voters dials; after this long without a stream the other one tries too."""

REFUSED_DIAL_S = 30.0
STALE_DISK = "stale-disk"
"""Why a disk is refused that was put back, or that runs on two hosts: it may vote no more."""

SILENT_S = 5.0
"""A voter's stream on which nothing came for this long is opened anew."""


class VoterStreams:
    """Streams to the other voters of the charter."""

    def __init__(self, context: Context) -> None:
        self.context = context

    def follow_charter(self) -> None:
        """Know exactly the other voters of the charter in force and of the newest one."""
        context = self.context
        self._learn_from_log()
        charters = (*context.log.charters_in_play(), context.newest_charter)
        keys = {voter.key for charter in charters for voter in charter.voters} - {context.key}
        for key in sorted(keys - context.peers.keys()):
            wait_s = 0.0 if context.key < key else PASSIVE_DIAL_S
            context.peers[key] = PeerVoter(key, dial_s=context.now_s + wait_s)
        for key in sorted(context.peers.keys() - keys):
            del context.peers[key]
            context.effects.out.append(Disconnect(key, "no longer a voter"))

    def _learn_from_log(self) -> None:
        """The newest charter may come with the log before any voter's hello brings it."""
        context, log = self.context, self.context.log
        index, charter = log.newest_charter()
        if index > log.floor.index and charter.revision > context.newest_charter.revision:
            body = log.entry(index).record.body
            assert isinstance(body, CharterAdopted), "that is where the charter came from"
            self.take_charter(body.charter)

    def look(self) -> None:
        """Dial whom we have no stream to; give up streams on which nothing comes."""
        now_s = self.context.now_s
        for peer in self.context.peers.values():
            if not peer.is_up and now_s >= peer.dial_s and self.context.is_named:
                peer.dial_s = now_s + 10.0
                self.context.effects.out.append(Connect(peer.key))
            elif peer.is_up and now_s - peer.heard_s > SILENT_S:
                self.context.effects.out.append(Disconnect(peer.key, "silent"))
                self.on_down(peer.key)
            elif peer.is_greeted and now_s - peer.alive_said_s >= limits.ALIVE_EVERY_S:
                peer.alive_said_s = now_s
                self.context.effects.send(peer.key, Alive(self.context.log.committed))

    def deadline_s(self) -> float:
        return min(
            (peer.dial_s for peer in self.context.peers.values() if not peer.is_up), default=1e18
        )

    def on_up(self, key: bytes) -> None:
        """A stream to a voter is open: say who we are."""
        context, peer = self.context, self.context.peers[key]
        if not context.is_named:
            context.effects.out.append(Disconnect(key, "the disk's name is being written"))
            return
        peer.is_up, peer.is_greeted = True, False
        peer.heard_s = context.now_s
        hello = VoterHello(
            wire_version=limits.WIRE_VERSION,
            project=context.setup.project,
            disk=context.ballot.disk,
            boot=context.ballot.boot,
            nonce=context.setup.nonce,
            epoch=context.epoch,
            term=context.term,
            charter=context.charter_envelope,
            addresses=context.setup.addresses,
            stored=max(context.log.stable, context.ballot.owed),
            generation=context.ballot.generation,
            name=context.setup.name,
        )
        context.effects.send(key, hello)

    def on_down(self, key: bytes) -> None:
        peer = self.context.peers[key]
        peer.is_up = peer.is_greeted = False
        self.context.forget_held(key)
        pause_s = DIAL_AGAIN.pause_s(peer.failures)
        if peer.refusal or peer.trouble:
            pause_s = REFUSED_DIAL_S
        elif self.context.key > key:
            pause_s += PASSIVE_DIAL_S
        peer.failures += 1
        spread = self.context.setup.rng.uniform(0.8, 1.2)
        peer.dial_s = self.context.now_s + pause_s * spread

    def on_refused(self, key: bytes, refused: Refused) -> bool:
        """Whether it is this disk that is refused, and for good; the words are shown to people."""
        context = self.context
        context.peers[key].refusal = refused.text
        context.effects.out.append(Disconnect(key, refused.reason))
        return refused.reason == STALE_DISK and refused.nonce == context.setup.nonce

    def begin_anew(self, reason: str) -> None:
        """End every stream, and greet again: what was said of this host holds no more."""
        for key, peer in self.context.peers.items():
            if peer.is_up:
                self.context.effects.out.append(Disconnect(key, reason))
                self.on_down(key)

    def on_hello(self, key: bytes, hello: VoterHello) -> bool:
        """Whether the voter is let in."""
        context, peer = self.context, self.context.peers[key]
        if hello.project == context.setup.project:
            self.take_charter(hello.charter)
        if key not in context.peers:
            return False  # The newer charter has other voters.
        if hello.project == context.setup.project and hello.generation < self._generation(key):
            # It hears from our hello that it is admitted anew, and comes again with another name.
            context.effects.out.append(Disconnect(key, "readmitted"))
            return False
        refused = self._refusal(key, hello)
        peer.trouble = refused.text if refused is not None else ""
        context.effects.emit(VoterGreeted(key, peer.trouble))
        if refused is not None:
            context.effects.send(key, refused)
            context.effects.out.append(Disconnect(key, refused.reason))
            return False
        pin = Pin(key, self._generation(key), hello.disk, hello.boot, hello.nonce)
        context.remember(context.ballot.with_pin(pin))
        peer.is_greeted, peer.failures, peer.refusal = True, 0, ""
        if peer.disk != hello.disk:
            peer.match = peer.kept = 0
        peer.disk, peer.addresses, peer.name = hello.disk, hello.addresses, hello.name
        peer.heard_s = context.now_s
        return True

    def take_charter(self, envelope: Envelope) -> None:
        """Keep a newer charter of the owner's and pass it on: the leader proposes it.

        Raises RemoteError if it is not the owner's.
        """
        context = self.context
        if envelope == context.charter_envelope:
            return
        charter = self._read(envelope)
        if charter.revision <= context.newest_charter.revision:
            return
        former = {key: self._generation(key) for key in context.peers}
        context.charter_envelope, context.newest_charter = envelope, charter
        for key, peer in context.peers.items():
            if self._generation(key) > former[key]:
                # Which disk it has now, only a new stream can tell.
                context.effects.out.append(Disconnect(key, "readmitted"))
                self.on_down(key)
                peer.trouble = peer.refusal = ""
                peer.dial_s = context.now_s
        if context.is_empty and charter.epoch == context.epoch:
            context.log.begin_with(charter)
        self.follow_charter()
        for peer in context.greeted():
            context.effects.send(peer.key, CharterOffer(envelope))
        context.app.on_newer_charter(envelope, charter)

    def _read(self, envelope: Envelope) -> Charter:
        setup = self.context.setup
        payload = open_envelope(
            "charter", setup.project, envelope, setup.verify, signer=setup.owner
        )
        charter = wire.decode(payload, Charter)
        if charter.project != setup.project:
            raise WrongProject("charter of another project")
        return charter

    def _generation(self, key: bytes) -> int:
        """Which of its disks the owner last admitted this voter with."""
        context = self.context
        voter = context.newest_charter.voter(key) or context.log.voter(key)
        return voter.disk if voter is not None else 0

    def _refusal(self, key: bytes, hello: VoterHello) -> Refused | None:
        context = self.context
        if hello.wire_version != limits.WIRE_VERSION:
            text = f"we speak wire version {limits.WIRE_VERSION}, you speak {hello.wire_version}"
            return Refused("wire-version", text, None)
        if hello.project != context.setup.project:
            return Refused("wrong-project", "this voter serves another project", None)
        words = self._other_disk(key, hello)
        if words:
            return Refused("disk", words, None)
        words = self._stale_disk(key, hello)
        return Refused(STALE_DISK, words, None, hello.nonce) if words else None

    def _other_disk(self, key: bytes, hello: VoterHello) -> str:
        """Words for a disk that is not the one of before, or nothing."""
        context = self.context
        pin = context.ballot.pin(key)
        generation = self._generation(key)
        if not context.log.is_known_disk(key, generation, hello.disk):
            return "the swarm knows another disk for this voter: the owner can readmit its key"
        if pin is None or pin.generation < generation:
            return ""
        if pin.disk != hello.disk:
            return "this voter used another disk before: the owner can readmit its key"
        return ""

    def _stale_disk(self, key: bytes, hello: VoterHello) -> str:
        """Words for a disk that forgot what it did, or that is in use twice, or nothing."""
        context, peer = self.context, self.context.peers[key]
        pin = context.ballot.pin(key)
        if pin is None or pin.disk != hello.disk:
            return ""
        is_same_epoch = hello.epoch == context.epoch
        if is_same_epoch and peer.disk == hello.disk and hello.stored < peer.kept:
            return "this voter's disk is an old copy: the owner can readmit its key"
        if hello.boot < pin.boot:
            return "this voter's disk is an old copy: the owner can readmit its key"
        if hello.boot == pin.boot and hello.nonce != pin.nonce:
            return "this voter's key and disk are in use on two hosts: stop one of them"
        return ""
