"""TLS listener for the HTTP servers in the lab and in tests."""

import socket
import ssl
from pathlib import Path
from typing import Any


class _Accepted(ssl.SSLSocket):
    def recv(self, *arguments: Any, **more: Any) -> bytes:
        """Close the socket when it is reset before the handshake.

        CPython reads from an accepted socket before the handshake, and leaves it open when that
        fails.
        """
        try:
            return super().recv(*arguments, **more)
        except ConnectionResetError:
            if self.version() is None:
                self.close()
            raise


def by_tls(listener: socket.socket, chain: Path | str, key: Path | str) -> ssl.SSLSocket:
    """Return the listener, with TLS for each accepted connection.

    Args:
        listener: Listening socket.
        chain: Path to the certificate chain (PEM).
        key: Path to the key (PEM).
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.sslsocket_class = _Accepted
    context.load_cert_chain(chain, key)
    return context.wrap_socket(listener, server_side=True)
