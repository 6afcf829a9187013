"""Client for range queries to the Prometheus HTTP API, with limits on size and time."""

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
import numpy as np

from broadside.coordinator.core.arrays import Floats
from broadside.coordinator.device.telemetry.http_client import (
    bounded_client,
    get_bounded,
    partial_answer,
)
from broadside.coordinator.device.telemetry.source import TelemetryBusy, TelemetryError
from broadside.exchange.http.bounded import retry_after_s
from broadside.exchange.log_sanitizer import redact
from broadside.exchange.strict_json import read_json, read_json_as

# Data points per query. Prometheus allows 11,000.
_POINTS_MAX_COUNT: Final = 10_000
# 10,000 samples take about half a mebibyte.
_ANSWER_MAX_BYTES: Final = 16 * 1_048_576
_SERIES_MAX_COUNT: Final = 512
# List of labels and samples, one entry per series.
_Rows = list[tuple[Mapping[str, str], list[tuple[float, float]]]]
# Errors for a response of another format.
_FORMAT_ERRORS: Final = (AttributeError, ValueError, LookupError, TypeError, RecursionError)
_ATTEMPT_S: Final = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PrometheusSeries:
    """One time series of a response.

    Attributes:
        labels: Labels of the series.
        at_s: Sample times in epoch seconds.
        values: Sample values, same length as ``at_s``.
    """

    labels: Mapping[str, str]
    at_s: Floats
    values: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class PrometheusResult:
    """All series of a query.

    Attributes:
        series: The series.
        partial: Reason to report when this result is known to be incomplete, or ``None``.
    """

    series: Sequence[PrometheusSeries]
    partial: str | None = None


class PrometheusApi:
    """Client of one Prometheus server.

    Attributes:
        where: URL without the password, for error messages.
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        ca_file: Path | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._url = url.rstrip("/")
        self.where = redact(self._url)
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._ca_file = ca_file
        self._transport = transport

    async def series(
        self, query: str, from_s: float, before_s: float, step_s: float
    ) -> PrometheusResult:
        """Return all series of a query, with samples at multiples of the step.

        Long spans are split into several requests.

        Args:
            query: PromQL expression.
            from_s: Start time, in epoch seconds.
            before_s: End time, in epoch seconds.
            step_s: Step in seconds.

        Raises:
            TelemetryError: A request failed or the response is not valid.
        """
        first = int(from_s // step_s)
        last = max(int(-(-before_s // step_s)), first)
        by_name: dict[tuple[str, int], tuple[Mapping[str, str], list[tuple[float, float]]]] = {}
        partial: str | None = None
        for start in range(first, last + 1, _POINTS_MAX_COUNT):
            end = min(start + _POINTS_MAX_COUNT - 1, last)
            span = {"start": start * step_s, "end": end * step_s, "step": step_s}
            rows, reason = await self._query_range(query, span)
            partial = partial or reason
            # Prometheus returns distinct label sets. The counter separates series if a response
            # repeats one.
            equal: dict[str, int] = {}
            for labels, samples in rows:
                name = json.dumps(labels, sort_keys=True)
                equal[name] = equal.get(name, 0) + 1
                by_name.setdefault((name, equal[name]), (labels, []))[1].extend(samples)
        series = [
            PrometheusSeries(labels=labels, at_s=columns[:, 0], values=columns[:, 1])
            for labels, samples in by_name.values()
            for columns in [np.array(samples, dtype=float).reshape(-1, 2)]
        ]
        return PrometheusResult(series=series, partial=partial)

    async def clock_offset(self) -> tuple[float, float] | None:
        """Return the offset of the server's clock from this host's clock, and the error bound.

        The server evaluates ``time()`` with its own clock. The bound is half of the round-trip
        time.

        Returns:
            Offset and bound in seconds, or ``None`` if the response has no valid time.
        """
        sent_s, began_s = time.time(), time.monotonic()
        try:
            response, body = await self._get("query", {"query": "time()"})
            took_s = time.monotonic() - began_s
            data = (await read_json(body, _ANSWER_MAX_BYTES))["data"]
            result = data["result"]
            stamp_s = float(result[0] if data["resultType"] == "scalar" else result[0]["value"][0])
        except (TelemetryError, *_FORMAT_ERRORS):
            return None
        if not response.is_success or not math.isfinite(stamp_s):
            return None
        return stamp_s - (sent_s + took_s / 2), took_s / 2

    async def _get(self, path: str, params: Mapping[str, Any]) -> tuple[httpx.Response, bytes]:
        async with bounded_client(
            self._headers, self._ca_file, _ATTEMPT_S, self._transport
        ) as client:
            return await get_bounded(
                client,
                httpx.URL(f"{self._url}/api/v1/{path}", params=params),
                _ANSWER_MAX_BYTES,
                f"url {self.where}",
            )

    async def _query_range(self, query: str, span: Mapping[str, float]) -> tuple[_Rows, str | None]:
        response, body = await self._get("query_range", {"query": query, **span})
        if response.status_code == httpx.codes.TOO_MANY_REQUESTS:
            after_s = retry_after_s(response, span["step"])
            raise TelemetryBusy(
                f"url {self.where} throttles requests; try again in {after_s:g} s", after_s
            )
        try:
            document, rows = await read_json_as(
                body, _ANSWER_MAX_BYTES, lambda parsed: _matrix(query, parsed)
            )
            return rows, partial_answer(response, document) or _warning(document)
        except _FORMAT_ERRORS as error:
            raise TelemetryError(
                f"url {self.where}: HTTP {response.status_code}, which is not an answer of "
                "Prometheus; give its base address"
            ) from error


def _matrix(query: str, document: Any) -> tuple[Any, _Rows]:
    """Return a parsed response and its series.

    Raises TelemetryError for a refused query or too many series, and other errors for another
    format.
    """
    result = document["data"]["result"] if document["status"] == "success" else document["error"]
    if isinstance(result, str):
        raise TelemetryError(f"query {query!r}: {result}")
    if len(result) > _SERIES_MAX_COUNT:
        raise TelemetryError(f"query {query!r}: {len(result)} series; {_SERIES_MAX_COUNT} at most")
    return document, [
        (
            {str(name): str(value) for name, value in series.get("metric", {}).items()},
            [(float(at), float(value)) for at, value in series["values"]],
        )
        for series in result
    ]


def _warning(document: Mapping[str, Any]) -> str | None:
    """Return the first ``warnings`` entry of Prometheus, Thanos or Mimir, or ``None``.

    ``infos`` that begin with "PromQL info:" concern the query, not missing data, and are skipped.
    """
    texts = _texts(document.get("warnings"))
    texts += [text for text in _texts(document.get("infos")) if not text.startswith("PromQL info:")]
    more = f" (and {len(texts) - 1} more)" if len(texts) > 1 else ""
    return f"warning {texts[0][:200]!r}{more}" if texts else None


def _texts(value: Any) -> list[str]:
    if value is None:
        return []
    return [str(item) for item in value] if isinstance(value, list) else [str(value)]
