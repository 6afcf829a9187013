"""Tests that no reader accepts ambiguous JSON from another host or from a user's file."""

import json
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, Final

import httpx
import pytest

from broadside.agent import canary_sender
from broadside.agent.decide import read_job
from broadside.coordinator.agent_gateway.agent_permissions import AgentPermissions
from broadside.coordinator.auth import entra
from broadside.coordinator.cli.api_client import ApiClient
from broadside.coordinator.cli.api_errors import ApiError
from broadside.coordinator.cli.operations import clean_json
from broadside.coordinator.cli.range_checks import last_status
from broadside.coordinator.device.resource_manager import object_of
from broadside.coordinator.imports import BadFile
from broadside.coordinator.imports.metric_json import parse_metric_json
from broadside.coordinator.runs.dead_letters import read_dead_job
from broadside.exchange.azure.answer_check import code_in_body
from broadside.exchange.azure.identity import _LastAnswer
from broadside.exchange.engines.connections import parse_line
from broadside.exchange.engines.http import read_result
from broadside.exchange.engines.iperf3_text import read_any
from broadside.exchange.http.coordinator_client import CoordinatorClient
from broadside.exchange.http.credential import AgentCredential
from broadside.exchange.messages import CanaryOutcome, Job, Role
from broadside.exchange.ports import DeadLetter, Delivery, ExchangeUnavailable
from tests.unit.agent.jobs import INSTANT_AT, make_job

# Members that make an object of a valid text ambiguous or too large.
HOSTILE: Final = {
    "duplicate": b'"zz":1,"zz":1',
    "duplicate below": b'"zz":[{"a":1,"a":2}]',
    "NaN": b'"zz":NaN',
    "Infinity": b'"zz":[-Infinity]',
    "not UTF-8": b'"zz":"\xff"',
    "nested": b'"zz":' + b"[" * 33 + b"]" * 33,
    "nested without end": b'"zz":' + b"[" * 50_000,
    "long number": b'"zz":' + b"9" * 5_000,
}
METRIC: Final = {
    "name": {"value": "Throughput"},
    "unit": "BitsPerSecond",
    "timeseries": [{"data": [{"timeStamp": "2025-11-25T12:00:00Z", "average": 1}]}],
}
VEGETA: Final = {"timestamp": "2026-11-20T12:00:01Z", "code": 200, "latency": 1, "error": ""}

Reader = Callable[[bytes, pytest.MonkeyPatch], Awaitable[bool]]
READERS: Final[dict[str, tuple[Any, Reader]]] = {}


def reader(valid: object) -> Callable[[Reader], Reader]:
    """Register a function that returns whether a text is accepted, with a valid document."""

    def register(read: Reader) -> Reader:
        READERS[read.__name__] = valid, read
        return read

    return register


def text(body: bytes) -> str:
    """Return the text that a library or a file reader has decoded."""
    return body.decode(errors="surrogateescape")


def client(body: bytes, status: int = 200) -> httpx.AsyncClient:
    transport = httpx.MockTransport(lambda _: httpx.Response(status, content=body))
    return httpx.AsyncClient(transport=transport, base_url="http://c")


@reader({"signed_in": True, "role": "operator"})
async def api_answer(body: bytes, patch: pytest.MonkeyPatch) -> bool:
    try:
        return await ApiClient(client(body)).is_operator()
    except ApiError as error:
        assert "unexpected response" in str(error)
        return False


@reader({"detail": "no such run"})
async def api_error(body: bytes, patch: pytest.MonkeyPatch) -> bool:
    with pytest.raises(ApiError) as caught:
        await ApiClient(client(body, 404)).is_operator()
    return str(caught.value) == "no such run"


@reader({"text": "\x1b"})
async def api_event(body: bytes, patch: pytest.MonkeyPatch) -> bool:
    return "\\u" not in clean_json(text(body))


@reader([{"ok": 1}])
async def coordinator_answer(body: bytes, patch: pytest.MonkeyPatch) -> bool:
    patch.setattr("broadside.exchange.http.coordinator_client.LINGER_S", 0)
    fields: Any = {
        "coordinators": ("http://c",),
        "agent_id": "c-1",
        "role": "client",
        "secret": "x",
    }
    agent = CoordinatorClient(
        AgentCredential(authority=None, issued_s=0.0, **fields),
        _client=client(body),
    )
    try:
        return bool(await agent.call("get") == 1)
    except ExchangeUnavailable:
        return False


