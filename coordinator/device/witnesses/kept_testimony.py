"""Storage format of telemetry that is stored with a run."""

import json
import math
import zlib
from dataclasses import asdict
from datetime import datetime
from typing import Any, Final

from broadside.coordinator.core.measure.testimony import (
    Quantity,
    Remark,
    RemarkKind,
    Witnessed,
    WitnessSeries,
    column,
)

_COLUMNS: Final = ("at_s", "over_s", "bound_s", "values")
# Decimals per column. Times have millisecond resolution.
_DIGITS: Final = {"at_s": 3, "over_s": 3, "bound_s": 4}


def dump_testimony(testimony: Witnessed) -> bytes:
    """Return telemetry as compressed JSON, with null for unknown values."""
    document = {
        "devices": testimony.devices,
        "read_at": testimony.read_at.isoformat(),
        "cores_count": testimony.cores_count,
        "series": [_dumped(series) for series in testimony.series],
        "remarks": [asdict(remark) for remark in testimony.remarks],
    }
    return zlib.compress(json.dumps(document, separators=(",", ":")).encode())


def load_testimony(document: bytes) -> Witnessed:
    """Return the telemetry that :func:`dump_testimony` wrote."""
    kept = json.loads(zlib.decompress(document))
    return Witnessed(
        devices=tuple(kept["devices"]),
        read_at=datetime.fromisoformat(kept["read_at"]),
        cores_count=kept["cores_count"],
        series=tuple(_loaded(series) for series in kept["series"]),
        remarks=tuple(
            Remark(**{**remark, "kind": RemarkKind(remark["kind"])}) for remark in kept["remarks"]
        ),
    )


def _dumped(series: WitnessSeries) -> dict[str, Any]:
    named: dict[str, Any] = {
        "device": series.device,
        "source": series.source,
        "quantity": series.quantity,
        "instance": series.instance,
    }
    if series.is_archive:
        named["is_archive"] = True
    for name in _COLUMNS:
        values = getattr(series, name).tolist()
        digits = _DIGITS.get(name)
        named[name] = [
            None if math.isnan(v) else float(f"{v:.9g}") if digits is None else round(v, digits)
            for v in values
        ]
    return named


def _loaded(kept: dict[str, Any]) -> WitnessSeries:
    columns: dict[str, Any] = {
        name: column(math.nan if value is None else value for value in kept.pop(name))
        for name in _COLUMNS
    }
    return WitnessSeries(**{**kept, "quantity": Quantity(kept["quantity"])}, **columns)
