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

from broadside.coordinator.device import resource_manager
from broadside.coordinator.device.capacity import FIREWALL
from broadside.coordinator.device.resource_manager import (
    AzureResource,
    ResourceManagerAccess,
    Waits,
)
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
    "already exists",
    "changed since",
    "not found",
    "does not exist",
    "being deleted",
    "try again in",
    "changed by another client",
    "give it the role",
    "the identity needs",
    "cannot be read",
    "without a JSON object",
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
    "resource_read": lambda resource: asyncio.to_thread(resource.read),
    "resource_change": lambda resource: asyncio.to_thread(
        resource.change, lambda body: {**body, "tags": {"changed": "yes"}}
    ),
    "byte_counter": lambda device_counter: device_counter.query_bytes(
        STARTED_AT, STARTED_AT + timedelta(minutes=5), Direction.FORWARD
    ),
}
CASES: Final = [
    (name, method_name)
    for name, answer_row in ANSWERS.rows.items()
    for method_name in answer_row["on"].split()
]


NOT_COUNTED: Final = ("byte_counter", "delete_partition", "resource_read", "resource_change")


def expected_error(answer_row: dict[str, Any], method_name: str) -> type[Exception] | None:
    """Return the error of a row for a method. A row can have one per part of the product."""
    is_resource = method_name.startswith("resource")
    for name in answer_row["ours"].split():
        for module in (ports, source, resource_manager):
            if kind := getattr(module, name, None):
                exception: type[Exception] = kind
                if (module is resource_manager) is is_resource:
                    return exception
    return None


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
    device_counter = AzureMonitorSource(AzureEntry.model_validate(entry), now=lambda: STARTED_AT)
    waits = Waits(patience_s=1, sleep=lambda _: None)
    access = ResourceManagerAccess(token=lambda: "given", endpoint=management)
    resource = AzureResource(RESOURCE_ID, FIREWALL, access, waits=waits)
    of_raw = {"save": raw, "read": raw, "delete_folder": raw, "byte_counter": device_counter}
    of_raw |= {"resource_read": resource, "resource_change": resource}
    yield lambda method_name: of_raw.get(method_name, table)
    recorded.answer_with(None)
    recorded.resource = None
    await table.close()
    await raw.close()


@pytest.mark.parametrize(("name", "method_name"), [item for item in CASES if item[1] != "none"])
async def test_recorded_answer_is_mapped_to_the_right_error(
    name: str, method_name: str, recorded: RecordedAzure, clients: Callable[[str], Any]
) -> None:
    answer_row, client = ANSWERS.rows[name], clients(method_name)
    if method_name == "delete_partition":
        await client.batch([row("a"), row("b")])
    if method_name == "resource_change":
        recorded.resource = {"id": RESOURCE_ID, "properties": {"provisioningState": "Succeeded"}}
    recorded.asked.clear()
    only = {"delete_partition": "POST", "resource_change": "PUT"}.get(method_name, "")
    recorded.answer_with(ANSWERS.named(name), method=only)
    kind = expected_error(answer_row, method_name)
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
    if method_name not in NOT_COUNTED:
        assert len(recorded.asked) == answer_row.get("tries", 1)


@pytest.mark.parametrize("name", ANSWERS.rows)
def test_error_code_is_read_from_all_body_formats(name: str) -> None:
    """Test without headers. Responses inside a change set will be read by the SDK."""
    answer_row, answer = ANSWERS.rows[name], ANSWERS.named(name)
    read: Any = SimpleNamespace(
        text=answer.body.decode, headers={}, status_code=answer.status, reason=""
    )
    error = HttpResponseError("refused", response=read)
    if answer_row["shape"] not in ("batch", "metrics", "arm-upper", "html"):
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


# Errors inside a change set, and responses of other servers.


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_a_change_set_with_a_passing_error_is_sent_again(
    status: int, recorded: RecordedAzure, clients: Callable[[str], Any]
) -> None:
    """The status of the whole response is 202. After two such errors the rows are written."""
    table = clients("batch")
    recorded.asked.clear()
    recorded.answer_with(inner(status, 1), 2, method="POST")
    await METHODS["batch"](table)
    assert [requested.status for requested in recorded.asked] == [202, 202, 202]
    assert recorded.asked[2].at_s - recorded.asked[0].at_s >= 2, "Retry-After is one second"
    assert len(await scan(table)) == 100


