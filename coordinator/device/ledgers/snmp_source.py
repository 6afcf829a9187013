"""The interfaces' own byte counters over SNMP, of one device or of several side by side."""

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
KEPT_TO_S: Final = 0.01  # s by which neighbouring bins may miss each other: they are kept to the ms


class SnmpLedger:
    """What came in at all interfaces that witnesses name: a bin from one reading to the next.

    Counters of 64 bits where there are any; of 32 bits, read through their wrap where the
    interface's speed says that there was one at most. Several devices are added up over the bins
    of the first, each counter taken as even within its own bin.
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
        """Ask on a clock, until cancelled: a counter keeps no history."""
        async with asyncio.TaskGroup() as group:
            for witness in self._witnesses:
                group.create_task(keep_going(witness.watch))

    async def told(self, from_at: datetime, before_at: datetime) -> Witnessed:
        """What came in, counter by counter."""
        parts = [await witness.read(from_at, before_at) for witness in self._witnesses]
        told = together(parts, datetime.now(UTC))
        return replace(told, series=tuple(told.of(Quantity.RECEIVED)))

    async def read(
        self, from_at: datetime, before_at: datetime, direction: Direction
    ) -> FirewallLedger:
        return self.ledger_of(await self.told(from_at, before_at))

    def ledger_of(self, told: Witnessed) -> FirewallLedger:
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
    """Its bins one after the other: of those that overlap, where several coordinators asked, the
    first, and an unknown one where nobody did."""
    from_s = series.at_s - series.over_s
    if (np.abs(from_s[1:] - series.at_s[:-1]) <= 1e-6).all():  # one process, all the time
        return series
    rows: list[tuple[float, float, float]] = []  # at, over, value
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
    """Bins of the first series, with what all of them counted; NaN where one does not know."""
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
