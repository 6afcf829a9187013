"""Byte counters from Prometheus, for any device with an exporter."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import httpx
import numpy as np

from broadside.coordinator.coordinator_settings import CoordinatorSettings, PrometheusUnit
from broadside.coordinator.core.measure.columns import Floats
from broadside.coordinator.core.measure.evidence import FirewallLedger, LedgerLayer
from broadside.coordinator.device.ledgers.source import Freshness, LedgerError, needed, plain
from broadside.coordinator.device.prometheus_api import PrometheusApi
from broadside.exchange.messages import Direction

_BYTES_OF_RATE: Final = {"bits_per_second": 1 / 8, "bytes_per_second": 1.0}


class PrometheusLedger:
    """Ledger from a series of the HTTP API, with a sample for each step.

    A rate covers the step before its time, like the result of ``rate(x[<step>])``. With the unit
    ``bytes_total``, the series is a counter, and each pair of adjacent samples makes a bin. If the
    counter decreases, this bin is unknown.

    Attributes:
        name: Name in reports, with the query.
        freshness: Time to wait until the newest values are stable.
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
        self._query = query
        self._unit = unit
        self._step_s = step_s
        self._layer = layer
        self._api = PrometheusApi(url, token=token, ca_file=ca_file, transport=transport)
        self._now = now

    async def read(
        self, from_at: datetime, before_at: datetime, direction: Direction
    ) -> FirewallLedger:
        """Return the bins in this time span (see :meth:`LedgerSource.read`)."""
        at_s, values, partial = await self._samples(from_at.timestamp(), before_at.timestamp())
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
            partial=partial,
        )

    async def _samples(self, from_s: float, before_s: float) -> tuple[Floats, Floats, str | None]:
        """Return times in epoch seconds, values, and the reason if they are incomplete."""
        answer = await self._api.series(self._query, from_s, before_s, self._step_s)
        found = answer.series
        if len(found) > 1:
            raise LedgerError(
                f"prometheus_query {self._query!r}: {len(found)} series; add them up with sum(...)"
            )
        if not found:
            return np.empty(0), np.empty(0), answer.partial
        return found[0].at_s, found[0].values, answer.partial


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