@reader({"keys": [{"kty": "oct", "k": "eA", "kid": "1", "alg": "HS256"}]})
async def signing_keys(body: bytes, patch: pytest.MonkeyPatch) -> bool:
    async def ask(_: object, method: str, url: str, *__: object, **___: object) -> httpx.Response:
        return httpx.Response(200, content=body, request=httpx.Request(method, url))

    patch.setattr(entra, "ask", ask)
    try:
        return "1" in await entra._read_keys("http://entra")
    except ValueError:
        return False


@reader({"ports": {}, canary_sender.FORBIDDEN: [], canary_sender.ALLOWED: [1]})
async def canary_answer(body: bytes, patch: pytest.MonkeyPatch) -> bool:
    canary = {"consent": "Test", "signatures": ["azure-idps"]}
    sender = canary_sender.CanarySender(make_job(traffic={"canary": canary}), None)

    async def send(*_: object) -> canary_sender.CanaryReply:
        return canary_sender.CanaryReply(CanaryOutcome.ANSWERED, 0.1, body)

    patch.setattr(canary_sender, "send", send)
    try:
        await sender._ask()
    except ValueError:
        return False
    return sender._received is not None


@reader({"error": {"code": "Throttled"}})
async def resource_manager(body: bytes, patch: pytest.MonkeyPatch) -> bool:
    return bool(object_of(body))


@reader({"error": {"code": "Busy"}})
async def storage_error(body: bytes, patch: pytest.MonkeyPatch) -> bool:
    return code_in_body(SimpleNamespace(text=lambda: text(body))) == "Busy"


@reader({"error": "gone"})
async def metadata_service(body: bytes, patch: pytest.MonkeyPatch) -> bool:
    request = SimpleNamespace(url="http://169.254.169.254/metadata/identity/x")
    answer = _LastAnswer()
    response = SimpleNamespace(status_code=400, text=lambda: text(body))
    answer.response(SimpleNamespace(http_request=request, http_response=response))
    return answer.text == "gone"


@reader(METRIC)
async def metric_file(body: bytes, patch: pytest.MonkeyPatch) -> bool:
    try:
        return bool(parse_metric_json(text(body), "m.json").values)
    except BadFile as error:
        assert "export the metric again" in str(error)
        return False


@reader(VEGETA)
async def vegeta_line(body: bytes, patch: pytest.MonkeyPatch) -> bool:
    return read_result(body) is not None


@reader({"second": 1})
async def connections_line(body: bytes, patch: pytest.MonkeyPatch) -> bool:
    return parse_line(body) is not None


JOB: Final = json.loads(make_job().to_json())


@reader(JOB)
async def job_at_agent(body: bytes, patch: pytest.MonkeyPatch) -> bool:
    return isinstance(read_job(body), Job)


@reader(JOB)
async def job_in_dead_letter(body: bytes, patch: pytest.MonkeyPatch) -> bool:
    letter = DeadLetter(sequence_number=1, body=body, message_id="", reason="", description="")
    return read_dead_job(letter) is not None


@reader(JOB)
async def delivered_job(body: bytes, patch: pytest.MonkeyPatch) -> bool:
    recorded: list[Job] = []

    async def record(job: Job, agent_id: str) -> None:
        recorded.append(job)

    delivered: Any = SimpleNamespace(record_delivery=record)
    agent = AgentPermissions(agent_id="a", role=Role.CLIENT, address="", delivered=delivered)
    delivery = Delivery(
        body=body, message_id="", delivery_count=1, locked_until_at=INSTANT_AT, token=None
    )
    await agent.record_delivery(delivery)
    return bool(recorded)


@pytest.mark.parametrize("name", READERS)
async def test_valid_document_is_read(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    valid, read = READERS[name]
    assert await read(json.dumps(valid).encode(), monkeypatch)


# Their texts were decoded before, with replacements.
TEXTS: Final = {"api_event", "metadata_service", "metric_file", "storage_error"}


@pytest.mark.parametrize("case", [*HOSTILE, "duplicate of a known name"])
@pytest.mark.parametrize("name", READERS)
async def test_hostile_document_is_rejected(
    name: str, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if case == "not UTF-8" and name in TEXTS:
        return
    valid, read = READERS[name]
    fields = valid[0] if isinstance(valid, list) else valid
    first = json.dumps(dict([next(iter(fields.items()))]))[1:-1].encode()
    body = json.dumps(valid).encode()
    member = HOSTILE.get(case, first)
    assert not await read(body.replace(b"{", b"{" + member + b",", 1), monkeypatch)


@pytest.mark.parametrize("member", HOSTILE.values(), ids=HOSTILE)
def test_lenient_readers_never_raise(member: bytes) -> None:
    """iperf3 repeats names itself, and a console line can have text after the object."""
    body = b'{"start":{},"end":{},' + member + b"}"
    assert read_any(body).report.error is not None
    last_status("broadside-boot: " + text(body))
