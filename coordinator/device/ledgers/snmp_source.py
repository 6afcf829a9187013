"""Byte counters of interfaces over SNMP, for a device or several parallel devices."""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

import numpy as np

from broadside.coordinator.coordinator_settings import CoordinatorSettings
from broadside.coordinator.core.measure.columns import Floats
from broadside.coordinator.core.measure.evidence import FirewallLedger, LedgerLayer
from broadside.coordinator.core.measure.testimony import (
    Quantity,
    Witnessed,
    WitnessSeries,
    column,
    together,
)
from broadside.coordinator.device.ledgers.source import Freshness, LedgerError, needed
from broadside.coordinator.device.witnesses.polled import PolledWitness
from broadside.coordinator.device.witnesses.snmp_witness import open_interfaces
from broadside.coordinator.device.witnesses.witness_file import read_entries
from broadside.exchange.background import keep_going
from broadside.exchange.messages import Direction

_BITS: Final = 8
# Tolerance for adjacent bins, because stored times have millisecond resolution.
KEPT_TO_S: Final = 0.01


class SnmpLedger:
    """Ledger of the bytes received on all configured interfaces, with a bin between two readings.

    64-bit counters are used when they are available. A 32-bit counter can be corrected for a wrap
    if, at the interface speed, it cannot wrap more than once between readings. The bytes of several
    devices are added for each bin of the first device. This assumes that each counter grows evenly
    within its own bin.
    """

    name = "snmp IF-MIB"

    def __init__(
        self, witnesses: Sequence[PolledWitness], poll_s: float, layer: LedgerLayer
    ) -> None:
        self.freshness = Freshness(
            settle_s=1.5 * poll_s, poll_s=max(1.0, poll_s), patience_s=1.5 * poll_s + 60
        )
        self._witnesses = witnesses
        self._poll_s = poll_s
        self._layer = layer

    async def watch(self) -> None:
        """Poll the counters until cancelled, because SNMP counters have no history."""
        async with asyncio.TaskGroup() as group:
            for witness in self._witnesses:
                group.create_task(keep_going(witness.watch))

    async def told(self, from_at: datetime, before_at: datetime) -> Witnessed:
        """Return the readings of received bytes per counter (see :meth:`LiveSource.told`)."""
        parts = [await witness.read(from_at, before_at) for witness in self._witnesses]
        told = together(parts, datetime.now(UTC))
        return replace(told, series=tuple(told.of(Quantity.RECEIVED)))

    async def read(
        self, from_at: datetime, before_at: datetime, direction: Direction
    ) -> FirewallLedger:
        """Return the bins in this time span (see :meth:`LedgerSource.read`)."""
        return self.ledger_of(await self.told(from_at, before_at))

    def ledger_of(self, told: Witnessed) -> FirewallLedger:
        """Return a ledger from readings. Raises :class:`LedgerError` if there are none."""
        series = [in_a_row(each) for each in told.series]
        silent = [
            f"{remark.device}: {remark.said}"
            for remark in told.remarks
            if remark.kind in ("silent", "restarted", "went-back", "too-slow", "partial")
        ]
        if not series:
            raise LedgerError(f"{self.name}: no reading yet; {'; '.join(silent[:2]) or 'wait'}")
        start_s, end_s, counted = _added_up(series)
        return FirewallLedger(
            source=self.name,
            layer=self._layer,
            start_s=start_s,
            end_s=end_s,
            bytes=counted,
            grain_s=self._poll_s,
            read_at=datetime.now(UTC),
            notes=tuple(dict.fromkeys(silent))[:5],
        )


def in_a_row(series: WitnessSeries) -> WitnessSeries:
    """Return the series with bins that follow each other without overlap or gap.

    Bins overlap if several coordinators polled. The first of them is used. A gap becomes an unknown
    bin.
    """
    from_s = series.at_s - series.over_s
    # If only one process polled, the bins are already contiguous.
    if (np.abs(from_s[1:] - series.at_s[:-1]) <= 1e-6).all():
        return series
    # Each row has time, length and value.
    rows: list[tuple[float, float, float]] = []
    ended_s = from_s[0] if len(from_s) else 0.0
    for begun_s, at_s, value in zip(from_s, series.at_s, series.values, strict=True):
        if begun_s < ended_s - KEPT_TO_S:
            continue
        if begun_s > ended_s + KEPT_TO_S:
            rows.append((begun_s, begun_s - ended_s, math.nan))
            ended_s = begun_s
        rows.append((at_s, at_s - ended_s, value * (at_s - begun_s) / (at_s - ended_s)))
        ended_s = at_s
    at, over, values = (column(row[place] for row in rows) for place in range(3))
    return replace(series, at_s=at, over_s=over, bound_s=np.zeros(len(at)), values=values)


def _added_up(series: Sequence[WitnessSeries]) -> tuple[Floats, Floats, Floats]:
    """Return the sum of all series in the bins of the first one, NaN if one is unknown."""
    first = series[0]
    start_s, end_s = first.at_s - first.over_s, first.at_s
    total = np.zeros(len(end_s))
    for each in series:
        from_s, to_s = each.at_s - each.over_s, each.at_s
        if not len(to_s):
            total[:] = np.nan
            continue
        counted = each.values / _BITS * each.over_s
        edges = np.concatenate([from_s[:1], to_s])
        known = np.concatenate([[0.0], np.cumsum(np.nan_to_num(counted))])
        unknown = np.concatenate([[0.0], np.cumsum(np.isnan(counted) * each.over_s)])
        total += np.interp(end_s, edges, known) - np.interp(start_s, edges, known)
        missing_s = np.interp(end_s, edges, unknown) - np.interp(start_s, edges, unknown)
        outside = (start_s < edges[0] - 1e-6) | (end_s > edges[-1] + 1e-6)
        total[(missing_s > 1e-6) | outside] = np.nan
    return start_s, end_s, total


def open_source(settings: CoordinatorSettings) -> SnmpLedger:
    path = needed(settings, "witnesses_file", settings.witnesses_file)
    named = [entry for entry in read_entries(path) if entry.get("interfaces")]
    if not named:
        raise LedgerError(
            f"witnesses_file {path}: no snmp witness names its interfaces; the ledger is their "
            "counters"
        )
    witnesses = [open_interfaces(entry) for entry in named]
    return SnmpLedger(
        witnesses, max(witness.poll_s for witness in witnesses), settings.ledger_layer
    )
