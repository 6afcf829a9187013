"""Attacks on the TLS connection between remote agents and their coordinator."""

import asyncio
import gzip
import socket
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cache, partial
from pathlib import Path
from typing import Final

from broadside.coordinator.agent_gateway.certificate_authority import load_authority
from broadside.coordinator.agent_gateway.enrolment import Enrolments, JoinTerms
from broadside.exchange.fabric import FabricSettings, open_fabric
from broadside.exchange.http.coordinator_client import CoordinatorClient
from broadside.exchange.http.credential import AgentCredential
from broadside.exchange.http.joining import join, new_code
from broadside.exchange.messages import Role
from broadside.exchange.outage_log import utc_now
from broadside.exchange.ports import ExchangeError, ExchangeMisconfigured
from broadside.lab.serving import ServeProcess
from tests.attack import Attack, lasting, memory_within, refusal
from tests.loopback_server import answering

WIRE: Final = "wire to agents' port"
# Limit on the bytes of an answer, and on the memory used for it.
READ_MAX_BYTES: Final = 20_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening:
    """Running coordinator with its agents' port."""

    at: str
    folder: Path
    api: str
    pid: int

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def code(self) -> str:
        """Return a join code for one client."""

        async def made() -> str:
            now = utc_now()
            code, secret = new_code(load_authority(self.data, now).authority)
            fabric = open_fabric(FabricSettings(data_dir=self.data))
            until = now + timedelta(hours=1)
            try:
                known = Enrolments(fabric.private)
                await known.add_code(secret, JoinTerms(Role.CLIENT, 1, until), by="x", now=now)
            finally:
                await fabric.close()
            return code

        return asyncio.run(made())

    def join(self, code: str, name: str) -> AgentCredential:
        path = self.folder / f"{name}.json"
        return asyncio.run(join(code, (self.at,), name, "client", path))


@contextmanager
def listening() -> Iterator[Listening]:
    with tempfile.TemporaryDirectory(prefix="broadside-attack-") as folder:
        settings = {
            "BROADSIDE_DATA_DIR": f"{folder}/data",
            "BROADSIDE_HOSTS_LISTEN": "127.0.0.1:0",
        }
        with ServeProcess(settings, Path(folder)) as served:
            text = served.log_path.read_text()
            at = text.split("agents on other hosts enroll at ")[1].split()[0]
            yield Listening(at=at, folder=Path(folder), api=served.url, pid=served.pid)


@cache
def true_one() -> Listening:
    return lasting(listening())


@contextmanager
def unproven_wire(timeout_s: float) -> Iterator[ssl.SSLSocket]:
    """Open a connection to the agents' port without verification of the certificate."""
    host, _, port = true_one().at.removeprefix("https://").rpartition(":")
    unproven = ssl.create_default_context()
    unproven.check_hostname = False
    unproven.verify_mode = ssl.CERT_NONE
    with (
        socket.create_connection((host, int(port)), timeout_s) as plain,
        unproven.wrap_socket(plain, server_hostname=host) as wire,
    ):
        yield wire


async def _ping(credential: AgentCredential) -> None:
    link = CoordinatorClient(credential)
    try:
        await link.call("ping")
    finally:
        await link.close()


def _false_coordinator() -> str:
    """Listen at the address of a coordinator using another certificate authority."""
    true = true_one()
    agent = true.join(true.code(), "c1")
    with listening() as false:
        stopped = refusal(
            ExchangeMisconfigured,
            lambda: false.join(true.code(), "c2"),
            "an agent joined another's coordinator",
        ).partition(": ")[2]
        moved = replace(agent, coordinators=(false.at,), path=None)
        refusal(
            ExchangeError,
            lambda: asyncio.run(_ping(moved)),
            "an agent went over to another coordinator",
        )
    return f"{stopped}; enrolled agents do not trust it either"


def _flooding(packed: bool) -> str:
    """Answer the authority request of a joining agent without end, as a man in the middle."""
    sent_bytes = 0
    part = gzip.compress(bytes(10**8)) if packed else bytes(2**16)

    def flood() -> Iterator[bytes]:
        nonlocal sent_bytes
        # The unpacked parts are 130 MB together.
        for _ in range(1 if packed else 2_000):
            yield part
            sent_bytes += len(part)

    with tempfile.TemporaryDirectory() as folder:
        shown = load_authority(Path(folder), utc_now())
        code, _ = new_code(shown.authority)
        local = (shown.certificate_file, shown.key_file)
        headers = {"Content-Encoding": "gzip"} if packed else {}
        with answering(flood, headers, tls=local) as url, memory_within(READ_MAX_BYTES):
            text = join(code, (url,), "c1", "client", Path(folder) / "c1.json")
            message = refusal(ExchangeError, lambda: asyncio.run(text), "it joined")
    assert sent_bytes < READ_MAX_BYTES, f"{sent_bytes} bytes were read"
    return message.partition(": ")[2]


def _two_in_one() -> str:
    """Send a request in the body of another, because HTTP readers can disagree (RFC 9112, 11.2)."""
    hidden = b"GET /v1/exchange/authority HTTP/1.1\r\nHost: x\r\n\r\n"
    outer = (
        b"POST /v1/exchange/operations HTTP/1.1\r\nHost: x\r\nContent-Length: "
        + str(len(hidden) + 5).encode()
        + b"\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    )
    text = b""
    with unproven_wire(20) as wire:
        wire.sendall(outer + hidden)
        wire.settimeout(5)
        with suppress(OSError):
            while part := wire.recv(65_536):
                text += part
    assert b"CERTIFICATE" not in text, text[:200]
    return text.partition(b"\r\n")[0].decode() or "the connection was closed"


ATTACKS: Final = (
    Attack("a false coordinator", WIRE, "a code, and an agent's secret", _false_coordinator),
    Attack("an authority without end", WIRE, "a joining agent's memory", partial(_flooding, False)),
    Attack("an authority that unfolds", WIRE, "a joining agent's memory", partial(_flooding, True)),
    Attack("a request within a request", WIRE, "two lengths of one body", _two_in_one),
)
