"""Checks of each configured telemetry source, for reachability, clock and units."""

import asyncio
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import numpy as np

from broadside.coordinator.cli.failed_check import failed
from broadside.coordinator.core import words
from broadside.coordinator.core.measure.testimony import (
    KINDS,
    RATIO_MAX,
    Quantity,
    RemarkKind,
    Witnessed,
)
from broadside.coordinator.core.words import Unit
from broadside.coordinator.device.ledgers.source import LedgerError
from broadside.coordinator.device.witnesses.polled import PolledWitness
from broadside.coordinator.device.witnesses.witness_file import (
    WitnessSource,
    open_witness,
    read_entries,
)
from broadside.coordinator.device.witnesses.witnesses import READ_MAX_S
from broadside.exchange.checks import Check

# Period to read from a source with history.
LOOKBACK_S: Final = 900.0
# Interval between two polls. A counter needs two polls for a rate.
AGAIN_S: Final = 1.2
ANSWERS_COUNT: Final = 2
# Maximum number of polls to send. A busy device might miss some.
QUESTIONS_MAX_COUNT: Final = 4
# Maximum time by which a reading can be in the future. No clock error is so large.
AHEAD_MAX_S: Final = 2.0
# Values above this are implausible for a time in seconds.
TIME_MAX_S: Final = 60.0


async def check_witnesses(path: Path | None) -> list[Check]:
    """Return one check for each file entry. An invalid entry does not hide the others.

    Args:
        path: The file. None means that no source is configured.
    """
    if path is None:
        return []
    try:
        entries = read_entries(path)
    except LedgerError as error:
        return [failed("witnesses", error)]
    return list(await asyncio.gather(*map(_check, entries)))


async def _check(entry: Mapping[str, Any]) -> Check:
    name = f"witness {entry.get('device', '?')} ({entry.get('source', '?')})"
    try:
        source = open_witness(entry)
        async with asyncio.timeout(READ_MAX_S):
            told, missed_count = await _ask(source)
    except LedgerError as error:
        return failed(name, error)
    except TimeoutError:
        return Check(name=name, ok=False, detail=f"no answer within {words.time(READ_MAX_S)}")
    troubles = [*_clock(told), *_units(told)]
    if missed_count is None:
        troubles = [*_silences(told), *troubles]
    lacks = [
        remark.said
        for remark in told.remarks
        if remark.kind in (RemarkKind.UNTOLD, RemarkKind.UNPLACED)
    ]
    missed = [f"{missed_count} of its first questions had no answer"] if missed_count else []
    said = "; ".join([*troubles, *lacks, *_figures(told), *missed])
    fix = "mend what the words name; docs/witnesses.md has each field" if troubles else None
    if lacks and not troubles:
        fix = "choose another profile, metric or query"
    return Check(
        name=name,
        ok=not (troubles or lacks),
        detail=f"{source.name}: {said}",
        fix=fix,
        required=bool(troubles),
    )


async def _ask(source: WitnessSource) -> tuple[Witnessed, int | None]:
    """Read a source, and count the missed polls before two answers.

    The count is None if there were fewer than two answers, or if the source is not polled.
    """
    now = datetime.now(UTC)
    if not isinstance(source, PolledWitness):
        return await source.read(now - timedelta(seconds=LOOKBACK_S), now), None
    answers_count = 0
    try:
        for number in range(QUESTIONS_MAX_COUNT):
            if number:
                await asyncio.sleep(AGAIN_S)
            answers_count += await source.poll()
            if answers_count == ANSWERS_COUNT:
                break
    finally:
        source.close()
    # Use a wide period, because device timestamps might be wrong and need to be checked.
    ever = timedelta(days=365)
    told = await source.read(now - ever, now + ever)
    return told, number + 1 - answers_count if answers_count == ANSWERS_COUNT else None


def _silences(told: Witnessed) -> Iterator[str]:
    yield from (remark.said for remark in told.remarks if remark.kind is RemarkKind.SILENT)
    if not told.series and all(each.kind is RemarkKind.UNPLACED for each in told.remarks):
        yield f"it answers, and tells nothing of the last {LOOKBACK_S / 60:.0f} minutes"


def _clock(told: Witnessed) -> Iterator[str]:
    """Yield problems with the timestamps when compared to the local clock."""
    for remark in told.remarks:
        if remark.kind in (RemarkKind.CLOCK, RemarkKind.STAMPS):
            yield f"{remark.said}: set its clock, or look at at_path"
        elif remark.kind is RemarkKind.PARTIAL:
            yield f"its answer is incomplete: {remark.said}"
    if not told.series:
        return
    newest = max(told.series, key=lambda series: series.at_s[-1])
    ahead_s = float(newest.at_s[-1] - newest.bound_s[-1]) - told.read_at.timestamp()
    if ahead_s > AHEAD_MAX_S:
        yield f"its newest reading lies {words.time(ahead_s)} in the future: set its clock"
    elif -ahead_s > LOOKBACK_S:
        yield f"its newest reading is {words.time(-ahead_s)} old: set its clock, or look at at_path"


def _units(told: Witnessed) -> Iterator[str]:
    """Yield values that should not be possible for the quantity's unit."""
    for series in told.series:
        known = series.values[~np.isnan(series.values)]
        most = float(known.max(initial=0.0))
        unit = series.quantity.unit
        if unit is Unit.RATIO and most > RATIO_MAX:
            yield f"{series.quantity} is {most:g}, over 1: a percentage needs scale = 0.01"
        if unit is Unit.TIME and most > TIME_MAX_S:
            yield f"{series.quantity} is {most:g} s: milliseconds need scale = 0.001"


def _figures(told: Witnessed) -> Iterator[str]:
    """Yield the last value for each quantity. If there are several instances, use the first."""
    by_quantity: dict[Quantity, list[float]] = {}
    for series in told.series:
        known = series.values[~np.isnan(series.values)]
        by_quantity.setdefault(series.quantity, []).extend(known[-1:].tolist())
    for quantity, values in by_quantity.items():
        more = f" (and {len(values) - 1} more)" if len(values) > 1 else ""
        said = words.say(quantity.unit, values[0] if values else None)
        yield f"{KINDS[quantity].words} {said}{more}"
    if told.series:
        bound_s = max(float(series.bound_s[-1]) for series in told.series)
        age_s = told.read_at.timestamp() - max(float(each.at_s[-1]) for each in told.series)
        within = "by an unchecked clock" if np.isnan(bound_s) else f"dated to {words.time(bound_s)}"
        yield f"newest {words.time(max(0.0, age_s))} old, {within}"
