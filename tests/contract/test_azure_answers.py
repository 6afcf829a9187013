"""Test that the real SDKs and the ports map all recorded Azure responses to the right error."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest
from azure.core.exceptions import HttpResponseError

from broadside.coordinator.device.telemetry import source
from broadside.coordinator.device.telemetry.azure_monitor import AzureEntry, AzureMonitorSource
from broadside.exchange import ports
from broadside.exchange.azure.blob_storage import BlobAddress, BlobRaw
from broadside.exchange.azure.table_storage import AzureTable, TableAddress
from broadside.exchange.azure.wire import StorageBounds, code_of
from broadside.exchange.messages import Direction
from broadside.exchange.ports import Entity, ExchangeUnavailable, RawName
from broadside.lab.azure_services import RESOURCE_ID
from tests.contract.recorded_azure import Answer, Answers, RecordedAzure

ANSWERS: Final = Answers(Path(__file__).with_name("azure_answers.toml"))
NAME: Final = RawName(folder="run-1", file="p1")
# Texts in our errors that are used instead of the service code.
ERROR_TEXTS: Final = (
    "one already",
    "changed since",
    "there is no",
    "does not exist",
    "being deleted",
    "come back in",
)
STARTED_AT: Final = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)


def row(key: str) -> Entity:
    return Entity(partition_key="part", row_key=key, properties={"n": 1})


async def scan(table: AzureTable) -> list[Entity]:
    return [entity async for entity in table.scan("part")]


METHODS: Final[dict[str, Callable[[Any], Awaitable[Any]]]] = {
    "insert": lambda table: table.insert(row("a")),
    "upsert": lambda table: table.upsert(row("a")),
    "replace": lambda table: table.replace(row("a"), "W/\"datetime'x'\""),
    "get": lambda table: table.get("part", "a"),
    "delete": lambda table: table.delete("part", "a"),
    "scan": scan,
    "batch": lambda table: table.batch([row(f"{n:03d}") for n in range(100)]),
    "delete_partition": lambda table: table.delete_partition("part"),
    "save": lambda raw: raw.save(NAME, b"text"),
    "read": lambda raw: raw.read(NAME),
    "delete_folder": lambda raw: raw.delete_folder("run-1"),
    "ledger": lambda ledger: ledger.query_bytes(
        STARTED_AT, STARTED_AT + timedelta(minutes=5), Direction.FORWARD
    ),
}
CASES: Final = [
    (name, method_name)
    for name, answer_row in ANSWERS.rows.items()
    for method_name in answer_row["on"].split()
]


@pytest.fixture
async def clients(
    recorded: RecordedAzure, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Callable[[str], Any]]:
    """Yield a function to get the client for a method, with an empty table and container."""
    recorded.create("answers")
    keyed = recorded.connection_string
    quick = StorageBounds(backoff_s=0.001)
    table = AzureTable(TableAddress(table="answers", connection_string=keyed), bounds=quick)
    blobs = BlobAddress(container="answers", connection_string=keyed)
    raw = BlobRaw(blobs, bounds=StorageBounds(backoff_s=0.001))
    management = f"{recorded.url}/management"
    monkeypatch.setenv("BROADSIDE_TEST_TOKEN", "given")
    entry = {
        "type": "azure-monitor",
        "device": "fw",
        "resource_id": RESOURCE_ID,
        "endpoint": management,
        "token": {"env": "BROADSIDE_TEST_TOKEN"},
    }
    ledger = AzureMonitorSource(AzureEntry.model_validate(entry), now=lambda: STARTED_AT)
    of_raw = {"save": raw, "read": raw, "delete_folder": raw, "ledger": ledger}
    yield lambda method_name: of_raw.get(method_name, table)
    recorded.answer_with(None)
    await table.close()
    await raw.close()


@pytest.mark.parametrize(("name", "method_name"), [item for item in CASES if item[1] != "none"])
async def test_recorded_answer_is_mapped_to_the_right_error(
    name: str, method_name: str, recorded: RecordedAzure, clients: Callable[[str], Any]
) -> None:
    answer_row, client = ANSWERS.rows[name], clients(method_name)
    if method_name == "delete_partition":
        await client.batch([row("a"), row("b")])
    recorded.asked.clear()
    recorded.answer_with(ANSWERS.named(name), method="POST" * (method_name == "delete_partition"))
    kind = getattr(ports, answer_row["ours"], None) or getattr(source, answer_row["ours"], None)
    if kind is None:
        assert str(await METHODS[method_name](client)) == answer_row["ours"]
    else:
        with pytest.raises(kind) as caught:
            await METHODS[method_name](client)
        assert type(caught.value) is kind
        assert "\n" not in str(caught.value)
        assert any(
            part in str(caught.value) for part in (answer_row.get("code", ""), *ERROR_TEXTS, name)
        )
        if "index" in answer_row and kind is not ports.ExchangeMisconfigured:
            assert f"row part|{answer_row['index']:03d}" in str(caught.value)
    if method_name not in ("ledger", "delete_partition"):
        assert len(recorded.asked) == answer_row.get("tries", 1)


@pytest.mark.parametrize("name", ANSWERS.rows)
def test_error_code_is_read_from_all_body_formats(name: str) -> None:
    """Test without headers. Responses inside a change set will be read by the SDK."""
    answer_row, answer = ANSWERS.rows[name], ANSWERS.named(name)
    read: Any = SimpleNamespace(
        text=answer.body.decode, headers={}, status_code=answer.status, reason=""
    )
    error = HttpResponseError("refused", response=read)
    if answer_row["shape"] not in ("batch", "metrics"):
        assert code_of(error) == (
            str(answer_row.get("code", answer_row["status"])) if answer.body else None
        )


def test_every_answer_has_its_source() -> None:
    for name, answer_row in ANSWERS.rows.items():
        assert answer_row["seen"], name
        assert {seen.split(" | ")[0] for seen in answer_row["seen"]} <= ANSWERS.repositories.keys()
        assert answer_row["on"] == "none" or {*answer_row["on"].split()} <= METHODS.keys()


# Retries.


@pytest.mark.parametrize(
    "method_name", ["upsert", "batch", "scan", "save", "read", "delete_folder"]
)
async def test_retry_waits_for_the_requested_time(
    method_name: str, recorded: RecordedAzure, clients: Callable[[str], Any]
) -> None:
    recorded.asked.clear()
    recorded.answer_with(busy(1), 2)
    await METHODS[method_name](clients(method_name))
    requested_s = [requested.at_s for requested in recorded.asked if requested.status == 503]
    assert len(requested_s) == 2
    assert recorded.asked[2].at_s - requested_s[0] >= 2, "expected one second before each retry"


@pytest.mark.parametrize("service", ["table", "blob"])
async def test_retry_does_not_wait_longer_than_its_limit(
    service: str, recorded: RecordedAzure
) -> None:
    recorded.create("answers")
    keyed = recorded.connection_string
    client: AzureTable | BlobRaw
    if service == "table":
        address = TableAddress(table="answers", connection_string=keyed)
        client = AzureTable(address, bounds=StorageBounds(call_s=1))
    else:
        blobs = BlobAddress(container="answers", connection_string=keyed)
        client = BlobRaw(blobs, bounds=StorageBounds(call_s=1))
    recorded.answer_with(busy(3600))
    started_s = time.monotonic()
    async with asyncio.timeout(60):
        with pytest.raises(ExchangeUnavailable):
            await METHODS["upsert" if service == "table" else "save"](client)
    assert time.monotonic() - started_s >= 1
    recorded.answer_with(None)
    await client.close()


def busy(after_s: int) -> Answer:
    """Return status 503 from the Table service with a Retry-After header."""
    answer_row = ANSWERS.named("a partition over its 2,000 entities a second")
    return Answer(
        status=503,
        headers={**answer_row.headers, "Retry-After": str(after_s)},
        body=answer_row.body,
    )
