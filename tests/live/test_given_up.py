"""Test that an abandoned write does not arrive after the network is restored."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from broadside.exchange.azure.table_storage import AzureTable, TableAddress
from broadside.exchange.azure.wire import StorageBounds
from broadside.exchange.ports import Entity, ExchangeUnavailable
from broadside.lab.namespaces import inside, run_batch
from broadside.lab.site import built
from broadside.lab.topology import Batch, Lab, LabHost, LabSpec, switch_namespace
from tests.live.labs import new_prefix

pytestmark = [pytest.mark.live, pytest.mark.needs_root]

PORT = 10002
# The outage should be this much longer than the attempts.
OUT_S = 1.0
# The kernel retransmits after 0.2, 0.4, 0.8, 1.6 and 3.2 s.
BACK_S = 8.0


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with built(LabSpec(pairs_count=1, prefix=new_prefix()), tmp_path) as lab:
        yield lab


@asynccontextmanager
async def service(host: LabHost, seen: list[bytes]) -> AsyncIterator[None]:
    """Accept every request and store its body."""
    writers: list[asyncio.StreamWriter] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                fields = dict(
                    line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:] if line
                )
                seen.append(await reader.readexactly(int(fields.get(b"content-length", 0))))
                writer.write(
                    b'HTTP/1.1 204 No Content\r\netag: W/"1"\r\nx-ms-request-id: 1\r\n\r\n'
                )
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    with inside(host.namespace):
        server = await asyncio.start_server(answer, host.address, PORT)
    try:
        yield
    finally:
        server.close()
        for writer in writers:
            writer.transport.abort()
        # The tasks need this time to end.
        await asyncio.sleep(0.1)


def cable(lab: Lab, host: LabHost, state: str) -> None:
    """Set the switch port for a client up or down."""
    switch = switch_namespace(lab.spec.prefix, host.role)
    line = f"link set dev p{int(host.name[1:])} {state}"
    run_batch(Batch(namespace=switch, tool="ip", lines=(line,)))


async def test_abandoned_write_does_not_arrive_later(lab: Lab) -> None:
    client, server = lab.clients[0], lab.servers[0]
    seen: list[bytes] = []
    endpoint = f"http://{server.address}:{PORT}/lab"
    account = f"AccountName=lab;AccountKey=bGFi;TableEndpoint={endpoint};"
    address = TableAddress(table="lab", connection_string=account)
    bounds = StorageBounds(backoff_s=0.05, attempt_s=1, retries_max_count=4)
    table = AzureTable(address, bounds=bounds)
    async with service(server, seen):
        with inside(client.namespace):
            await table.upsert(Entity(partition_key="p", row_key="r", properties={"n": "first"}))
            cable(lab, client, "down")
            with pytest.raises(ExchangeUnavailable):
                await table.upsert(
                    Entity(partition_key="p", row_key="r", properties={"n": "older"})
                )
            await asyncio.sleep(OUT_S)
            cable(lab, client, "up")
            await table.upsert(Entity(partition_key="p", row_key="r", properties={"n": "newer"}))
            await asyncio.sleep(BACK_S)
            await table.close()
    assert [b"older" in body for body in seen] == [False, False]
