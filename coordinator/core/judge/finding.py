"""What a reader is told of a run, and how it ended."""

from enum import StrEnum
from typing import Literal

from exchange.messages import Message


class Verdict(StrEnum):
    PASS = "pass"  # noqa: S105  # a verdict, not a password
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"


Severity = Literal["problem", "warning", "note"]


class Finding(Message):
    """One thing a reader must know, with its numbers and what to do."""

    id: str
    kind: Literal["verdict", "cause", "context"]  # concluded, why, and to bear in mind
    severity: Severity
    weight: float  # findings are ordered by it, heaviest first
    sentence: str
    next_step: str | None = None
