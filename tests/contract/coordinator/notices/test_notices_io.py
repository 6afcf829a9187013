"""Tests for notices that need processes, sockets or real time."""

from datetime import timedelta

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from standardwebhooks import Webhook as Verifier
from standardwebhooks.webhooks import WebhookVerificationError

from broadside.coordinator.core.metrics import ALL_METRICS
from broadside.coordinator.notices.announcer import Announcer
from broadside.coordinator.notices.otlp import Otlp
from broadside.coordinator.notices.webhook import Webhook
from broadside.coordinator.runs.run_documents import read_run_summary
from broadside.exchange.fabric import Fabric
from tests.contract.coordinator.notices.notice_servers import receiver
from tests.unit.coordinator.notices.test_announcer import SECRET, ended_run


async def test_webhook_is_signed_and_sent_once(fabric: Fabric) -> None:
    run_id, now = await ended_run(fabric)
    with receiver(200) as (url, requests):
        # Each iteration is used for another coordinator.
        for _ in range(2):
            announcer = Announcer(fabric.records, [Webhook(url, SECRET)], lambda: now)
            await announcer.deliver_due()
            await announcer.deliver_due()
    [(_, headers, body)] = requests
    event = Verifier(SECRET).verify(body, headers)
    assert event["type"] == "run.ended"
    assert event["data"]["run_id"] == headers["webhook-id"] == run_id
    assert event["data"]["verdict"] in ("pass", "fail", "inconclusive", "measured")
    with pytest.raises(WebhookVerificationError):
        Verifier(SECRET).verify(body.replace(b"run.ended", b"run.begun"), headers)


@pytest.mark.parametrize("late_s", [1, 3600, 86_000])
async def test_new_receiver_gets_only_runs_that_end_later(fabric: Fabric, late_s: int) -> None:
    """Restart the announcer to see if any notice is lost."""
    run_id, ended_at = await ended_run(fabric)
    now = ended_at + timedelta(seconds=late_s)
    with receiver(200) as (url, requests):
        for _ in range(2):
            await Announcer(fabric.records, [Webhook(url, SECRET)], lambda: now).deliver_due()
        assert requests == []
        await Announcer(fabric.records, [Otlp(url)], lambda: ended_at).deliver_due()
        # Each receiver has a start time.
        assert len(requests) == 1
        [(_, header)] = [scan_run async for scan_run in fabric.records.private.scan_runs()]
        assert header.outcome is not None
        later = header.outcome.model_copy(update={"ended_at": now + timedelta(seconds=1)})
        await fabric.records.private.save_outcome(run_id, later)
        # There was no delivery during this time.
        now += timedelta(hours=1)
        await Announcer(fabric.records, [Webhook(url, SECRET)], lambda: now).deliver_due()
        assert len(requests) == 2


async def test_failed_delivery_is_retried_for_a_day(
    fabric: Fabric,
) -> None:
    _, ended_at = await ended_run(fabric)
    now = ended_at
    with receiver(503, 302, 200) as (url, requests):
        announcer = Announcer(fabric.records, [Webhook(url, SECRET)], lambda: now)
        counts = []
        for _ in range(8):
            await announcer.deliver_due()
            counts.append(len(requests))
            now += timedelta(seconds=4)
    # Retry after 5 s, then after 10 s.
    assert counts == [1, 1, 2, 2, 2, 3, 3, 3]
    with receiver(200) as (url, requests):
        late = Announcer(
            fabric.records, [Webhook(url, SECRET)], lambda: ended_at + timedelta(days=2)
        )
        await late.deliver_due()
    assert requests == []


async def test_otlp_export_has_all_known_metrics_with_units(fabric: Fabric) -> None:
    run_id, now = await ended_run(fabric)
    summary = await read_run_summary(fabric.records, run_id)
    with receiver(200) as (url, requests):
        await Announcer(fabric.records, [Otlp(url)], lambda: now).deliver_due()
    [(path, _, body)] = requests
    assert path == "/v1/metrics"
    request = ExportMetricsServiceRequest.FromString(body)
    [resource] = request.resource_metrics
    [scope] = resource.scope_metrics
    sent = {metric.name: metric for metric in scope.metrics}
    known = {item.name: item.of_run(summary) for item in ALL_METRICS}
    assert {name.removeprefix("broadside.run.") for name in sent} == {
        name for name, value in known.items() if value is not None
    }
    received = sent["broadside.run.fleet_received_bits_per_second"]
    [point] = received.gauge.data_points
    assert received.unit == "bit/s"
    assert point.as_double == known["fleet_received_bits_per_second"]
    attributes = {item.key: item.value.string_value for item in point.attributes}
    assert attributes["broadside.run.id"] == run_id
