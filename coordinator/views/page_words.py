"""Labels and units of the live page, as the JavaScript module `words.js`."""

import json

from broadside.coordinator.core.figures import FIGURES, RECEIVED
from broadside.coordinator.core.goals import GOALS
from broadside.coordinator.core.words import DIGITS, SCALES, UNKNOWN


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
                "called": each.called,
                "words": each.words,
                "layer": each.layer,
                "unit": each.unit,
                "decimals": each.decimals,
                "read": each.read if isinstance(each.read, str) else None,
                "fold": each.fold,
                "stored": each.stored or each.name,
                "shown": each.headline and isinstance(each.read, str),
            }
            for each in FIGURES
        ],
        "GOALS": {
            goal.bound: {"words": goal.words, "unit": goal.unit, "isFloor": goal.is_floor}
            for goal in GOALS
        },
    }
    return "".join(
        f"export const {name} = {json.dumps(value, ensure_ascii=False)};\n"
        for name, value in told.items()
    )
