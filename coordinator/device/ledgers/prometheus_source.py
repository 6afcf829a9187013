"""Any appliance that Prometheus knows: a Cisco 8000v, a Palo Alto, a Linux router."""

import json
import ssl
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal

import httpx
import numpy as np

from coordinator.coordinator_settings import CoordinatorSettings
from coordinator.core.measure.evidence import FirewallLedger, Floats, LedgerLayer
from coordinator.device.ledgers.source import Freshness, LedgerBusy, LedgerError, needed, plain
from exchange.messages import Direction
from exchange.rows import bounded_json

PrometheusUnit = Literal["bits_per_second", "bytes_per_second", "bytes_total"]

_POINTS_MAX_COUNT: Final = 10_000  # of one query; Prometheus gives 11,000
_ANSWER_MAX_BYTES: Final = 16 * 1_048_576  # ten thousand samples take half of one
_NOT_ITS_ANSWER: Final = (ValueError, KeyError, TypeError, IndexError, RecursionError)
_ATTEMPT_S: Final = 15.0
_BYTES_OF_RATE: Final = {"bits_per_second": 1 / 8, "bytes_per_second": 1.0}


class PrometheusLedger:
    """One series of a query over the HTTP API, a sample each step.

    A rate at an instant stands for the step before it (as ``rate(x[<step>])`` gives it); of
    ``bytes_total``, a counter, each pair of neighbouring samples is a bin, and one that went back
    is unknown.
    """

    def __init__(
        self,
        url: str,
        query: str,
        unit: PrometheusUnit,
        *,
        step_s: float = 15.0,
        layer: LedgerLayer = "unknown",
        settle_s: float | None = None,
        token: str | None = None,
        ca_file: Path | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        rest_s = 2 * step_s if settle_s is None else settle_s
        self.name = f"prometheus {query}"
        self.freshness = Freshness(
            settle_s=rest_s, lag_s=step_s, poll_s=max(1.0, step_s), patience_s=rest_s + 300
        )
        self._url = url.rstrip("/")
        self._query = query
        self._unit = unit
        self._step_s = step_s
        self._layer = layer
        self._headers = {"Accept-Encoding": "identity"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"
        self._ca_file = ca_file
        self._transport = transport
        self._now = now

    async def read(
        self, from_at: datetime, before_at: datetime, direction: Direction
    ) -> FirewallLedger:
        at_s, values = await self._samples(from_at.timestamp(), before_at.timestamp())
        if self._unit == "bytes_total":
            start_s, end_s, counts = at_s[:-1], at_s[1:], np.diff(values)
            counts = np.where(counts >= 0, counts, np.nan)
        else:
            start_s, end_s = at_s - self._step_s, at_s
            counts = values * self._step_s * _BYTES_OF_RATE[self._unit]
        return FirewallLedger(
            source=self.name,
            layer=self._layer,
            start_s=start_s,
            end_s=end_s,
            bytes=counts,
            grain_s=self._step_s,
            read_at=self._now(),
        )

    async def _samples(self, from_s: float, before_s: float) -> tuple[Floats, Floats]:
        """Instants and values, on whole steps, in as many queries as it takes."""
        first = int(from_s // self._step_s)
        last = max(int(-(-before_s // self._step_s)), first)
        samples: list[tuple[float, float]] = []
        async with httpx.AsyncClient(
            headers=self._headers,
            verify=ssl.create_default_context(cafile=self._ca_file),
            timeout=_ATTEMPT_S,
            transport=self._transport,
        ) as client:
            for start in range(first, last + 1, _POINTS_MAX_COUNT):
                end = min(start + _POINTS_MAX_COUNT - 1, last)
                samples += await self._ask(client, start * self._step_s, end * self._step_s)
        columns = np.array(samples, dtype=float).reshape(-1, 2)
        return columns[:, 0], columns[:, 1]

    async def _ask(
        self, client: httpx.AsyncClient, start_s: float, end_s: float
    ) -> list[tuple[float, float]]:
        asked: dict[str, str | float] = {
            "query": self._query,
            "start": start_s,
            "end": end_s,
            "step": self._step_s,
        }
        try:
            async with client.stream(
                "GET", f"{self._url}/api/v1/query_range", params=asked
            ) as response:
                body = await self._body(response)
        except httpx.HTTPError as error:
            raise LedgerError(
                f"prometheus_url {self._url}: no answer ({type(error).__name__}: {error})"
            ) from error
        if response.status_code == httpx.codes.TOO_MANY_REQUESTS:
            after = response.headers.get("Retry-After", "")
            after_s = float(after) if after.isascii() and after.isdigit() else self._step_s
            raise LedgerBusy(
                f"prometheus_url {self._url} throttles us: come back in {after_s:g} s", after_s
            )
        try:
            answer = json.loads(bounded_json(body, _ANSWER_MAX_BYTES))
            found = answer["data"]["result"] if answer["status"] == "success" else answer["error"]
            samples = [] if isinstance(found, str) or not found else _samples_of(found[0])
        except _NOT_ITS_ANSWER as error:
            raise LedgerError(
                f"prometheus_url {self._url}: HTTP {response.status_code}, and not an answer of "
                "Prometheus's; give its base address"
            ) from error
        if isinstance(found, str):
            raise LedgerError(f"prometheus_query {self._query!r}: {found}")
        if len(found) > 1:
            raise LedgerError(
                f"prometheus_query {self._query!r}: {len(found)} series; add them up with sum(...)"
            )
        return samples

    async def _body(self, response: httpx.Response) -> bytes:
        """The answer, of bounded size: it is read whole before it is understood.

        One that is packed in spite of what was asked is none: a kilobyte unpacks to a gigabyte.
        """
        if response.headers.get("Content-Encoding", "identity") != "identity":
            raise LedgerError(f"prometheus_url {self._url}: an answer that is packed, unasked")
        body = bytearray()
        async for piece in response.aiter_bytes():
            body += piece
            if len(body) > _ANSWER_MAX_BYTES:
                raise LedgerError(
                    f"prometheus_url {self._url}: an answer of over {_ANSWER_MAX_BYTES / 1e6:.0f} "
                    "MB; is this Prometheus?"
                )
        return bytes(body)


def _samples_of(series: Any) -> list[tuple[float, float]]:
    return [(float(at), float(value)) for at, value in series["values"]]


def open_source(settings: CoordinatorSettings) -> PrometheusLedger:
    return PrometheusLedger(
        needed(settings, "prometheus_url", settings.prometheus_url),
        needed(settings, "prometheus_query", settings.prometheus_query),
        settings.prometheus_unit,
        step_s=settings.prometheus_step_s,
        layer=settings.ledger_layer,
        settle_s=settings.ledger_settle_s,
        token=plain(settings.prometheus_token),
        ca_file=settings.prometheus_ca_file,
    )
