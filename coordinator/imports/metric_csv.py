"""Reads a firewall's throughput metric from CSV: a point's time and its mean rate."""

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from broadside.coordinator.core.measure.evidence import FirewallLedger
from broadside.coordinator.imports import BadFile
from broadside.coordinator.imports.import_requests import METRIC_POINTS_MAX_COUNT, MetricPoint
from broadside.coordinator.imports.time_text import parse_number, parse_time, say_zone, to_utc
from broadside.coordinator.imports.uploaded_files import read_rows, read_text, wrong_cell

RATE_MAX_BITS_PER_SECOND: Final = 1e15  # beyond it a number is a slip

_TIMES: Final = ("timestamp", "time", "time (utc)", "timestamp (utc)", "timestamp [utc]")
_RATES: Final = (
    *("throughput_bits_per_second", "bits_per_second", "throughput", "average", "value"),
    *("throughput (avg)", "throughput (average)", "throughput (bits/s)"),
)


def read_metric(path: Path) -> tuple[MetricPoint, ...]:
    """Every point of a file, in its order. Raises :class:`BadFile`."""
    return parse_metric(read_text(path), str(path))


def parse_metric(text: str, name: str) -> tuple[MetricPoint, ...]:
    """Every point of a text; ``name`` is its file's.

    Times without a zone are UTC, as Azure Monitor gives them; ``null`` and empty rates are
    unknown. Raises :class:`BadFile`.
    """
    rows = read_rows(text, name=name, header_word="time")
    columns: tuple[int, int] | None = None
    names = ("", "")
    first: dict[datetime, int] = {}
    zone_said: str | None = None
    points: list[MetricPoint] = []
    for number, cells in rows:
        if not any(cells):
            continue
        if columns is None:
            columns = (_place(cells, _TIMES), _place(cells, _RATES))
            if min(columns) < 0:
                found = ", ".join(filter(None, cells))[:200]
                raise BadFile(
                    f"{name}: row {number}: no columns timestamp and throughput_bits_per_second "
                    f"(found: {found}); name them so"
                )
            names = (cells[columns[0]], cells[columns[1]])
            continue
        if len(cells) <= max(columns):
            raise BadFile(
                f"{name}: row {number}: {len(cells)} cells ({', '.join(cells)[:80]}); was the "
                "file cut?"
            )
        if len(points) >= METRIC_POINTS_MAX_COUNT:
            raise BadFile(f"{name}: row {number}: more than {METRIC_POINTS_MAX_COUNT} points")
        time_text, rate_text = cells[columns[0]], cells[columns[1]]
        wrong = partial(wrong_cell, name, number)
        try:
            said = parse_time(time_text)
            at = to_utc(said, UTC)
        except ValueError as error:
            raise wrong(
                names[0], time_text, f"not a time as 2022-01-04T16:25:00Z ({error})"
            ) from None
        zone = say_zone(said)
        zone_said = zone_said or zone
        if zone != zone_said:
            raise wrong(
                names[0],
                time_text,
                f"{zone}, where the rows above have {zone_said}; write all in one",
            )
        if at in first:
            raise wrong(names[0], time_text, f"row {first[at]} has the same; drop one")
        first[at] = number
        try:
            rate = parse_number(rate_text)
        except ValueError:
            raise wrong(names[1], rate_text, "not a number; write null for unknown") from None
        if rate is not None and not 0 <= rate <= RATE_MAX_BITS_PER_SECOND:
            raise wrong(names[1], rate_text, "must be between 0 and 1 Pbit/s, given in bit/s")
        points.append(MetricPoint(at=at, bits_per_second=rate))
    if len(points) < 2:
        raise BadFile(
            f"{name}: {len(points)} points, and at least 2 are needed to know the grain; export "
            "the metric over all bursts"
        )
    return tuple(points)


def _place(cells: Sequence[str], names: Sequence[str]) -> int:
    return next((place for place, cell in enumerate(cells) if cell.lower() in names), -1)


def throughput_ledger(source: str, points: Sequence[MetricPoint]) -> FirewallLedger:
    """A ledger from a metric's points: mean rates over bins that are as long as the commonest gap.

    Points may come in any order; there are two at least.
    """
    ordered = sorted(points, key=lambda point: point.at)
    start = np.array([point.at.timestamp() for point in ordered])
    gaps = Counter(np.diff(start).tolist())
    grain_s = float(min(gaps, key=lambda gap: (-gaps[gap], gap)))
    rates = np.array([point.bits_per_second for point in ordered], dtype=np.float64)
    return FirewallLedger(
        source=source,
        start_s=start,
        end_s=start + grain_s,
        bytes=rates / 8 * grain_s,
        grain_s=grain_s,
        read_at=ordered[-1].at,
    )
