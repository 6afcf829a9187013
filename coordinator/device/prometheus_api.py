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

from broadside.coordinator.core.measure.columns import Floats
from broadside.coordinator.device.http_answers import (
    bounded_client,
    get_bounded,
    partial_answer,
    retry_after_s,
)
from broadside.coordinator.device.ledgers.source import LedgerBusy, LedgerError
from broadside.exchange.log_lines import redact
from broadside.exchange.rows import read_json, read_json_as

# Data points per query. Prometheus allows 11,000.
_POINTS_MAX_COUNT: Final = 10_000
# 10,000 samples take about half a mebibyte.
_ANSWER_MAX_BYTES: Final = 16 * 1_048_576
_SERIES_MAX_COUNT: Final = 512
# List of labels and samples, one entry per series.
_Rows = list[tuple[Mapping[str, str], list[tuple[float, float]]]]
_NOT_ITS_ANSWER: Final = (
    AttributeError,
    ValueError,
    KeyError,
    TypeError,
    IndexError,
    RecursionError,
)
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
class PrometheusAnswer:
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
        *,
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
    ) -> PrometheusAnswer:
        """Return all series of a query, with samples at multiples of the step.

        Long spans are split into several requests.

        Args:
            query: PromQL expression.
            from_s: Start time, in epoch seconds.
            before_s: End time, in epoch seconds.
            step_s: Step in seconds.

        Raises:
            LedgerError: A request failed or the response is not valid.
        """
        first = int(from_s // step_s)
        last = max(int(-(-before_s // step_s)), first)
        found: dict[tuple[str, int], tuple[Mapping[str, str], list[tuple[float, float]]]] = {}
        partial: str | None = None
        async with bounded_client(
            self._headers, self._ca_file, _ATTEMPT_S, self._transport
        ) as client:
            for start in range(first, last + 1, _POINTS_MAX_COUNT):
                end = min(start + _POINTS_MAX_COUNT - 1, last)
                told, why = await self._ask(client, query, start * step_s, end * step_s, step_s)
                partial = partial or why
                # Prometheus returns distinct label sets. The counter separates series if a response
                # repeats one.
                alike: dict[str, int] = {}
                for labels, samples in told:
                    name = json.dumps(labels, sort_keys=True)
                    alike[name] = alike.get(name, 0) + 1
                    key = (name, alike[name])
                    found.setdefault(key, (labels, []))[1].extend(samples)
        series = [
            PrometheusSeries(labels=labels, at_s=columns[:, 0], values=columns[:, 1])
            for labels, samples in found.values()
            for columns in [np.array(samples, dtype=float).reshape(-1, 2)]
        ]
        return PrometheusAnswer(series=series, partial=partial)

    async def clock_offset(self) -> tuple[float, float] | None:
        """Return the offset of the server's clock from this host's clock, and the error bound.

        The server evaluates ``time()`` with its own clock. The bound is half of the round-trip
        time.

        Returns:
            Offset and bound in seconds, or ``None`` if the response has no valid time.
        """
        asked_s, began_s = time.time(), time.monotonic()
        try:
            async with bounded_client(
                self._headers, self._ca_file, _ATTEMPT_S, self._transport
            ) as client:
                response, body = await get_bounded(
                    client,
                    f"{self._url}/api/v1/query",
                    _ANSWER_MAX_BYTES,
                    f"prometheus_url {self.where}",
                    params={"query": "time()"},
                )
            took_s = time.monotonic() - began_s
            answer = await read_json(body, _ANSWER_MAX_BYTES)
            data = answer["data"]
            told = data["result"]
            stamp = told[0] if data["resultType"] == "scalar" else told[0]["value"][0]
            stamp_s = float(stamp)
        except (LedgerError, *_NOT_ITS_ANSWER):
            return None
        if not response.is_success or not math.isfinite(stamp_s):
            return None
        return stamp_s - (asked_s + took_s / 2), took_s / 2

    async def _ask(
        self, client: httpx.AsyncClient, query: str, start_s: float, end_s: float, step_s: float
    ) -> tuple[_Rows, str | None]:
        response, body = await get_bounded(
            client,
            f"{self._url}/api/v1/query_range",
            _ANSWER_MAX_BYTES,
            f"prometheus_url {self.where}",
            params={"query": query, "start": start_s, "end": end_s, "step": step_s},
        )
        if response.status_code == httpx.codes.TOO_MANY_REQUESTS:
            after_s = retry_after_s(response, step_s)
            raise LedgerBusy(
                f"prometheus_url {self.where} throttles us: come back in {after_s:g} s", after_s
            )
        try:
            answer, rows = await read_json_as(
                body, _ANSWER_MAX_BYTES, lambda told: _matrix(query, told)
            )
            return rows, partial_answer(response, answer) or _warned(answer)
        except _NOT_ITS_ANSWER as error:
            raise LedgerError(
                f"prometheus_url {self.where}: HTTP {response.status_code}, and not an answer of "
                "Prometheus's; give its base address"
            ) from error


def _matrix(query: str, answer: Any) -> tuple[Any, _Rows]:
    """Return a parsed response and its series.

    Raises LedgerError for a refused query or too many series, and other errors for another format.
    """
    found = answer["data"]["result"] if answer["status"] == "success" else answer["error"]
    if isinstance(found, str):
        raise LedgerError(f"prometheus_query {query!r}: {found}")
    if len(found) > _SERIES_MAX_COUNT:
        raise LedgerError(
            f"prometheus_query {query!r}: {len(found)} series; {_SERIES_MAX_COUNT} at most"
        )
    return answer, [(_labels(series), _samples_of(series)) for series in found]


def _warned(answer: Mapping[str, Any]) -> str | None:
    """Return the first ``warnings`` entry of Prometheus, Thanos or Mimir, or ``None``.

    ``infos`` that begin with "PromQL info:" concern the query, not missing data, and are skipped.
    """
    told = [*_listed(answer.get("warnings"))]
    told += [said for said in _listed(answer.get("infos")) if not said.startswith("PromQL info:")]
    more = f" (and {len(told) - 1} more)" if len(told) > 1 else ""
    return f"warning {told[0][:200]!r}{more}" if told else None


def _listed(told: Any) -> list[str]:
    if told is None:
        return []
    return [str(each) for each in told] if isinstance(told, list) else [str(told)]


def _labels(series: Any) -> Mapping[str, str]:
    return {str(name): str(value) for name, value in series.get("metric", {}).items()}


def _samples_of(series: Any) -> list[tuple[float, float]]:
    return [(float(at), float(value)) for at, value in series["values"]]
