"""What the API answers beside the core's own values."""

import json
from collections.abc import Iterator
from typing import Final

from coordinator.core.judge.summary import RunSummary, canonical
from exchange.messages import Message

DIFFERENCES_MAX_COUNT: Final = 20


class Recomputed(Message):
    """A verdict computed again from the stored rows, held against the stored one."""

    equal: bool  # byte for byte
    differences: tuple[str, ...] = ()  # the first of them: field, stored value, value now
    differences_count: int = 0
    summary: RunSummary  # as computed now; nothing was stored


def hold_against(stored: bytes, computed: RunSummary) -> Recomputed:
    """Compare a stored summary's text with what was computed again."""
    now = canonical(computed)
    found = [] if now == stored else list(_differences("", json.loads(stored), json.loads(now)))
    if now != stored and not found:
        found = ["the two texts differ in form only: another version of Broadside wrote the stored"]
    return Recomputed(
        equal=now == stored,
        differences=tuple(found[:DIFFERENCES_MAX_COUNT]),
        differences_count=len(found),
        summary=computed,
    )


def _differences(where: str, stored: object, now: object) -> Iterator[str]:
    """Every leaf that differs, by its dotted name."""
    if isinstance(stored, dict) and isinstance(now, dict):
        for name in sorted(stored.keys() | now.keys()):
            inner = f"{where}.{name}" if where else name
            yield from _differences(inner, stored.get(name), now.get(name))
    elif isinstance(stored, list) and isinstance(now, list) and len(stored) == len(now):
        for index, (one, other) in enumerate(zip(stored, now, strict=True)):
            yield from _differences(f"{where}[{index}]", one, other)
    elif stored != now:
        yield f"{where}: {_said(stored)} stored, {_said(now)} now"


def _said(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
