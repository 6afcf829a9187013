"""Checks of each configured telemetry source, for reachability, clock and units."""

import asyncio
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import numpy as np

from broadside.coordinator.cli.exit_codes import invalid_setting
from broadside.coordinator.core import formatting
from broadside.coordinator.core.formatting import MetricUnit
from broadside.coordinator.core.measure.telemetry import (
    KINDS,
    RATIO_MAX,
    DeviceTelemetry,
    IssueKind,
    Quantity,
)
from broadside.coordinator.device.telemetry.collector import QUERY_MAX_S
from broadside.coordinator.device.telemetry.config import (
    open_entry,
    read_entries,
    refuse_replaced_settings,
)
from broadside.coordinator.device.telemetry.device_counter import DeviceCounter
from broadside.coordinator.device.telemetry.polling import PolledSource
from broadside.coordinator.device.telemetry.source import (
    TelemetryBusy,
    TelemetryError,
    TelemetrySource,
)
from broadside.exchange.checks import HostCheck
from broadside.exchange.messages import Direction
from broadside.exchange.outage_log import utc_now
from broadside.exchange.ports import ExchangeMisconfigured

# Period to read from a source with history.
LOOKBACK_S: Final = 900.0
# Interval between two polls. A counter needs two polls for a rate.
AGAIN_S: Final = 1.2
ANSWERS_COUNT: Final = 2
# Maximum number of polls to send. A busy device might miss some.
POLLS_MAX_COUNT: Final = 4
# Maximum time by which a reading can be in the future. No clock error is so large.
AHEAD_MAX_S: Final = 2.0
# Values above this are implausible for a time in seconds.
TIME_MAX_S: Final = 60.0


def failed(name: str, error: Exception, fix: str | None = None) -> HostCheck:
    """Return a failed check.

    Args:
        name: Name of the check.
        error: The error. If it contains a fix after the last "; ", that fix is used.
        fix: Fix to use when the error does not contain one. None without one.
    """
    if (invalid := invalid_setting(error)) is not None:
        variable, detail = invalid
        return HostCheck(name=name, ok=False, detail=detail, fix=f"correct or unset {variable}")
    text = " ".join(str(error).split())
    if isinstance(error, (ExchangeMisconfigured, TelemetryError)) and "; " in text:
        text, _, fix = text.rpartition("; ")
    return HostCheck(name=name, ok=False, detail=text, fix=fix)


async def check_telemetry_sources(path: Path | None) -> list[HostCheck]:
    """Return one check for each source, and a note if none of them counts bytes.

    Args:
        path: The telemetry file. None means that no source is configured.
    """
    try:
        refuse_replaced_settings()
        entries = [] if path is None else read_entries(path)
    except TelemetryError as error:
        return [failed("telemetry", error)]
    checks = list(await asyncio.gather(*map(_check, entries)))
    if not any(entry.get("byte_counter") is not None for entry in entries) and not any(
        entry.get("type") == "lab" for entry in entries
    ):
        checks.append(
            HostCheck(
                name="device counter",
                ok=False,
                detail="none: the fleet's bytes are not compared with the firewall's",
                fix="name a source with byte_counter in BROADSIDE_TELEMETRY_FILE",
                required=False,
            )
        )
    return checks


async def _check(entry: Mapping[str, Any]) -> HostCheck:
    """Check one entry. An invalid entry does not hide the others."""
    name = f"telemetry {entry.get('device', '?')} ({entry.get('type', '?')})"
    try:
        source = open_entry(entry)
        async with asyncio.timeout(QUERY_MAX_S):
            telemetry, missed_count = await _query(source)
            counted, counted_count = await _count(source)
    except TelemetryBusy as error:
        return failed(name, error, f"wait {formatting.time(error.retry_after_s)} and try again")
    except TelemetryError as error:
        return failed(name, error)
    except TimeoutError:
        return HostCheck(
            name=name,
            ok=False,
            detail=f"no answer within {formatting.time(QUERY_MAX_S)}",
            fix="check the source's address and the firewall between",
        )
    troubles = [*_clock(telemetry), *_units(telemetry)]
    if missed_count is None and source.quantities:
        troubles = [*_silences(telemetry), *troubles]
    lacks = [
        issue.text
        for issue in telemetry.issues
        if issue.kind in (IssueKind.MISSING, IssueKind.UNPLACED, IssueKind.UNREADABLE)
    ]
    missed = [f"{missed_count} of its first questions had no answer"] if missed_count else []
    # The service would start, but the run would have no evidence from this source.
    troubles += _no_values(source, telemetry, counted_count)
    fix = (
        "correct the problem above; /docs/telemetry.html of the coordinator has each field"
        if troubles
        else None
    )
    if lacks and not troubles:
        fix = "choose another profile, metric or query"
    return HostCheck(
        name=name,
        ok=not (troubles or lacks),
        detail=f"{source.name}: "
        + "; ".join([*troubles, *lacks, *_values(telemetry), *counted, *missed]),
        fix=fix,
        required=bool(troubles),
    )


