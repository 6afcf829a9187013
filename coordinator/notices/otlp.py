"""OTLP export of the metrics of a run, sent once at its end.

The environment variables OTEL_EXPORTER_OTLP_HEADERS and OTEL_EXPORTER_OTLP_CERTIFICATE can be used.
The exporter of OpenTelemetry is not used to send: it follows redirects, and its timeouts are for a
single read, so that a slow server could block a thread forever.
"""

import os
from collections.abc import Mapping
from typing import Final
from urllib.parse import unquote

from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, MetricsData
from opentelemetry.sdk.resources import Resource

from broadside.coordinator.core.formatting import MetricUnit
from broadside.coordinator.core.metrics import ALL_METRICS
from broadside.coordinator.notices.announcer import NotDelivered, Notice, post

TIMEOUT_S: Final = 15.0
# UCUM units, as recommended in the OpenTelemetry conventions.
_UNITS: Final[Mapping[MetricUnit, str]] = {
    MetricUnit.RATE: "bit/s",
    MetricUnit.TIME: "s",
    MetricUnit.RATIO: "1",
    MetricUnit.COUNT: "{count}",
    MetricUnit.CPU: "s/GBy",
    MetricUnit.NUMBER: "1",
}


class Otlp:
    """Receiver that is an OTLP collector over HTTP."""

    name = "otlp"

    def __init__(self, endpoint: str, total_s: float = TIMEOUT_S) -> None:
        """Create a receiver.

        Args:
            endpoint: URL of the collector.
            total_s: Time limit in seconds for each request.
        """
        self._url = f"{endpoint.rstrip('/')}/v1/metrics"
        self._total_s = total_s
        variable = os.environ.get("OTEL_EXPORTER_OTLP_HEADERS", "")
        pairs = [pair.partition("=") for pair in variable.split(",") if "=" in pair]
        self._headers = {
            **{name.strip(): unquote(value.strip()) for name, _, value in pairs},
            "content-type": "application/x-protobuf",
        }

    async def deliver(self, notice: Notice) -> None:
        content = encode_metrics(metrics_of(notice)).SerializeToString()
        certificate = os.environ.get("OTEL_EXPORTER_OTLP_CERTIFICATE")
        await post(self._url, content, self._headers, self._total_s, certificate)


def metrics_of(notice: Notice) -> MetricsData:
    """Return one gauge for each known metric. Unknown values are left out and are never zero.

    Raises:
        NotDelivered: The run has no known metric.
    """
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
    for metric in ALL_METRICS:
        value = metric.of_run(summary)
        if value is not None:
            gauge = meter.create_gauge(
                f"broadside.run.{metric.name}", _UNITS[metric.unit], description=metric.label
            )
            gauge.set(value, attributes)
    data = reader.get_metrics_data()
    provider.shutdown()
    if data is None:
        raise NotDelivered("the run has no metric")
    return data
