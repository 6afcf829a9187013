"""Tests for the webhook and the OTLP export when a run ends."""

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceResponse,
)

from broadside.coordinator.coordinator_settings import CoordinatorSettings
from broadside.coordinator.notices.places import NoticesMisconfigured, open_receivers
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
