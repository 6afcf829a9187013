"""Parser for CSV files with a firewall byte metric."""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
from pydantic import ValidationError

from broadside.coordinator.core.measure.records.evidence import FirewallLedger
from broadside.coordinator.imports import BadFile
from broadside.coordinator.imports.import_requests import METRIC_POINTS_MAX_COUNT, MetricPoint
from broadside.coordinator.imports.metric_declaration import (
    DEFAULT,
    MetricDeclaration,
    azure_firewall,
)
from broadside.coordinator.imports.time_text import parse_number, parse_time, say_zone, to_utc
from broadside.coordinator.imports.uploaded_files import read_rows, read_text, wrong_cell

# Higher values count as errors.
RATE_MAX_BITS_PER_SECOND: Final = 1e15

_TIMES: Final = ("timestamp", "time", "time (utc)", "timestamp (utc)", "timestamp [utc]")
_RATES: Final = (
    *("throughput_bits_per_second", "bits_per_second", "throughput", "average", "value"),
    *("throughput (avg)", "throughput (average)", "throughput (bits/s)"),
)
# Meaning of the values by column name, for other Azure Monitor exports.
_DECLARING: Final = {
    **dict.fromkeys(
        ("dataprocessed", "data processed", "data processed (sum)", "data_processed_bytes"),
        azure_firewall("DataProcessed"),
    ),
    **dict.fromkeys(("maximum", "throughput (max)"), MetricDeclaration(aggregation="maximum")),
    **dict.fromkeys(("minimum", "throughput (min)"), MetricDeclaration(aggregation="minimum")),
    "total": azure_firewall("DataProcessed"),
}


def read_declared_metric(
    path: Path, declared: Mapping[str, object] | None = None
) -> tuple[tuple[MetricPoint, ...], MetricDeclaration]:
    """Read the points in a file, and the meaning of their values.

    Args:
        path: CSV file to read.
        declared: :class:`MetricDeclaration` fields to set. The others follow from the column name,
            as used in Azure Monitor.

    Raises:
        BadFile: A value or the declaration is wrong.
    """
    column, points = _points(read_text(path), str(path))
    declaration = _declaration(column, declared or {})
    if not declaration.is_bit_rate:
        points = tuple(MetricPoint(at=each.at, value=each.bits_per_second) for each in points)
    return points, declaration


def _declaration(column: str, declared: Mapping[str, object]) -> MetricDeclaration:
    """Return the declaration from the given fields, and otherwise from the column name."""
    named = _DECLARING.get(column, azure_firewall("Throughput")).model_dump(exclude_defaults=True)
    if "mss_bytes" in declared:
        named.pop("mtu_bytes", None)
    try:
        return MetricDeclaration.model_validate({**named, **declared})
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"])) or "declaration"
        raise BadFile(f"--metric {field}: {first['msg']}") from None


def _points(text: str, name: str) -> tuple[str, tuple[MetricPoint, ...]]:
    """Return the name of the value column in lower case, and all points before conversion.

    Times without an offset are UTC, as in Azure Monitor. ``null`` and empty values are unknown.
    ``name`` is the file name for error messages.
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
            columns = (_place(cells, _TIMES), _place(cells, (*_RATES, *_DECLARING)))
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
    return names[1].lower(), tuple(points)


def _place(cells: Sequence[str], names: Sequence[str]) -> int:
    return next((place for place, cell in enumerate(cells) if cell.lower() in names), -1)


def throughput_ledger(
    source: str,
    points: Sequence[MetricPoint],
    declared: MetricDeclaration = DEFAULT,
) -> FirewallLedger:
    """Convert points to firewall counter data. The bin length is the most frequent gap.

    Args:
        source: Metric name.
        points: At least two points in any order.
        declared: Meaning of the values. Rates in bit/s are not converted.
    """
    ordered = sorted(points, key=lambda point: point.at)
    start = np.array([point.at.timestamp() for point in ordered])
    gaps = Counter(np.diff(start).tolist())
    grain_s = float(min(gaps, key=lambda gap: (-gaps[gap], gap)))
    rates = np.array([point.bits_per_second for point in ordered], dtype=np.float64)
    values = np.array([point.value for point in ordered], dtype=np.float64)
    counted = np.where(np.isnan(values), rates / 8 * grain_s, declared.bytes_of(values, grain_s))
    extreme = declared.aggregation if declared.aggregation in ("maximum", "minimum") else None
    return FirewallLedger(
        source=source,
        start_s=start,
        end_s=start + grain_s,
        bytes=counted,
        grain_s=grain_s,
        read_at=ordered[-1].at,
        layer=declared.layer,
        flows=declared.flows,
        lag_hint_s=declared.lag_s,
        mss_bytes=declared.mss_bytes,
        mtu_bytes=declared.mtu_bytes,
        counts_lost=declared.counts_lost,
        extreme=extreme,
    )
