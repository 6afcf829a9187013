"""Storage formats of the device counter and of telemetry that are stored with a run.

Names of stored fields are those of earlier versions.
"""

import json
import math
import zlib
from dataclasses import asdict
from datetime import datetime
from typing import Any, Final

import numpy as np

from broadside.coordinator.core.arrays import Floats
from broadside.coordinator.core.measure.records.evidence import CounterRecord
from broadside.coordinator.core.measure.telemetry import (
    DeviceTelemetry,
    IssueKind,
    Quantity,
    TelemetryIssue,
    TelemetrySeries,
    column,
)
from broadside.exchange.messages import Flow

_CONFIGURED = ("mss_bytes", "mtu_bytes", "extreme", "counts_lost")


def dump_counter(device_counter: CounterRecord) -> bytes:
    """Return a device counter as JSON, with null for unknown bins."""
    partial = {} if device_counter.partial is None else {"partial": device_counter.partial}
    return json.dumps(
        partial
        | {
            "source": device_counter.source,
            "layer": device_counter.layer,
            "grain_s": device_counter.grain_s,
            "read_at": device_counter.read_at.isoformat(),
            "lag_hint_s": device_counter.lag_hint_s,
            "vxlan": device_counter.vxlan,
            "flows": device_counter.flows,
            "snat_utilization_ratio": device_counter.snat_utilization_ratio,
            "notes": device_counter.notes,
            **{
                name: value
                for name in _CONFIGURED
                if (value := getattr(device_counter, name)) is not None
            },
            **(
                {}
                if device_counter.drops_count is None
                else {"drops": _counts(device_counter.drops_count)}
            ),
            "bins": [
                [start_s, end_s, None if math.isnan(count) else count]
                for start_s, end_s, count in zip(
                    device_counter.start_s.tolist(),
                    device_counter.end_s.tolist(),
                    device_counter.bytes.tolist(),
                    strict=True,
                )
            ],
        }
    ).encode()


def _counts(values: Floats) -> list[float | None]:
    return [None if math.isnan(value) else value for value in values.tolist()]


def load_counter(document: bytes) -> CounterRecord:
    """Return the device counter that :func:`dump_counter` wrote."""
    stored = json.loads(document)
    flows = stored.pop("flows", tuple(Flow))
    bins = np.array(stored.pop("bins"), dtype=float).reshape(-1, 3)
    drops = stored.pop("drops", None)
    return CounterRecord(
        **{
            **stored,
            "read_at": datetime.fromisoformat(stored["read_at"]),
            "notes": tuple(stored["notes"]),
            "flows": tuple(Flow(flow) for flow in flows),
        },
        start_s=bins[:, 0],
        end_s=bins[:, 1],
        bytes=bins[:, 2],
        drops_count=None if drops is None else np.array(drops, dtype=float),
    )


_COLUMNS: Final = ("at_s", "over_s", "bound_s", "values")
# Decimals per column. Times have millisecond resolution.
_DIGITS: Final = {"at_s": 3, "over_s": 3, "bound_s": 4}


def dump_telemetry(telemetry: DeviceTelemetry) -> bytes:
    """Return telemetry as compressed JSON, with null for unknown values."""
    document = {
        "devices": telemetry.devices,
        "read_at": telemetry.read_at.isoformat(),
        "cores_count": telemetry.cores_count,
        "series": [_dump_series(series) for series in telemetry.series],
        "remarks": [_dump_issue(issue) for issue in telemetry.issues],
    }
    return zlib.compress(json.dumps(document, separators=(",", ":")).encode())


def load_telemetry(document: bytes) -> DeviceTelemetry:
    """Return the telemetry that :func:`dump_telemetry` wrote."""
    stored = json.loads(zlib.decompress(document))
    return DeviceTelemetry(
        devices=tuple(stored["devices"]),
        read_at=datetime.fromisoformat(stored["read_at"]),
        cores_count=stored["cores_count"],
        series=tuple(_load_series(series) for series in stored["series"]),
        issues=tuple(_load_issue(issue) for issue in stored["remarks"]),
    )


def _dump_issue(issue: TelemetryIssue) -> dict[str, Any]:
    fields = asdict(issue)
    return {"said": fields.pop("text"), **fields}


def _load_issue(stored: dict[str, Any]) -> TelemetryIssue:
    text, kind = stored.pop("said"), IssueKind(stored.pop("kind"))
    return TelemetryIssue(kind=kind, text=text, **stored)


def _dump_series(series: TelemetrySeries) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "device": series.device,
        "source": series.source,
        "quantity": series.quantity,
        "instance": series.instance,
    }
    if series.is_archive:
        fields["is_archive"] = True
    for name in _COLUMNS:
        values = getattr(series, name).tolist()
        digits = _DIGITS.get(name)
        fields[name] = [
            None if math.isnan(v) else float(f"{v:.9g}") if digits is None else round(v, digits)
            for v in values
        ]
    return fields


def _load_series(stored: dict[str, Any]) -> TelemetrySeries:
    columns: dict[str, Any] = {
        name: column(math.nan if value is None else value for value in stored.pop(name))
        for name in _COLUMNS
    }
    return TelemetrySeries(**{**stored, "quantity": Quantity(stored["quantity"])}, **columns)
