"""The direct channel's TLS 1.3: both ends show a certificate that their Ed25519 key has signed.

Each side learns the other's certificate over the network engine, which has proven the same key, and
trusts that one alone.
"""

from __future__ import annotations

import ssl
from typing import Final

from host.files.keystore import Identity
from host.network.certificates import certificate, key_of_certificate, tls_context
from protocol.errors import MalformedMessage
from protocol.ids import NodeKey

TRUSTED_MAX: Final = 4096
"""Certificates in one store, which cannot forget single ones: after so many it is made anew."""

ALPN: Final = "shoal-bulk/1"


class Contexts:
    """What the TLS of one host needs: its key, and the certificates of hosts it was told of."""

    def __init__(self, identity: Identity) -> None:
        self.certificate = certificate(identity)
        self._identity = identity
        self._trusted: set[bytes] = set()
        self.server = self._context(is_server=True)
        self.client = self._context(is_server=False)

    def trust(self, der: bytes) -> None:
        """From now on the holder of this certificate's key may connect, and be connected to."""
        if der in self._trusted:
            return
        if len(self._trusted) >= TRUSTED_MAX:
            self._trusted.clear()
            self.server = self._context(is_server=True)
            self.client = self._context(is_server=False)
        self.server.load_verify_locations(cadata=der)
        self.client.load_verify_locations(cadata=der)
        self._trusted.add(der)

    def _context(self, *, is_server: bool) -> ssl.SSLContext:
        context = tls_context(self._identity, self.certificate, is_server=is_server)
        context.set_alpn_protocols([ALPN])
        return context


def key_of_connection(tls: ssl.SSLSocket) -> NodeKey:
    """The key that the other end has proven. Raises MalformedMessage for another protocol."""
    der = tls.getpeercert(binary_form=True)
    if der is None or tls.version() != "TLSv1.3" or tls.selected_alpn_protocol() != ALPN:
        raise MalformedMessage("the other end does not speak the direct channel")
    return key_of_certificate(der)
