"""Tables of the guards of a run, for the command line and the report. Pure."""

from collections.abc import Sequence
from typing import Final

from broadside.coordinator.core.formatting import MetricUnit, count, quantity_text, rate, time
from broadside.coordinator.core.guards import GuardRecord, GuardReport

GUARD_COLUMNS: Final = ("guard", "limit", "last", "worst", "values", "stops within")


def guard_row(record: GuardRecord) -> list[str]:
    """Return the cells of a guard in the order of :data:`GUARD_COLUMNS`."""
    unit = MetricUnit.of(record.quantity)
    return [
        record.guard,
        quantity_text(unit, record.limit, 1),
        quantity_text(unit, record.last, 1),
        quantity_text(unit, record.worst, 1),
        count(record.readings_count),
        time(record.stop_within_s),
    ]


def impact_table(guards: GuardReport) -> tuple[Sequence[str], list[list[str]]]:
    """Return the columns and rows of the seconds around a stop.

    Args:
        guards: Guards of a run that one of them stopped.
    """
    columns = ["second", "received, payload", *(record.quantity for record in guards.guards)]
    units = [MetricUnit.of(record.quantity) for record in guards.guards]
    rows = [
        [
            str(second.second),
            rate(second.received_bits_per_second),
            *(
                quantity_text(unit, value, 1)
                for unit, value in zip(units, second.values, strict=True)
            ),
        ]
        for second in guards.seconds
    ]
    return columns, rows
