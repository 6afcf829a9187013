"""Attacks on the wire between agents of other hosts and their coordinator: over real TLS."""

import asyncio
import atexit
import gzip
import socket
import ssl
import tempfile
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cache
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Final

from coordinator.hosts.authority import own_authority
from coordinator.hosts.enrolment import Enrolments
from exchange.fabric import FabricSettings, open_fabric
from exchange.http.coordinator_link import Link
from exchange.http.credential import Credential
from exchange.http.joining import join, new_code
from exchange.messages import Role
from exchange.ports import ExchangeError, ExchangeMisconfigured
from lab.serving import Serving
from lab.tls_listener import by_tls
from tests.attack import Attack

WIRE: Final = "wire to agents' port"


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening:
    """A coordinator at work."""

    at: str
    folder: Path

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def code(self) -> str:
        """For one client."""

        async def made() -> str:
            now = datetime.now(UTC)
            code, secret = new_code(own_authority(self.data, now).authority)
            fabric = open_fabric(FabricSettings(data_dir=self.data))
            until = now + timedelta(hours=1)
            try:
                known = Enrolments(fabric.private)
                await known.add_code(secret, Role.CLIENT, 1, by="x", now=now, expires_at=until)
            finally:
                await fabric.close()
            return code

        return asyncio.run(made())

    def join(self, code: str, name: str) -> Credential:
        path = self.folder / f"{name}.json"
        return asyncio.run(join(code, (self.at,), name, "client", path))


@contextmanager
def listening() -> Iterator[Listening]:
    with tempfile.TemporaryDirectory(prefix="broadside-attack-") as folder:
        settings = {
            "BROADSIDE_DATA_DIR": f"{folder}/data",
            "BROADSIDE_HOSTS_LISTEN": "127.0.0.1:0",
        }
        with Serving(settings, Path(folder)) as served:
            said = served.log_path.read_text()
            at = said.split("agents of other hosts join at ")[1].split()[0]
            yield Listening(at=at, folder=Path(folder))


@cache
def true_one() -> Listening:
    stack = ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(listening())


async def _ping(credential: Credential) -> None:
    link = Link(credential)
    try:
        await link.call("ping")
    finally:
        await link.close()


def _false_coordinator() -> str:
    """A listener with an authority of its own, where a coordinator is looked for."""
    true = true_one()
    agent = true.join(true.code(), "c1")
    with listening() as false:
        try:
            false.join(true.code(), "c2")
        except ExchangeMisconfigured as error:
            stopped = str(error).partition(": ")[2]
        else:
            raise AssertionError("an agent joined another's coordinator")
        try:
            asyncio.run(_ping(replace(agent, coordinators=(false.at,), path=None)))
        except ExchangeError:
            return f"{stopped}; who is enrolled does not trust it either"
    raise AssertionError("an agent went over to another coordinator")


def _flooding(packed: bool) -> Callable[[], str]:
    """Somebody in between, whom a joining agent asks for the authority: an answer without end."""

    def attack() -> str:
        sent_bytes = 0
        part = gzip.compress(bytes(10**8)) if packed else bytes(2**16)

        class Flood(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                nonlocal sent_bytes
                self.send_response(200)
                if packed:
                    self.send_header("Content-Encoding", "gzip")
                self.end_headers()
                with suppress(OSError):
                    for _ in range(1 if packed else 2_000):  # 130 MB
                        self.wfile.write(part)
                        sent_bytes += len(part)

            def log_message(self, *_: object) -> None:
                pass

        with tempfile.TemporaryDirectory() as folder:
            shown = own_authority(Path(folder), datetime.now(UTC))
            server = HTTPServer(("127.0.0.1", 0), Flood)
            server.socket = by_tls(server.socket, shown.certificate_file, shown.key_file)
            threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
            code, _ = new_code(shown.authority)
            at = (f"https://127.0.0.1:{server.server_port}",)
            tracemalloc.start()
            try:
                asyncio.run(join(code, at, "c1", "client", Path(folder) / "c1.json"))
            except ExchangeError as error:
                stopped = str(error).partition(": ")[2]
            else:
                raise AssertionError("it joined")
            finally:
                _, peak_bytes = tracemalloc.get_traced_memory()
                tracemalloc.stop()
                server.shutdown()
                server.server_close()
        assert peak_bytes < 20_000_000, f"{peak_bytes} bytes were taken"
        assert sent_bytes < 20_000_000, f"{sent_bytes} bytes were read"
        return stopped

    return attack


def _two_in_one() -> str:
    """A request in another's body, on whose end two readers of HTTP may differ (RFC 9112, 11.2)."""
    host, _, port = true_one().at.removeprefix("https://").rpartition(":")
    unproven = ssl.create_default_context()
    unproven.check_hostname = False
    unproven.verify_mode = ssl.CERT_NONE
    hidden = b"GET /v1/exchange/authority HTTP/1.1\r\nHost: x\r\n\r\n"
    outer = (
        b"POST /v1/exchange/operations HTTP/1.1\r\nHost: x\r\nContent-Length: "
        + str(len(hidden) + 5).encode()
        + b"\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    )
    said = b""
    with (
        socket.create_connection((host, int(port)), 20) as plain,
        unproven.wrap_socket(plain, server_hostname=host) as wire,
    ):
        wire.sendall(outer + hidden)
        wire.settimeout(5)
        with suppress(OSError):
            while part := wire.recv(65_536):
                said += part
    assert b"CERTIFICATE" not in said, said[:200]
    return said.partition(b"\r\n")[0].decode() or "the connection was closed"


ATTACKS: Final = (
    Attack("a false coordinator", WIRE, "a code, and an agent's secret", _false_coordinator),
    Attack("an authority without end", WIRE, "a joining agent's memory", _flooding(False)),
    Attack("an authority that unfolds", WIRE, "a joining agent's memory", _flooding(True)),
    Attack("a request within a request", WIRE, "two lengths of one body", _two_in_one),
)
