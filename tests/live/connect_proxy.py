"""Forward proxy that supports only CONNECT (RFC 9110, 9.3.6).

Usage: ``python -m tests.live.connect_proxy ADDRESS PORT``. The proxy prints one line for each
tunnel that it opens.
"""

import asyncio
import sys
from contextlib import suppress


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    writer.close()


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    method, place, _ = head.split(maxsplit=2)
    host, _, port = place.decode().rpartition(":")
    if method != b"CONNECT":
        writer.write(b"HTTP/1.1 405 Method Not Allowed\r\nContent-Length: 0\r\n\r\n")
        writer.close()
        return
    try:
        onward = await asyncio.open_connection(host.strip("[]"), int(port))
    except OSError:
        writer.write(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n")
        writer.close()
        return
    sys.stdout.write(f"CONNECT {place.decode()}\n")
    sys.stdout.flush()
    writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
    await asyncio.gather(pump(reader, onward[1]), pump(onward[0], writer))


async def main() -> None:
    server = await asyncio.start_server(serve, sys.argv[1], int(sys.argv[2]))
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
