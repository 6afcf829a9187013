"""Reader of JSON files with a firewall byte metric, from Azure Monitor or Prometheus. Pure.

- Azure Monitor: ``az monitor metrics list`` or a response of the metrics REST API.
- Log Analytics: ``az monitor log-analytics query`` or a response of the query REST API.
- Prometheus: a response of ``query_range``.
"""

import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from broadside.coordinator.imports import BadFile
from broadside.coordinator.imports.import_requests import Note
from broadside.coordinator.imports.time_text import parse_number, parse_time
from broadside.exchange.strict_json import parse_strict_json

# Byte metrics in order of preference, if a file has several metrics.
_PREFERRED: Final = ("throughput", "dataprocessed", "data processed", "bytecount", "byte count")
# Declaration of a value by unit and aggregation. Others cannot be converted to bytes.
_DECLARATIONS: Final[Mapping[tuple[str, str], Mapping[str, Any]]] = {
    ("bitspersecond", "average"): {},
    ("bitspersecond", "maximum"): {"aggregation": "max"},
    ("bitspersecond", "minimum"): {"aggregation": "min"},
    ("bytespersecond", "average"): {"unit": "bytes"},
    ("bytes", "total"): {"unit": "bytes", "aggregation": "sum"},
}
_UNIT_OF_NAME: Final = {"throughput": "bitspersecond", "dataprocessed": "bytes"}
# Fewest values from which a running total can be recognised.
_TOTAL_MIN_COUNT: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricValues:
    """Values of a metric file.

    Attributes:
        values: Time and value of each bin. None is unknown.
        declared: :class:`MetricDeclaration` fields that follow from the file.
        partial: Reason why the source calls its answer incomplete, or None.
        notes: Notes for the reader of the results.
        metric: Name of the metric of Azure that was read, or an empty text.
    """

    values: Sequence[tuple[datetime, float | None]]
    declared: Mapping[str, Any]
    partial: str | None = None
    notes: Sequence[Note] = ()
    metric: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sample:
    """One time of a metric of Azure, with its aggregations in lower case."""

    place: str
    metric: str
    unit: str
    at: str
    values: Mapping[str, Any]


def parse_metric_json(text: str, name: str) -> MetricValues:
    """Return the values of a JSON file.

    Args:
        text: The file's content.
        name: File name to use for error messages.

    Raises:
        BadFile: The file has another format, or a value is wrong.
    """
    try:
        document = parse_strict_json(text, len(text))
    except json.JSONDecodeError as error:
        location = f"line {error.lineno}"
        raise BadFile(f"{name}: {location}: not valid JSON; export the metric again") from error
    except ValueError as error:
        raise BadFile(f"{name}: not usable JSON ({error}); export the metric again") from error
    if isinstance(document, dict) and "status" in document:
        return _prometheus(document, name)
    samples = list(_azure_samples(document)) or list(_log_samples(document))
    errors = dict(_azure_errors(document))
    if not samples and errors:
        raise BadFile(
            f"{name}: no values of a metric, because Azure reported {next(iter(errors.values()))}; "
            "export the metric again"
        )
    if not samples:
        content = ", ".join(map(str, document))[:100] if isinstance(document, dict) else "a list"
        raise BadFile(
            f"{name}: no values of a metric (found: {content or 'nothing'}); give the JSON of "
            "`az monitor metrics list`, of Log Analytics' AzureMetrics, or of Prometheus' "
            "query_range"
        )
    values = _azure(samples, name)
    chosen = (errors.get(values.metric), errors.get(""))
    partial = "; ".join(text for text in chosen if text is not None)
    return replace(values, partial=partial or None)


def parse_log_rows(rows: Sequence[tuple[int, Mapping[str, str]]], name: str) -> MetricValues:
    """Return the values of rows of the table AzureMetrics.

    Args:
        rows: Row number and cells by column name in lower case.
        name: File name to use for error messages.

    Raises:
        BadFile: A value is wrong, or no metric counts bytes.
    """
    return _azure([_log_sample(f"row {number}", row) for number, row in rows], name)


# Azure -----------------------------------------------------------------------------------------


def _azure_errors(document: Any) -> Iterator[tuple[str, str]]:
    """Yield errors of an answer by metric, or by an empty name if they are of the whole answer.

    Azure Monitor has an ``errorCode`` for each metric, and Log Analytics an ``error`` beside the
    tables. Both return the values that they have.
    """
    if isinstance(document, dict) and document.get("error"):
        yield "", _error_text(document["error"])
    metrics = document.get("value", document) if isinstance(document, dict) else document
    for metric in metrics if isinstance(metrics, list) else [metrics]:
        code = metric.get("errorCode") if isinstance(metric, dict) else None
        if code and str(code).lower() != "success":
            yield _metric_name(metric), _error_text(metric)


