"""Reader of files with a firewall byte metric, as CSV or JSON."""

import csv
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from broadside.coordinator.core.measure.records.evidence import EXTREMES, CounterRecord
from broadside.coordinator.imports import BadFile
from broadside.coordinator.imports.column_profile import METRIC_PROFILE, load_profile
from broadside.coordinator.imports.import_requests import MetricPoint
from broadside.coordinator.imports.metric_cells import normalize_metric, split_rows
from broadside.coordinator.imports.metric_declaration import DEFAULT, MetricDeclaration
from broadside.coordinator.imports.metric_json import (
    MetricValues,
    parse_log_rows,
    parse_metric_json,
)
from broadside.coordinator.imports.table_reader import TableReader
from broadside.coordinator.imports.time_text import parse_zone, to_utc
from broadside.coordinator.imports.uploaded_files import read_text


def read_metric(path: Path, declared: Mapping[str, object] | None = None) -> dict[str, Any]:
    """Read a metric as fields of an import.

    Args:
        path: CSV or JSON file to read.
        declared: :class:`MetricDeclaration` fields to set. The others follow from the file. None
            sets none.

    Returns:
        The fields ``metric_source``, ``metric``, ``metric_declaration``, ``metric_problem`` and
        ``notes``.

    Raises:
        BadFile: A value or the declaration is wrong.
    """
    points, declaration, metric = read_declared_metric(path, declared)
    return {
        "metric_source": path.name,
        "metric": points,
        "metric_declaration": declaration,
        "metric_problem": None if metric is None else metric.partial,
        "notes": () if metric is None else tuple(metric.notes),
    }


def read_declared_metric(
    path: Path, declared: Mapping[str, object] | None = None
) -> tuple[tuple[MetricPoint, ...], MetricDeclaration, MetricValues | None]:
    """Read the points in a file, and the meaning of their values.

    Args:
        path: CSV or JSON file to read.
        declared: :class:`MetricDeclaration` fields to set. The others follow from the file. None
            sets none.

    Returns:
        The points, the declaration, and the values of a file that is no table with one metric.

    Raises:
        BadFile: A value or the declaration is wrong.
    """
    declared = declared or {}
    text, name = read_text(path), str(path)
    metric = _parse_other(text, name)
    if metric is None:
        column, points = parse_metric(text, name)
        declaration = _declaration(column, declared)
    else:
        points = _points(metric, name)
        declaration = _validate({**metric.declared}, declared)
    if not declaration.is_bit_rate:
        points = tuple(MetricPoint(at=point.at, value=point.bits_per_second) for point in points)
    return points, declaration, metric


def _parse_other(text: str, name: str) -> MetricValues | None:
    """Return the values of JSON or of a table of Log Analytics. None for another table."""
    if text.lstrip()[:1] in ("{", "["):
        return parse_metric_json(text, name)
    try:
        rows = split_rows(text)
    except csv.Error:
        return None
    head = next(
        (n for n, row in enumerate(rows[:100]) if "metricname" in map(str.lower, row)), None
    )
    if head is None:
        return None
    titles = [cell.lower() for cell in rows[head]]
    cells = [
        (number, dict(zip(titles, row, strict=False)))
        for number, row in enumerate(rows[head + 1 :], head + 2)
        if any(row)
    ]
    return parse_log_rows(cells, name)


def _points(metric: MetricValues, name: str) -> tuple[MetricPoint, ...]:
    points = []
    for at, value in sorted(metric.values):
        try:
            points.append(MetricPoint(at=to_utc(at, UTC), bits_per_second=value))
        except ValueError as error:
            raise BadFile(f"{name}: {at.isoformat()}: {error}; correct the time") from None
    _check_count(points, name)
    return tuple(points)


def _check_count(points: Sequence[MetricPoint], name: str) -> None:
    if len(points) < 2:
        raise BadFile(
            f"{name}: {len(points)} points, and at least 2 are needed to know the bin length; "
            "export the metric over all bursts"
        )


def _declaration(column: str, declared: Mapping[str, object]) -> MetricDeclaration:
    """Return the declaration from the given fields, and otherwise from the column name."""
    metrics = load_profile(METRIC_PROFILE).metrics
    named = next(m.declaration for m in metrics if column in m.names or not m.names)
    return _validate(named.model_dump(exclude_defaults=True), declared)


def _validate(usual: dict[str, Any], declared: Mapping[str, object]) -> MetricDeclaration:
    """Return the declaration with the user's fields over those of the file."""
    if "mss_bytes" in declared:
        usual.pop("mtu_bytes", None)
    try:
        return MetricDeclaration.model_validate({**usual, **declared})
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"])) or "declaration"
        raise BadFile(f"--metric {field}: {first['msg']} (got {first['input']!r})") from None


def parse_metric(text: str, name: str) -> tuple[str, tuple[MetricPoint, ...]]:
    """Return the name of the value column in lower case, and all points before conversion.

    Args:
        text: The file's content. ``null`` and empty values are unknown.
        name: File name to use for error messages.

    Returns:
        Name of the column, and points in the order of the rows. None in a point is unknown.

    Raises:
        BadFile: The table is invalid.
    """
    profile = load_profile(METRIC_PROFILE)
    reader = TableReader(name, profile, parse_zone(profile.timezone))
    names = [known for column in profile.columns.values() for known in column.names]
    values = reader.values(normalize_metric(text, name, names))
    points = tuple(MetricPoint(at=at, bits_per_second=rate) for at, rate in values.items())
    _check_count(points, name)
    return reader.headers["metric"].lower(), points


def throughput_counter(
    source: str,
    points: Sequence[MetricPoint],
    declared: MetricDeclaration = DEFAULT,
    partial: str | None = None,
) -> CounterRecord:
    """Convert points to device counter data. The bin length is the most frequent gap.

    Args:
        source: Metric name.
        points: At least two points in any order.
        declared: Meaning of the values. Rates in bit/s are not converted.
        partial: Reason why the source calls its answer incomplete, or None.

    Returns:
        Bytes by bin, with NaN for unknown bins.
    """
    ordered = sorted(points, key=lambda point: point.at)
    start = np.array([point.at.timestamp() for point in ordered])
    gaps = Counter(np.diff(start).tolist())
    grain_s = float(min(gaps, key=lambda gap: (-gaps[gap], gap)))
    rates = np.array([point.bits_per_second for point in ordered], dtype=np.float64)
    values = np.array([point.value for point in ordered], dtype=np.float64)
    counted = np.where(np.isnan(values), rates / 8 * grain_s, declared.bytes_of(values, grain_s))
    return CounterRecord(
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
        extreme=EXTREMES.get(declared.aggregation),
        partial=partial,
    )
