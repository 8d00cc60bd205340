"""A stream that a stranger carries: TLS 1.3 from end to end, so that the relay sees only noise.

Each side proves its host key: it presents a certificate that the key signed for itself, and the
other side takes no other one. The stream below may be anything that reads and writes bytes.
"""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import InitVar, dataclass, field
from typing import Final

from host.files.keystore import Identity
from host.network import certificates
from host.network.streams import ByteSink, ByteSource
from protocol.errors import MalformedMessage, PeerUnreachable
from protocol.ids import NodeKey, short

HANDSHAKE_S: Final = 15.0
"""Three round trips through a relay, and two busy event loops."""

READ_BYTES: Final = 64 << 10
PLAIN_BYTES_MAX: Final = 256 << 10
"""Read ahead of what was asked for; more waits in the stream below."""


@dataclass(eq=False)
class RelayTlsStream:
    """Reader and writer in one, as far as a `Wire` uses them."""

    _reader: ByteSource
    _writer: ByteSink
    context: InitVar[ssl.SSLContext]
    is_server: InitVar[bool]
    _incoming: ssl.MemoryBIO = field(default_factory=ssl.MemoryBIO)
    _outgoing: ssl.MemoryBIO = field(default_factory=ssl.MemoryBIO)
    _tls: ssl.SSLObject = field(init=False)
    _plain: bytearray = field(default_factory=bytearray)
    _is_ended: bool = False

    def __post_init__(self, context: ssl.SSLContext, is_server: bool) -> None:
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=is_server)

    @property
    def transport(self) -> asyncio.WriteTransport:
        """What `abort` is called on."""
        return self._writer.transport

    async def shake_hands(self) -> None:
        """Until both sides have proven their keys. ssl.SSLError if one did not."""
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                await self._flush()
                await self._feed()
            else:
                await self._flush()
                return

    def certificate(self) -> bytes:
        """What the other side presented, DER; empty before the handshake."""
        return self._tls.getpeercert(binary_form=True) or b""

    async def read(self, size_max: int) -> bytes:
        """The next bytes, at most `size_max`; empty at the end. Cancelled, it has taken nothing."""
        while not self._plain and not self._is_ended:
            await self._more()
        return self._take(min(size_max, len(self._plain)))

    async def readexactly(self, size: int) -> bytes:
        """Exactly so many bytes; asyncio.IncompleteReadError where the stream ends before."""
        while len(self._plain) < size:
            if self._is_ended:
                partial = self._take(len(self._plain))
                raise asyncio.IncompleteReadError(partial, size)
            await self._more()
        return self._take(size)

    def write(self, part: bytes | memoryview) -> None:
        """Queues bytes; `drain` waits for room."""
        if len(part):
            self._tls.write(part)
            self._writer.write(self._outgoing.read())

    async def drain(self) -> None:
        """Waits until the stream below has room."""
        await self._writer.drain()

    def close(self) -> None:
        """Orderly end: what was written still goes out."""
        self._writer.close()

    def _take(self, size: int) -> bytes:
        taken = bytes(self._plain[:size])
        del self._plain[:size]
        return taken

    async def _more(self) -> None:
        """Adds to `_plain`, or notes the end."""
        try:
            part = self._tls.read(PLAIN_BYTES_MAX)
        except ssl.SSLWantReadError:
            await self._feed()
        except ssl.SSLZeroReturnError:
            self._is_ended = True
        except ssl.SSLError as error:
            if self._incoming.eof:
                self._is_ended = True  # It says what is missing; lengths and digests say it too.
                return
            raise ConnectionResetError(f"what came is not what was sealed: {error}") from error
        else:
            self._plain += part
            self._is_ended = not part
        if self._outgoing.pending:
            self._writer.write(self._outgoing.read())

    async def _feed(self) -> None:
        part = await self._reader.read(READ_BYTES)
        if part:
            self._incoming.write(part)
        elif self._incoming.eof:
            raise ConnectionResetError("the stream ended in the middle of a handshake")
        else:
            self._incoming.write_eof()

    async def _flush(self) -> None:
        if self._outgoing.pending:
            self._writer.write(self._outgoing.read())
            await self._writer.drain()


class RelayTls:
    """Makes sealed streams in the name of one host."""

    def __init__(self, identity: Identity) -> None:
        self._identity = identity
        self._certificate: bytes | None = None

    async def seal(
        self,
        reader: ByteSource,
        writer: ByteSink,
        *,
        peer: NodeKey,
        is_server: bool,
    ) -> RelayTlsStream:
        """The stream, sealed with `peer` and nobody else.

        Raises PeerUnreachable where it ends or takes too long, MalformedMessage where the other
        side cannot prove that it is `peer`.
        """
        own = self._own_certificate()
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                writer.write(len(own).to_bytes(2, "big") + own)
                await writer.drain()
                size = int.from_bytes(await reader.readexactly(2), "big")
                if not 0 < size <= certificates.CERTIFICATE_BYTES_MAX:
                    raise MalformedMessage(f"a certificate of {size} bytes")
                theirs = await reader.readexactly(size)
                if certificates.key_of_certificate(theirs) != peer:
                    raise MalformedMessage(f"the certificate of {short(peer)} is for another key")
                sealed = RelayTlsStream(
                    reader, writer, self._context(theirs, is_server), is_server=is_server
                )
                await sealed.shake_hands()
        except ssl.SSLError as error:
            raise MalformedMessage(f"{short(peer)} does not prove its key: {error}") from error
        except (OSError, EOFError, TimeoutError) as error:
            text = str(error) or "it took too long"
            raise PeerUnreachable(f"no sealed stream with {short(peer)}: {text}") from error
        if sealed.certificate() != theirs:
            raise MalformedMessage(f"{short(peer)} proved another certificate than it showed")
        return sealed

    def _context(self, theirs: bytes, is_server: bool) -> ssl.SSLContext:
        own = self._own_certificate()
        context = certificates.tls_context(self._identity, own, is_server=is_server)
        context.load_verify_locations(cadata=theirs)
        return context

    def _own_certificate(self) -> bytes:
        if self._certificate is None:
            self._certificate = certificates.certificate(self._identity)
        return self._certificate