def _error_text(error: Any) -> str:
    """Return the code and the message of an error."""
    fields = error if isinstance(error, dict) else {"code": error}
    code = fields.get("code") or fields.get("errorCode") or "error"
    message = fields.get("message") or fields.get("errorMessage")
    return f"{code}: {message}"[:200] if message else str(code)[:200]


def _metric_name(metric: Mapping[str, Any]) -> str:
    title = metric.get("name")
    return str(title.get("value", "") if isinstance(title, dict) else title or "")


def _azure_samples(document: Any) -> Iterator[_Sample]:
    """Yield the samples of a metrics response, or of one metric of it."""
    metrics = document.get("value", document) if isinstance(document, dict) else document
    for metric in metrics if isinstance(metrics, list) else [metrics]:
        if not isinstance(metric, dict) or not isinstance(metric.get("timeseries"), list):
            continue
        label = _metric_name(metric)
        for series in metric["timeseries"]:
            data = series.get("data") if isinstance(series, dict) else None
            for index, item in enumerate(data if isinstance(data, list) else ()):
                if isinstance(item, dict):
                    lower = {str(key).lower(): value for key, value in item.items()}
                    yield _Sample(
                        place=f"{label or 'metric'} data[{index}]",
                        metric=label,
                        unit=str(metric.get("unit") or "").lower(),
                        at=str(lower.pop("timestamp", "")),
                        values=lower,
                    )


def _log_samples(document: Any) -> Iterator[_Sample]:
    """Yield the samples of rows of AzureMetrics."""
    rows = document if isinstance(document, list) else []
    tables = document.get("tables") if isinstance(document, dict) else None
    for table in tables if isinstance(tables, list) else ():
        if not isinstance(table, dict):
            continue
        names = [str(column.get("name")) for column in table.get("columns", ())]
        rows = [*rows, *(dict(zip(names, row, strict=False)) for row in table.get("rows", ()))]
    for number, row in enumerate(rows, 1):
        if isinstance(row, dict):
            lower = {str(key).lower(): value for key, value in row.items()}
            if "timegenerated" in lower:
                yield _log_sample(f"row {number}", lower)


def _log_sample(place: str, row: Mapping[str, Any]) -> _Sample:
    time_column = next((column for column in row if column.startswith("timegenerated")), "")
    return _Sample(
        place=place,
        metric=str(row.get("metricname") or ""),
        unit=str(row.get("unitname") or "").lower(),
        at=str(row.get(time_column) or ""),
        values=row,
    )


def _azure(samples: Sequence[_Sample], name: str) -> MetricValues:
    """Return the values of the metric of bytes, summed over its dimensions."""
    metrics = list(dict.fromkeys(sample.metric for sample in samples))
    readings = {metric: _aggregation(samples, metric) for metric in metrics}
    usable = {metric: reading for metric, reading in readings.items() if reading}
    if not usable:
        units = ", ".join(dict.fromkeys(f"{s.metric} in {s.unit or '?'}" for s in samples))[:200]
        raise BadFile(
            f"{name}: no average in bits or bytes per second and no total in bytes (found: "
            f"{units}); export Throughput with the aggregation Average, or DataProcessed with Total"
        )
    ranked = sorted(usable, key=_rank)
    if len(usable) > 1 and _rank(ranked[0]) == _rank(ranked[1]):
        raise BadFile(
            f"{name}: several metrics of bytes ({', '.join(usable)}); export only one of them"
        )
    chosen = ranked[0]
    aggregation, declared = usable[chosen]
    by_time: dict[datetime, float | None] = {}
    for sample in samples:
        if sample.metric != chosen:
            continue
        at = _time(sample.at, f"{name}: {sample.place}")
        value = _number(sample.values.get(aggregation), f"{name}: {sample.place}, {aggregation}")
        before = by_time.get(at)
        if before is not None and value is not None and aggregation in ("maximum", "minimum"):
            raise BadFile(
                f"{name}: {sample.place}: {sample.at!r} has two series, and their {aggregation} "
                "values cannot be added; export the metric without splitting"
            )
        known = [number for number in (before, value) if number is not None]
        by_time[at] = sum(known) if known else None
    notes = []
    if others := [metric for metric in metrics if metric != chosen]:
        sentence = f"{name}: only the metric {chosen} was read; not read: {', '.join(others)}"
        step = "If another metric has the bytes, import a file with this metric only"
        notes = [Note(id="metrics-ignored", sentence=f"{sentence[:998]}.", next_step=step)]
    values = tuple(by_time.items())
    return MetricValues(values=values, declared=declared, notes=notes, metric=chosen)


def _rank(metric: str) -> int:
    lower = metric.lower()
    return _PREFERRED.index(lower) if lower in _PREFERRED else len(_PREFERRED)


