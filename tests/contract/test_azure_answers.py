"""Test that the real SDKs and our ports map every recorded Azure response to the right error."""

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
# The texts of our errors that replace the code of the service.
WORDS: Final = ("one already", "changed since", "there is no", "does not exist", "being deleted",
                "come back in")  # fmt: skip
BEGUN: Final = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)


def row(key: str) -> Entity:
    return Entity(partition_key="part", row_key=key, properties={"n": 1})


async def scan(table: AzureTable) -> list[Entity]:
    return [entity async for entity in table.scan("part")]


VERBS: Final[dict[str, Callable[[Any], Awaitable[Any]]]] = {
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
        BEGUN, BEGUN + timedelta(minutes=5), Direction.FORWARD
    ),
}
MET: Final = [(name, verb) for name, told in ANSWERS.rows.items() for verb in told["on"].split()]


@pytest.fixture
async def clients(
    recorded: RecordedAzure, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Callable[[str], Any]]:
    """Yield a function that returns the client for a verb, with an empty table and container."""
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
    ledger = AzureMonitorSource(AzureEntry.model_validate(entry), now=lambda: BEGUN)
    of_raw = {"save": raw, "read": raw, "delete_folder": raw, "ledger": ledger}
    yield lambda verb: of_raw.get(verb, table)
    recorded.answer_with(None)
    await table.close()
    await raw.close()


@pytest.mark.parametrize(("name", "verb"), [met for met in MET if met[1] != "none"])
async def test_an_answer_is_the_right_error(
    name: str, verb: str, recorded: RecordedAzure, clients: Callable[[str], Any]
) -> None:
    told, client = ANSWERS.rows[name], clients(verb)
    if verb == "delete_partition":
        await client.batch([row("a"), row("b")])
    recorded.asked.clear()
    recorded.answer_with(ANSWERS.named(name), method="POST" * (verb == "delete_partition"))
    kind = getattr(ports, told["ours"], None) or getattr(source, told["ours"], None)
    if kind is None:
        assert str(await VERBS[verb](client)) == told["ours"]
    else:
        with pytest.raises(kind) as caught:
            await VERBS[verb](client)
        assert type(caught.value) is kind
        assert "\n" not in str(caught.value)
        assert any(part in str(caught.value) for part in (told.get("code", ""), *WORDS, name))
        if "index" in told and kind is not ports.ExchangeMisconfigured:
            assert f"row part|{told['index']:03d}" in str(caught.value)
    if verb not in ("ledger", "delete_partition"):
        assert len(recorded.asked) == told.get("tries", 1)


@pytest.mark.parametrize("name", ANSWERS.rows)
def test_the_code_is_read_from_every_form_of_body(name: str) -> None:
    """Test without headers. Responses inside a change set are read by the SDK."""
    told, answer = ANSWERS.rows[name], ANSWERS.named(name)
    read: Any = SimpleNamespace(
        text=answer.body.decode, headers={}, status_code=answer.status, reason=""
    )
    error = HttpResponseError("refused", response=read)
    if told["shape"] not in ("batch", "metrics"):
        assert code_of(error) == (str(told.get("code", told["status"])) if answer.body else None)


def test_every_row_names_where_it_was_seen() -> None:
    for name, told in ANSWERS.rows.items():
        assert told["seen"], name
        assert {seen.split(" | ")[0] for seen in told["seen"]} <= ANSWERS.repositories.keys()
        assert told["on"] == "none" or {*told["on"].split()} <= VERBS.keys()


# Retries ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["upsert", "batch", "scan", "save", "read", "delete_folder"])
async def test_a_retry_waits_as_long_as_it_is_told(
    verb: str, recorded: RecordedAzure, clients: Callable[[str], Any]
) -> None:
    recorded.asked.clear()
    recorded.answer_with(busy(1), 2)
    await VERBS[verb](clients(verb))
    requested_s = [requested.at_s for requested in recorded.asked if requested.status == 503]
    assert len(requested_s) == 2
    assert recorded.asked[2].at_s - requested_s[0] >= 2, "a second before each"


@pytest.mark.parametrize("service", ["table", "blob"])
async def test_a_retry_does_not_wait_beyond_its_bounds(
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
    begun_s = time.monotonic()
    async with asyncio.timeout(60):
        with pytest.raises(ExchangeUnavailable):
            await VERBS["upsert" if service == "table" else "save"](client)
    assert time.monotonic() - begun_s >= 1
    recorded.answer_with(None)
    await client.close()


def busy(after_s: int) -> Answer:
    """Return status 503 of the Table service with a Retry-After header."""
    told = ANSWERS.named("a partition over its 2,000 entities a second")
    return Answer(status=503, headers={**told.headers, "Retry-After": str(after_s)}, body=told.body)
