"""Readings of several processes, or of several devices, become bins one after the other."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

import numpy as np
import pytest

from broadside.coordinator.core.judge.counter_bins import readable
from broadside.coordinator.core.measure.testimony import Quantity, Witnessed, WitnessSeries, joined
from broadside.coordinator.device.ledgers.snmp_source import SnmpLedger
from broadside.coordinator.device.ledgers.source import LedgerError, LiveSource
from broadside.coordinator.device.witnesses.kept_testimony import dump_testimony, load_testimony

RATE: Final = 8.0  # bit/s: a byte a second
START_S: Final = 1_795_000_000.0


def series(times_s: Sequence[float], *, device: str = "fw", rate: float = RATE) -> WitnessSeries:
    """Readings at these seconds, of which the first only begins the count."""
    at_s = START_S + np.array(times_s, dtype=float)
    return WitnessSeries(
        device=device,
        source="snmp IF-MIB 10.0.0.4",
        quantity=Quantity.RECEIVED,
        instance="port1",
        at_s=at_s[1:],
        over_s=np.diff(at_s),
        bound_s=np.full(len(at_s) - 1, 0.01),
        values=np.full(len(at_s) - 1, rate),
    )


def told(*parts: WitnessSeries) -> Witnessed:
    return Witnessed(
        devices=("fw",), series=parts, read_at=datetime.fromtimestamp(START_S + 100, UTC)
    )


def bins(testimony: Witnessed) -> list[tuple[float, float, float | None]]:
    ledger = SnmpLedger((), 1.0, "wire").ledger_of(testimony)
    columns = (ledger.start_s - START_S, ledger.end_s - START_S, ledger.bytes)
    assert readable(ledger).rejected_count == 0  # no bin over another, by however little
    return [
        (round(start, 2), round(end, 2), None if np.isnan(count) else round(count, 2))
        for start, end, count in zip(*(each.tolist() for each in columns), strict=True)
    ]


def kept(testimony: Witnessed) -> Witnessed:
    """As it comes back: to the millisecond."""
    return load_testimony(dump_testimony(testimony))


def test_what_a_restart_did_not_ask_is_an_unknown_bin() -> None:
    before, after = told(series([0, 1.0004, 2.0011])), told(series([7.3, 8.3]))
    assert bins(joined(kept(before), after)) == [
        (0, 1, 1),
        (1, 2, 1),
        (2, 7.3, None),
        (7.3, 8.3, 1),
    ]


def test_two_coordinators_that_ask_one_device_count_nothing_twice() -> None:
    one, other = told(series(range(6))), told(series([2.5, 3.5, 4.5, 5.5, 6.5, 7.5]))
    found = bins(joined(kept(one), other))
    assert [(start, end) for start, end, count in found if count is not None] == [
        *((second, second + 1) for second in range(5)),
        (5.5, 6.5),
        (6.5, 7.5),
    ]
    assert [count for *_, count in found] == [1, 1, 1, 1, 1, None, 1, 1]


def test_what_one_device_was_not_asked_is_unknown_of_all() -> None:
    first = series(range(9))
    second = joined(told(series(range(4), device="b")), told(series(range(6, 9), device="b")))
    assert [count for *_, count in bins(told(first, *second.series))] == [
        *(2, 2, 2),
        *(None, None, None),
        *(2, 2),
    ]


def test_without_a_reading_there_is_no_ledger() -> None:
    ledger = SnmpLedger((), 1.0, "wire")
    assert isinstance(ledger, LiveSource)
    with pytest.raises(LedgerError, match="no reading yet"):
        ledger.ledger_of(told())
