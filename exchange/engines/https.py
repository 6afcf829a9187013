"""HTTP downloads and uploads over TLS.

They are based on :mod:`broadside.exchange.engines.http`, with a certificate at the server.
"""

from typing import ClassVar, Final

from broadside.exchange.engines.http import Http


class Https(Http):
    """Downloads from the pair's server, or uploads to it, with TLS 1.2 or 1.3.

    Bytes are bodies. They exclude the TLS overhead of 29 to 40 bytes for each record of up
    to 16 KiB (0.2 %).
    """

    name: ClassVar[str] = "https"
    title: ClassVar[str] = "HTTP downloads or uploads in TLS"
    needs_certificate: ClassVar[bool] = True
    tls: ClassVar[bool] = True


ENGINE: Final = Https()
