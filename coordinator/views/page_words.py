"""The page's words and units, as the module `words.js` that is served beside its files."""

import json

from coordinator.core.goals import GOALS
from coordinator.core.words import DIGITS, SCALES, UNKNOWN


def page_words() -> str:
    """What the formatter of the page needs to say the same as :mod:`coordinator.core.words`."""
    goals = {
        goal.bound: {"words": goal.words, "unit": goal.unit, "isFloor": goal.is_floor}
        for goal in GOALS
    }
    told = {"DIGITS": DIGITS, "UNKNOWN": UNKNOWN, "SCALES": SCALES, "GOALS": goals}
    return "".join(
        f"export const {name} = {json.dumps(value, ensure_ascii=False)};\n"
        for name, value in told.items()
    )
