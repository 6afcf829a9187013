"""OTLP export of the metrics of a run, sent once at its end with the OpenTelemetry exporter.

The usual environment variables can be used: OTEL_EXPORTER_OTLP_HEADERS, _CERTIFICATE, _TIMEOUT.
"""

import asyncio
from collections.abc import Mapping
from typing import Final

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, MetricExportResult, MetricsData
from opentelemetry.sdk.resources import Resource

from broadside.coordinator.core.formatting import Unit
from broadside.coordinator.core.metrics import ALL_METRICS
from broadside.coordinator.notices.announcer import Notice, NotTold
from broadside.coordinator.notices.bounded_session import BoundedSession

TIMEOUT_S: Final = 15.0
# UCUM units, as recommended in the OpenTelemetry conventions.
_UNITS: Final[Mapping[Unit, str]] = {
    Unit.RATE: "bit/s",
    Unit.TIME: "s",
    Unit.RATIO: "1",
    Unit.COUNT: "{count}",
    Unit.CPU: "s/GBy",
    Unit.NUMBER: "1",
}


class Otlp:
    """Receiver that is an OTLP collector over HTTP."""

    name = "otlp"

    def __init__(self, endpoint: str, total_s: float = TIMEOUT_S) -> None:
        """Create a receiver.

        Args:
            endpoint: URL of the collector.
            whole_s: Time limit in seconds for each request, and for all retries for one
                notification.
        """
        url = f"{endpoint.rstrip('/')}/v1/metrics"
        session = BoundedSession(total_s)
        self._exporter = OTLPMetricExporter(endpoint=url, timeout=total_s, session=session)

    async def tell(self, notice: Notice) -> None:
        result = await asyncio.to_thread(self._exporter.export, metrics_of(notice))
        if result is not MetricExportResult.SUCCESS:
            raise NotTold("the collector did not take the metrics")


def metrics_of(notice: Notice) -> MetricsData:
    """Return one gauge for each known metric. Unknown values are left out and are never zero."""
    reader = InMemoryMetricReader()
    provider = MeterProvider(
        metric_readers=[reader], resource=Resource.create({"service.name": "broadside"})
    )
    meter = provider.get_meter("broadside")
    header, summary = notice.header, notice.summary
    attributes = {
        "broadside.run.id": header.run_id,
        "broadside.scenario": header.scenario,
        "broadside.verdict": summary.verdict.value,
        **{f"broadside.label.{name}": value for name, value in header.labels.items()},
    }
    for each in ALL_METRICS:
        value = each.of_run(summary)
        if value is not None:
            gauge = meter.create_gauge(
                f"broadside.run.{each.name}", _UNITS[each.unit], description=each.label
            )
            gauge.set(value, attributes)
    found = reader.get_metrics_data()
    provider.shutdown()
    if found is None:
        raise NotTold("the run has no figure")
    return found
