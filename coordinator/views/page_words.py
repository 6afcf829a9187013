"""Labels and units of the live page, as the JavaScript module `words.js`."""

import json

from broadside.coordinator.core.formatting import DIGITS, SCALES, UNKNOWN
from broadside.coordinator.core.metrics import ALL_METRICS, RECEIVED
from broadside.coordinator.core.thresholds import ALL_THRESHOLDS


def page_words() -> str:
    """Return the module with all units, metrics and thresholds."""
    told = {
        "DIGITS": DIGITS,
        "UNKNOWN": UNKNOWN,
        "SCALES": SCALES,
        "RECEIVED": RECEIVED.name,
        "FIGURES": [
            {
                "name": each.name,
                "called": each.short_name,
                "words": each.label,
                "layer": each.layer,
                "unit": each.unit,
                "decimals": each.decimals,
                "read": each.path,
                "fold": each.aggregation,
                "stored": each.stored or each.name,
                "shown": each.headline and each.path is not None,
            }
            for each in ALL_METRICS
        ],
        "GOALS": {
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
        for name, value in told.items()
    )