async def _query(source: TelemetrySource) -> tuple[DeviceTelemetry, int | None]:
    """Query a source, and count the missed polls before two answers.

    The count is None if there were fewer than two answers, or if the source is not polled.
    """
    now = utc_now()
    if not isinstance(source, PolledSource):
        return await source.query(now - timedelta(seconds=LOOKBACK_S), now), None
    answers_count = 0
    try:
        for number in range(POLLS_MAX_COUNT):
            if number:
                await asyncio.sleep(AGAIN_S)
            answers_count += await source.poll()
            if answers_count == ANSWERS_COUNT:
                break
    finally:
        source.close()
    # We should use a wide period, because device timestamps might be wrong and need to be checked.
    wide = timedelta(days=365)
    telemetry = await source.query(now - wide, now + wide)
    return telemetry, number + 1 - answers_count if answers_count == ANSWERS_COUNT else None


async def _count(source: TelemetrySource) -> tuple[list[str], int | None]:
    """Return a text about the byte counter of the last minutes, and its number of values.

    The number is None if the source has no counter with a history.
    """
    if source.entry.byte_counter is None:
        return [], None
    if isinstance(source, PolledSource):
        return ["its in_bits_per_second is the byte counter"], None
    now = utc_now()
    from_at = now - timedelta(seconds=LOOKBACK_S)
    device_counter = await DeviceCounter([source]).read(from_at, now, Direction.FORWARD)
    known_s = device_counter.end_s[~np.isnan(device_counter.bytes)]
    newest = f", newest {now.timestamp() - known_s.max():.0f} s old" if known_s.size else ""
    last = ""
    if known_s.size:
        rates = (device_counter.bytes * 8 / (device_counter.end_s - device_counter.start_s))[
            ~np.isnan(device_counter.bytes)
        ]
        last = f", last {formatting.rate(float(rates[-1]))}"
    text = f"{known_s.size} byte counts of the last {LOOKBACK_S / 60:.0f} minutes{newest}{last}"
    return [text], int(known_s.size)


def _no_values(
    source: TelemetrySource, telemetry: DeviceTelemetry, counted_count: int | None
) -> Iterator[str]:
    """Yield a problem if a source that answers has no value."""
    minutes = f"the last {LOOKBACK_S / 60:.0f} minutes"
    known = any(not np.isnan(series.values).all() for series in telemetry.series)
    if source.quantities and not known and not any(_silences(telemetry)):
        yield f"it has no value of any quantity in {minutes}"
    if counted_count == 0:
        yield f"its byte counter has no value in {minutes}"


def _silences(telemetry: DeviceTelemetry) -> Iterator[str]:
    yield from (issue.text for issue in telemetry.issues if issue.kind is IssueKind.SILENT)
    if not telemetry.series and all(item.kind is IssueKind.UNPLACED for item in telemetry.issues):
        yield f"it answers, but has no values for the last {LOOKBACK_S / 60:.0f} minutes"


def _clock(telemetry: DeviceTelemetry) -> Iterator[str]:
    """Yield problems with the timestamps when compared to the local clock."""
    for issue in telemetry.issues:
        if issue.kind in (IssueKind.CLOCK, IssueKind.STAMPS):
            yield f"{issue.text}: set its clock, or check at_path"
        elif issue.kind is IssueKind.PARTIAL:
            yield f"its answer is incomplete: {issue.text}"
    if not telemetry.series:
        return
    newest = max(telemetry.series, key=lambda series: series.at_s[-1])
    ahead_s = float(newest.at_s[-1] - newest.bound_s[-1]) - telemetry.read_at.timestamp()
    if ahead_s > AHEAD_MAX_S:
        yield f"its newest reading is {formatting.time(ahead_s)} in the future: set its clock"
    elif -ahead_s > LOOKBACK_S:
        age = formatting.time(-ahead_s)
        yield f"its newest reading is {age} old: set its clock, or check at_path"


def _units(telemetry: DeviceTelemetry) -> Iterator[str]:
    """Yield values that should not be possible for the quantity's unit."""
    for series in telemetry.series:
        known = series.values[~np.isnan(series.values)]
        most = float(known.max(initial=0.0))
        unit = series.quantity.unit
        if unit is MetricUnit.RATIO and most > RATIO_MAX:
            yield f"{series.quantity} is {most:g}, over 1: a percentage needs scale = 0.01"
        if unit is MetricUnit.TIME and most > TIME_MAX_S:
            yield f"{series.quantity} is {most:g} s: milliseconds need scale = 0.001"


def _values(telemetry: DeviceTelemetry) -> Iterator[str]:
    """Yield the last value for each quantity. If there are several instances, use the first."""
    by_quantity: dict[Quantity, list[float]] = {}
    for series in telemetry.series:
        known = series.values[~np.isnan(series.values)]
        by_quantity.setdefault(series.quantity, []).extend(known[-1:].tolist())
    for quantity, values in by_quantity.items():
        more = f" (and {len(values) - 1} more)" if len(values) > 1 else ""
        text = formatting.quantity_text(quantity.unit, values[0] if values else None)
        yield f"{KINDS[quantity].label} {text}{more}"
    if telemetry.series:
        bound_s = max(float(series.bound_s[-1]) for series in telemetry.series)
        age_s = telemetry.read_at.timestamp() - max(
            float(item.at_s[-1]) for item in telemetry.series
        )
        within = (
            "by an unchecked clock" if np.isnan(bound_s) else f"dated to {formatting.time(bound_s)}"
        )
        yield f"newest {formatting.time(max(0.0, age_s))} old, {within}"
