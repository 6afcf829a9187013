"""Labels and units of the live page, as the JavaScript module `words.js`."""

import json

from broadside.coordinator.core.formatting import DIGITS, SCALES, UNKNOWN
from broadside.coordinator.core.metrics import ALL_METRICS, LAYER_LABELS, RECEIVED
from broadside.coordinator.core.thresholds import ALL_THRESHOLDS
from broadside.coordinator.views.part_rows import PART_MEASURES


def page_labels() -> str:
    """Return the module with all units, metrics and thresholds."""
    values = {
        "DIGITS": DIGITS,
        "UNKNOWN": UNKNOWN,
        "SCALES": SCALES,
        "RECEIVED": RECEIVED.name,
        "LAYERS": LAYER_LABELS,
        "FIGURES": [
            {
                "name": metric.name,
                "called": metric.short_name,
                "words": metric.label,
                "layer": metric.layer,
                "unit": metric.unit,
                "decimals": metric.decimals,
                "read": metric.path,
                "fold": metric.aggregation,
                "stored": metric.stored or metric.name,
                "shown": metric.headline and metric.path is not None,
            }
            for metric in ALL_METRICS
        ],
        "PART_MEASURES": PART_MEASURES,
        "THRESHOLDS": {
            threshold.bound: {
                "words": threshold.label,
                "unit": threshold.unit,
                "isFloor": threshold.is_floor,
            }
            for threshold in ALL_THRESHOLDS
        },
    }
    return "".join(
        f"export const {name} = {json.dumps(value, ensure_ascii=False)};\n"
        for name, value in values.items()
    )
