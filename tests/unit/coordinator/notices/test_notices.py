"""Tests for the webhook and the OTLP export when a run ends."""

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from standardwebhooks import Webhook as Verifier
from standardwebhooks.webhooks import WebhookVerificationError

from broadside.coordinator.coordinator_settings import CoordinatorSettings
from broadside.coordinator.core.metrics import ALL_METRICS
from broadside.coordinator.notices.announcer import Announcer
from broadside.coordinator.notices.otlp import Otlp
from broadside.coordinator.notices.places import NoticesMisconfigured, open_receivers
from broadside.coordinator.notices.webhook import Webhook
from broadside.coordinator.runs.run_documents import read_run_summary
from broadside.exchange.fabric import Fabric
from broadside.exchange.records import RunOutcome
from tests.unit.coordinator.stored_run import store_run

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"  # noqa: S105
Request = tuple[str, dict[str, str], bytes]


@contextmanager
def receiver(*statuses: int) -> Iterator[tuple[str, list[Request]]]:
    """Start a server to return the given statuses. Yield the URL and the list of requests."""
    requests: list[Request] = []
    remaining = list(statuses)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            requests.append((self.path, {k.lower(): v for k, v in self.headers.items()}, body))
            answer = ExportMetricsServiceResponse().SerializeToString()
            self.send_response(remaining.pop(0) if len(remaining) > 1 else remaining[0])
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: Any) -> None:
            """Disable the request log."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", requests
        finally:
            server.shutdown()
            thread.join()


async def ended_run(fabric: Fabric) -> tuple[str, datetime]:
    """Store a completed run and return its id and end time."""
    run_id = await store_run(fabric)
    [(_, header)] = [scan_run async for scan_run in fabric.records.private.scan_runs()]
    summary = await read_run_summary(fabric.records, run_id)
    assert summary is not None
    ended_at = header.created_at + timedelta(hours=1)
    outcome = RunOutcome(
        cancelled=False,
        verdict=summary.verdict.value,
        ended_at=ended_at,
        completeness_ratio=summary.completeness_ratio,
    )
    await fabric.records.private.save_outcome(run_id, outcome)
    return run_id, ended_at


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


@pytest.mark.parametrize("secret", [None, "whsec_short", "no prefix", "whsec_ä"])
def test_rejects_webhook_with_missing_or_invalid_secret(
    secret: str | None,
) -> None:
    settings = CoordinatorSettings.model_validate(
        {"webhook_url": "https://example.net/hook", "webhook_secret": secret}
    )
    with pytest.raises(NoticesMisconfigured, match="BROADSIDE_WEBHOOK_SECRET") as caught:
        list(open_receivers(settings))
    assert secret is None or secret not in str(caught.value)


def test_no_receivers_without_settings() -> None:
    assert list(open_receivers(CoordinatorSettings())) == []
