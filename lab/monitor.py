"""Azure Monitor metrics API for the lab's byte counter, with the delays of the real service.

:class:`MonitorServer` listens on loopback and uses threads of this process. It handles requests
from the SDK to ``<resource id>/providers/Microsoft.Insights/metrics`` for any resource.

A point with label ``T`` counts traffic in ``[T - lag_s, T - lag_s + grain_s)``, interpolated from
the cumulative counters. A point younger than ``late_s`` is 0, and the newest one is null. It then
grows for the same time in :data:`STEPS_COUNT` steps, to simulate late values from instances.
"""

import hmac
import json
import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import parse_qs, urlsplit

import numpy as np

from broadside.exchange.messages import Flow
from broadside.lab.byte_counter import parse_counter
from broadside.lab.relay import Handler
from broadside.lab.tls_listener import by_tls

STEPS_COUNT: Final = 10
# Unit and aggregation by name. If there is no counter in the lab, the last value will be used for a
# healthy device.
_METRICS: Final[Mapping[str, tuple[str, str, float | None]]] = {
    "Throughput": ("BitsPerSecond", "average", None),
    "DataProcessed": ("Bytes", "total", None),
    "SNATPortUtilization": ("Percent", "maximum", 1.5),
    "FirewallHealth": ("Percent", "average", 100.0),
    "ObservedCapacity": ("Unspecified", "minimum,maximum", 2.0),
    "FirewallLatencyPng": ("MilliSeconds", "average", 2.0),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorSpec:
    """Settings for the endpoint.

    Attributes:
        csv_path: Path to the byte counter.
        token: Bearer token to accept.
        grain_s: Grain in seconds.
        lag_s: Seconds by which the label of a point is later than its traffic.
        late_s: Seconds until a point is no longer 0.
        flows: Flows to count.
        plays_healthy: Whether to return healthy values for metrics without a counter in the lab.
            Otherwise they are null.
    """

    csv_path: Path
    token: str
    grain_s: int = 60
    lag_s: float = 0.0
    late_s: float = 0.0
    flows: tuple[Flow, ...] = (Flow.UP, Flow.DOWN)
    plays_healthy: bool = True


class MonitorServer:
    """HTTP server for the metrics API, to use in a ``with`` block.

    Attributes:
        spec: The settings.
        asked: Monotonic time and metric of each request.
    """

    def __init__(
        self,
        spec: MonitorSpec,
        *,
        # Paths to the certificate chain and the key (PEM).
        tls: tuple[Path, Path] | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.spec = spec
        self.asked: list[tuple[float, str]] = []
        self._now = now
        self._throttled_count = 0
        self._retry_after_s = 0
        monitor = self

        class MetricsHandler(Handler):
            def serve(self) -> None:
                given = self.headers.get("Authorization", "")
                status, body, headers = monitor._answer(self.path, given)
                headers["Content-Type"] = "application/json"
                self.answer(status, headers, json.dumps(body).encode())

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), MetricsHandler)
        self._server.daemon_threads = True
        self._scheme = "http"
        if tls:
            self._server.socket = by_tls(self._server.socket, *tls)
            self._scheme = "https"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def endpoint(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self._server.server_port}"

    def throttle(self, count: int, retry_after_s: int) -> None:
        """Return 429 for the next requests.

        Args:
            count: Number of requests.
            retry_after_s: Value for the ``Retry-After`` header in seconds.
        """
        self._throttled_count, self._retry_after_s = count, retry_after_s

    def _answer(self, path: str, authorization: str) -> tuple[int, dict[str, Any], dict[str, str]]:
        """Return status, body and headers for a request."""
        parts = urlsplit(path)
        fields = {name.lower(): values[0] for name, values in parse_qs(parts.query).items()}
        name = fields.get("metricnames", "")
        self.asked.append((time.monotonic(), name))
        result = parts.path.endswith("/providers/Microsoft.Insights/metrics")
        if not hmac.compare_digest(authorization.encode(), f"Bearer {self.spec.token}".encode()):
            return _refusal(401, "InvalidAuthenticationToken", "The access token is invalid.")
        if self._throttled_count > 0:
            self._throttled_count -= 1
            status, body, _ = _refusal(429, "TooManyRequests", "Too many requests.")
            return status, body, {"Retry-After": str(self._retry_after_s)}
        if not result:
            return _refusal(404, "ResourceNotFound", f"No resource at {parts.path}.")
        if name not in _METRICS:
            known = ", ".join(_METRICS)
            return _refusal(400, "BadRequest", f"Failed to find metric {name}; known: {known}")
        if fields.get("interval") != _iso(self.spec.grain_s):
            return _refusal(
                400,
                "BadRequest",
                f"Detect invalid time grain input: {fields.get('interval')}, supported ones are: "
                f"{_iso(self.spec.grain_s)}",
            )
        start, end = (
            datetime.fromisoformat(at).timestamp() for at in fields["timespan"].split("/")
        )
        unit, aggregations, constant = _METRICS[name]
        points = self._points(name, start, end, constant, aggregations.split(","))
        metric = {
            "id": f"{parts.path}/{name}",
            "type": "Microsoft.Insights/metrics",
            "name": {"value": name, "localizedValue": name},
            "unit": unit,
            "timeseries": [{"metadatavalues": [], "data": points}],
            "errorCode": "Success",
        }
        return (
            200,
            {
                "cost": len(points),
                "timespan": fields["timespan"],
                "interval": _iso(self.spec.grain_s),
                "value": [metric],
                "namespace": "Microsoft.Network/azureFirewalls",
                "resourceregion": "lab",
            },
            {},
        )

    def _points(
        self, name: str, start: float, end: float, constant: float | None, aggregations: list[str]
    ) -> list[dict[str, Any]]:
        """Return all points that have begun in the span, in the format of the API."""
        spec, now = self.spec, self._now()
        at_s, total_bytes = self._counters()
        grain = spec.grain_s
        points: list[dict[str, Any]] = []
        labels = range(int(start // grain) * grain, math.ceil(min(end, now) / grain) * grain, grain)
        for label in labels:
            point: dict[str, Any] = {
                "timeStamp": f"{datetime.fromtimestamp(label, UTC):%Y-%m-%dT%H:%M:%SZ}"
            }
            points.append(point)
            if constant is not None:
                if spec.plays_healthy:
                    point |= dict.fromkeys(aggregations, constant)
                continue
            edges = np.array([label, label + grain]) - spec.lag_s
            if not len(at_s) or edges[0] < at_s[0] or edges[0] > at_s[-1]:
                # There is no reading for this time, so the value should be null.
                continue
            counted = float(np.diff(np.interp(edges, at_s, total_bytes))[0])
            age_s = now - (label + grain)
            if age_s < 0 and spec.late_s:
                continue
            if age_s < spec.late_s:
                counted = 0.0
            elif age_s < 2 * spec.late_s:
                counted *= math.floor((age_s / spec.late_s - 1) * STEPS_COUNT) / STEPS_COUNT
            point[aggregations[0]] = counted * 8 / grain if name == "Throughput" else counted
        return points

    def _counters(self) -> tuple[np.ndarray, np.ndarray]:
        """Return times and cumulative bytes of the selected flows."""
        readings = parse_counter(self.spec.csv_path.read_text(encoding="utf-8"))
        sides = {Flow.UP: "up_bytes", Flow.DOWN: "down_bytes"}
        totals = [
            sum(getattr(reading, sides[flow]) for flow in self.spec.flows) for reading in readings
        ]
        return np.array([reading.at_s for reading in readings]), np.array(totals, dtype=float)


def _refusal(status: int, code: str, message: str) -> tuple[int, dict[str, Any], dict[str, str]]:
    """Return an error in the format of the Resource Manager."""
    return status, {"error": {"code": code, "message": message}}, {}


def _iso(seconds: int) -> str:
    """Return an ISO 8601 duration, in minutes when possible, as the API does."""
    return f"PT{seconds // 60}M" if seconds % 60 == 0 else f"PT{seconds}S"
