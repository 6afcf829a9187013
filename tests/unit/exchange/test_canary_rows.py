"""Test the rows with canaries."""

import pytest

from broadside.exchange.canary_rows import (
    ROW_COUNT,
    CanaryRequests,
    CanaryRounds,
    canary_rows,
    parse_canary,
)
from broadside.exchange.chunks import pack
from broadside.exchange.messages import CanaryOutcome
from broadside.exchange.ports import RecordUnreadable
from broadside.exchange.rows import make_row


def canary_rounds(count: int) -> CanaryRounds:
    """Return rounds with all kinds of values."""
    forbidden, allowed = (
        CanaryRequests(
            outcomes=tuple(CanaryOutcome((i + shift) % len(CanaryOutcome)) for i in range(count)),
            took_us=tuple(None if i % 5 == shift else i * 1000 for i in range(count)),
            received=tuple((None, True, False)[(i + shift) % 3] for i in range(count)),
        )
        for shift in (0, 1)
    )
    return CanaryRounds(first_at_s=1.5e9, every_s=0.5, forbidden=forbidden, allowed=allowed)


@pytest.mark.parametrize("count", [1, 30, ROW_COUNT + 1])
def test_canaries_are_restored(count: int) -> None:
    rows = canary_rows("burst.r.00000", "canary.00003", canary_rounds(count))
    assert [row.row_key for row in rows] == ["canary.00003.000", "canary.00003.001"][: len(rows)]
    assert parse_canary(rows) == canary_rounds(count)


@pytest.mark.parametrize(
    "packed",
    [
        b"x",
        pack({"forbidden_outcome": [1]}),
        pack({f"{k}_{c}": [99] for k in ("forbidden", "allowed") for c in ("outcome", "us")}),
        pack({"forbidden_outcome": [1] * (ROW_COUNT + 1)}),
    ],
)
def test_an_invalid_row_is_reported_with_its_key(packed: bytes) -> None:
    row = make_row("p", "canary.00000.000", {"first_at_s": 1.0, "every_s": 1.0, "canary_0": packed})
    with pytest.raises(RecordUnreadable, match=r"p\|canary.00000.000: canary"):
        parse_canary([row])


def test_rows_without_a_step_are_rejected() -> None:
    (row,) = canary_rows("p", "canary.00000", canary_rounds(3))
    without = make_row("p", row.row_key, {**row.properties, "every_s": 0.0})
    with pytest.raises(RecordUnreadable, match="every_s"):
        parse_canary([without])
