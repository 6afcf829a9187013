"""Tests for slow places that need processes, sockets or real time."""

import asyncio
import ssl
import time
from pathlib import Path

import httpx
import pytest

from broadside.coordinator.agent_gateway.certificate_authority import load_authority
from broadside.coordinator.device.resource_manager import (
    AzureResource,
    ResourceManagerAccess,
    ResourceType,
    ResourceUnavailable,
    Waits,
)
from broadside.coordinator.device.telemetry.http_client import bounded_client, get_bounded
from broadside.coordinator.device.telemetry.rest import RestClient, RestEntry
from broadside.coordinator.device.telemetry.source import TelemetryError
from broadside.coordinator.notices.announcer import Announcer, Receiver
from broadside.coordinator.notices.otlp import Otlp
from broadside.coordinator.notices.webhook import Webhook
from broadside.exchange.fabric import Fabric
from broadside.exchange.http.bounded import SENT_BYTES_PER_S, ask, ask_now
from broadside.exchange.outage_log import utc_now
from tests.contract.coordinator.notices.notice_servers import DRIPS, dripping, ends_soon, receiver
from tests.unit.coordinator.device.test_capacity import FIREWALL
from tests.unit.coordinator.notices.test_announcer import SECRET, ended_run

TOTAL_S = 0.6


HEADS = [name for name in DRIPS if name not in ("body", "chunks", "chunk size")]


@pytest.mark.parametrize("name", HEADS)
async def test_slow_receiver_does_not_delay_other_receivers(fabric: Fabric, name: str) -> None:
    _, now = await ended_run(fabric)
    with dripping(name) as slow, receiver(200) as (url, requests):
        places: list[Receiver] = [Otlp(slow, TOTAL_S), Webhook(url, SECRET)]
        announcer = Announcer(fabric.records, places, lambda: now)
        delivery = asyncio.create_task(announcer.deliver_due())
        with ends_soon():
            await delivery
    assert len(requests) == 1
    otlp, webhook = announcer.states
    assert (otlp.waiting_count, otlp.failures_count) == (1, 1)
    assert otlp.last_error is not None
    assert otlp.last_error_at == now
    assert (webhook.waiting_count, webhook.failures_count) == (0, 0)
    assert (webhook.last_error, webhook.last_delivered_at) == (None, now)


@pytest.mark.parametrize("name", HEADS)
async def test_webhook_request_has_a_deadline(fabric: Fabric, name: str) -> None:
    _, now = await ended_run(fabric)
    with dripping(name) as url:
        announcer = Announcer(fabric.records, [Webhook(url, SECRET, TOTAL_S)], lambda: now)
        with ends_soon():
            await announcer.deliver_due()
    [state] = announcer.states
    assert state.last_error == f"no answer within {TOTAL_S:g} s"


@pytest.mark.parametrize("name", DRIPS)
async def test_slow_device_response_times_out(name: str) -> None:
    with dripping(name) as url:
        async with bounded_client({}, None, 15) as client:
            with (
                ends_soon(),
                pytest.raises(TelemetryError, match=r"here: no whole answer within 0\.6 s"),
            ):
                await get_bounded(client, url, 1 << 20, "here", answer_s=TOTAL_S)


async def test_slow_device_response_over_tls_times_out(tmp_path: Path) -> None:
    authority = load_authority(tmp_path, utc_now())
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(authority.certificate_file, authority.key_file)
    for name in ("headers", "chunks"):
        with dripping(name, context) as url:
            async with httpx.AsyncClient(verify=False, timeout=15) as client:  # noqa: S501
                with ends_soon(), pytest.raises(TelemetryError, match="no whole answer"):
                    await get_bounded(client, url, 1 << 20, "here", answer_s=TOTAL_S)


@pytest.mark.parametrize("name", ["headers", "chunks"])
async def test_slow_rest_device_fails_within_the_deadline(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broadside.coordinator.device.telemetry.rest.ANSWER_S", TOTAL_S)
    with dripping(name) as url:
        entry = RestEntry.model_validate(
            {
                "device": "fw",
                "type": "rest",
                "url": url,
                "poll_s": 1,
                "read": [{"quantity": "cpu_ratio", "path": "cpu"}],
            }
        )
        with ends_soon(), pytest.raises(TelemetryError, match="no whole answer"):
            await RestClient(entry).poll()


@pytest.mark.parametrize("name", DRIPS)
def test_slow_resource_manager_times_out(name: str) -> None:
    with dripping(name) as url:
        resource = AzureResource(
            FIREWALL,
            ResourceType(name="firewall", type="azureFirewalls", rights="all"),
            ResourceManagerAccess(token=lambda: "t", endpoint=url),
            waits=Waits(patience_s=0.0, request_s=TOTAL_S),
        )
        with ends_soon(), pytest.raises(ResourceUnavailable, match="no whole answer"):
            resource.read()


@pytest.mark.parametrize("name", DRIPS)
@pytest.mark.parametrize("max_bytes", [1 << 20, None])
async def test_slow_http_response_times_out(name: str, max_bytes: int | None) -> None:
    if max_bytes is None and name not in HEADS:
        # The body will not be read in this case.
        return
    with dripping(name) as url:
        async with httpx.AsyncClient(timeout=15) as client:
            with ends_soon(), pytest.raises(httpx.ReadTimeout, match="no whole answer within"):
                await ask(client, "GET", url, max_bytes, total_s=TOTAL_S)


async def test_upload_time_is_not_part_of_the_response_deadline() -> None:
    """If the link is slow, an upload can take longer than the response."""
    total_s, content = 0.2, bytes(SENT_BYTES_PER_S)
    with dripping("status") as url:
        async with httpx.AsyncClient(timeout=15) as client:
            began_s = time.monotonic()
            with ends_soon(), pytest.raises(httpx.ReadTimeout):
                await ask(client, "PUT", url, None, total_s=total_s, content=content)
    assert time.monotonic() - began_s >= 1.0


@pytest.mark.parametrize("name", HEADS)
def test_command_to_silent_host_times_out(name: str) -> None:
    with dripping(name) as url, ends_soon(), pytest.raises(httpx.ReadTimeout):
        ask_now(url, None, TOTAL_S)
