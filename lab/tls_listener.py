"""A listening socket that takes TLS connections, for the HTTP servers of the lab and the tests."""

import socket
import ssl
from pathlib import Path
from typing import Any


class _Accepted(ssl.SSLSocket):
    def recv(self, *arguments: Any, **more: Any) -> bytes:
        """One that is reset as it is accepted is closed: CPython reads of it before any
        handshake, and forgets it open where that fails."""
        try:
            return super().recv(*arguments, **more)
        except ConnectionResetError:
            if self.version() is None:
                self.close()
            raise


def by_tls(listener: socket.socket, chain: Path | str, key: Path | str) -> ssl.SSLSocket:
    """The listener, whose connections are TLS once they are accepted."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.sslsocket_class = _Accepted
    context.load_cert_chain(chain, key)
    return context.wrap_socket(listener, server_side=True)