def _aggregation(samples: Sequence[_Sample], metric: str) -> tuple[str, Mapping[str, Any]] | None:
    """Return the aggregation to use and its declaration, or None if bytes cannot be computed."""
    selected = [sample for sample in samples if sample.metric == metric]
    unit = selected[0].unit or _UNIT_OF_NAME.get(metric.lower().replace(" ", ""), "")
    for aggregation in ("average", "total", "maximum", "minimum"):
        declared = _DECLARATIONS.get((unit, aggregation))
        known = any(sample.values.get(aggregation) not in (None, "") for sample in selected)
        if declared is not None and known:
            return aggregation, {"mtu_bytes": 1500, **declared}
    return None


# Prometheus ------------------------------------------------------------------------------------


def _prometheus(document: Mapping[str, Any], name: str) -> MetricValues:
    data = document.get("data")
    kind = data.get("resultType") if isinstance(data, dict) else None
    if document.get("status") != "success":
        reason = str(document.get("error") or "no data")[:200]
        raise BadFile(f"{name}: Prometheus reported an error: {reason}; correct the query")
    if not isinstance(data, dict) or kind != "matrix":
        raise BadFile(
            f"{name}: resultType is {kind!r}, and only `matrix` has a time range; use query_range"
        )
    series = data.get("result")
    if not isinstance(series, list) or not series:
        raise BadFile(f"{name}: result is empty: the query has no values in this time range")
    by_time: dict[datetime, float | None] = {}
    counters = set()
    for index, one in enumerate(series):
        place = f"{name}: result[{index}]"
        points = _points(one, place)
        labels = one.get("metric") or {}
        is_total = _is_total(str(labels.get("__name__", "")), [value for _, value in points])
        counters.add(is_total)
        for at, value in _increases(points) if is_total else points:
            before = by_time.get(at, 0.0)
            by_time[at] = None if before is None or value is None else before + value
    if len(counters) > 1:
        raise BadFile(f"{name}: some series are running totals and others are not; query one kind")
    notes = []
    if len(series) > 1:
        sentence = f"{name}: {len(series)} series were added up."
        step = "Check that no byte is in two of them, such as input and output"
        notes.append(Note(id="metric-series-added", sentence=sentence, next_step=step))
    declared: dict[str, Any] = {}
    if counters == {True}:
        declared = {"unit": "bytes", "aggregation": "sum"}
        sentence = f"{name}: its values only grow, so they were read as a running total of bytes."
        step = "If they count bits, give `--metric unit=bits`"
        notes.append(Note(id="metric-running-total", sentence=sentence, next_step=step))
    warnings = document.get("warnings") or ()
    texts = warnings if isinstance(warnings, list | tuple) else [warnings]
    partial = f"warning {str(texts[0])[:200]!r}" if texts else None
    values = tuple(by_time.items())
    return MetricValues(values=values, declared=declared, partial=partial, notes=notes)


def _points(one: Any, place: str) -> list[tuple[datetime, float | None]]:
    """Return the points of a series. NaN and infinite values are unknown."""
    values = one.get("values") if isinstance(one, dict) else None
    if not isinstance(values, list):
        raise BadFile(f"{place}: no `values`; give the response of query_range")
    points = []
    for number, pair in enumerate(values):
        try:
            at, value = parse_time(str(pair[0])), float(pair[1])
        except (TypeError, ValueError, IndexError, KeyError, OverflowError):
            raise BadFile(
                f"{place}.values[{number}]: {str(pair)[:60]!r}: not a time and a value; export the "
                "response again"
            ) from None
        if value < 0:
            raise BadFile(
                f"{place}.values[{number}]: {value:g} is negative; query the rate of a counter"
            )
        points.append((at, value if math.isfinite(value) else None))
    return points


def _is_total(label: str, values: Sequence[float | None]) -> bool:
    """Return True for a running total, by its name or because an unnamed series only grows."""
    known = [value for value in values if value is not None]
    if label:
        return label.endswith(("_total", "Octets"))
    grows = all(late >= early for early, late in itertools.pairwise(known))
    return len(known) >= _TOTAL_MIN_COUNT and grows and known[-1] > known[0]


def _increases(
    points: Sequence[tuple[datetime, float | None]],
) -> list[tuple[datetime, float | None]]:
    """Return the increase from each point to the next. It is unknown where the total restarted."""
    increases: list[tuple[datetime, float | None]] = []
    for (at, early), (_, late) in itertools.pairwise(points):
        known = early is not None and late is not None and late >= early
        increases.append((at, late - early if known else None))  # type: ignore[operator]
    return increases


# Values ----------------------------------------------------------------------------------------


def _time(text: str, place: str) -> datetime:
    try:
        return parse_time(text)
    except ValueError as error:
        raise BadFile(f"{place}: time {text[:60]!r}: {error}") from None


def _number(value: Any, place: str) -> float | None:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return None
    try:
        number = parse_number(value.strip()) if isinstance(value, str) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = -1.0
    if number is not None and number < 0:
        raise BadFile(f"{place}: {str(value)[:60]!r}: not a number from 0; correct it or use null")
    return number