async def test_a_change_set_is_given_up_like_other_requests(
    recorded: RecordedAzure, clients: Callable[[str], Any]
) -> None:
    recorded.asked.clear()
    recorded.answer_with(inner(503), method="POST")
    with pytest.raises(ExchangeUnavailable, match="ServerBusy"):
        await METHODS["batch"](clients("batch"))
    assert len(recorded.asked) == 5


def inner(status: int, after_s: int | None = None) -> Answer:
    """Return a change set with a passing error, optionally with a Retry-After of its own."""
    code = {429: "TooManyRequests", 500: "OperationTimedOut", 503: "ServerBusy"}[status]
    answer = ANSWERS.coded(code, "batch")
    if after_s is None:
        return answer
    line = b"DataServiceVersion: 3.0;\r\n"
    body = answer.body.replace(line, line + f"Retry-After: {after_s}\r\n".encode())
    return Answer(status=answer.status, headers=answer.headers, body=body)


HTML: Final = {"Content-Type": "text/html", "Server": "proxy"}
OWN: Final = {"x-ms-request-id": ""}
JSON: Final = "application/json;odata=minimalmetadata"
OTHER_ROW: Final = (
    b'{"odata.etag":"W/\\"1\\"","PartitionKey":"other","RowKey":"a","Timestamp":'
    b'"2026-11-20T12:00:00Z","n@odata.type":"Edm.Int64","n":"1"}'
)
PARTS: Final = {**OWN, "Content-Type": "multipart/mixed; boundary=batchresponse_1"}
FOREIGN: Final = {
    "a page in place of a row": (404, HTML, b"<html>no such page</html>"),
    "a gateway that knows no path": (404, {"Content-Type": "application/json"}, b'{"detail":"x"}'),
    "an empty 404": (404, {}, b""),
    "a code without a content type": (404, OWN, b'{"odata.error":{"code":"ResourceNotFound"}}'),
    "a portal that wants a sign-in": (200, HTML, b"<html>sign in</html>"),
    "a redirection to it": (302, {"Location": "https://portal.example"}, b""),
    "a proxy's refusal": (403, HTML, b"<html>blocked by policy</html>"),
    "a conflict of another server": (409, HTML, b"<html>conflict</html>"),
    "a precondition of another server": (412, {}, b""),
    "an empty success": (202, {}, b""),
    "a change set without parts": (202, PARTS, b""),
    "a success without its request id": (204, {"ETag": "1"}, b""),
    "a write without an ETag": (204, OWN, b""),
}


@pytest.mark.parametrize(
    "method_name",
    ["insert", "upsert", "replace", "get", "delete", "scan", "batch", "save", "read",
     "delete_folder"],
)  # fmt: skip
@pytest.mark.parametrize("name", FOREIGN)
async def test_a_response_of_another_server_is_no_result(
    name: str, method_name: str, recorded: RecordedAzure, clients: Callable[[str], Any]
) -> None:
    status, headers, body = FOREIGN[name]
    if name == "a write without an ETag" and method_name not in ("insert", "upsert", "replace"):
        pytest.skip("a delete has none")
    if method_name == "delete_folder":
        await clients("save").save(NAME, b"text")
    recorded.asked.clear()
    recorded.answer_with(Answer(status=status, headers=headers, body=body))
    with pytest.raises(ExchangeUnavailable):
        await METHODS[method_name](clients(method_name))
    assert len(recorded.asked) > 1, "it is retried like a broken connection"


@pytest.mark.parametrize("method_name", ["get", "scan", "delete_partition", "next_partition"])
async def test_a_row_of_another_partition_is_no_result(
    method_name: str, recorded: RecordedAzure, clients: Callable[[str], Any]
) -> None:
    page = b'{"value":[' + OTHER_ROW + b"]}"
    body = OTHER_ROW if method_name == "get" else page
    recorded.answer_with(Answer(status=200, headers={**OWN, "Content-Type": JSON}, body=body))
    methods = METHODS | {"next_partition": lambda table: table.next_partition("part", "paru")}
    with pytest.raises(ExchangeUnavailable, match="other"):
        await methods[method_name](clients(method_name))
