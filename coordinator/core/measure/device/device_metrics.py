"""Device values for a burst, computed from telemetry on a grid of seconds.

A reading will only be used if it is completely inside the window. So a mean for a minute that
started before the window cannot be used. To combine instances into a device, and all devices into a
total, the rule in :data:`.telemetry.KINDS` is used. If a second is unknown for any part, it is also
unknown for the total.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import numpy as np

from broadside.coordinator.core.arrays import Floats
from broadside.coordinator.core.measure.telemetry import (
    KINDS,
    DeviceTelemetry,
    IssueKind,
    Quantity,
    TelemetryIssue,
    TelemetrySeries,
)
from broadside.coordinator.core.metrics import RECEIVED
from broadside.coordinator.core.summary import (
    ALL_DEVICES,
    BurstSummary,
    CanarySummary,
    DeviceFigure,
    DevicePlacement,
    DeviceSummary,
    Finding,
    figure,
    note,
    warning,
)
from broadside.exchange.messages import Aggregation

# Seconds before a burst to use for the idle level.
IDLE_S: Final = 30.0
# Multiple of the usual time between readings. A reading is valid for this time.
HELD_RATIO: Final = 1.25
# Seconds before and after a span in which a reading still belongs to it. The grid has whole
# seconds.
EDGE_S: Final = 0.5
# Seconds, to be used when there are too few readings to compute the usual time between them.
INSTANT_HELD_S: Final = 90.0
# How many placements to test between both ends of the error bound. They are a tenth of the bound
# apart. This is less than the time for a reading if the bound is below ten readings.
PLACEMENTS_COUNT: Final = 21
SHARES: Final = (Quantity.RECEIVED, Quantity.SENT, Quantity.PACKETS, Quantity.SESSIONS)


_FUNCTIONS: Final = {
    Aggregation.MEAN: np.mean,
    Aggregation.SUM: np.sum,
    Aggregation.MAX: np.max,
    Aggregation.MIN: np.min,
}


def seconds_of(
    series: TelemetrySeries, start_s: float, count: int, placement: float = 0.0
) -> Floats:
    """Return a value for every second on a grid, or NaN where there is no reading.

    Args:
        series: Readings to use.
        start_s: Grid start in epoch seconds.
        count: Number of seconds on the grid.
        placement: How far to move the readings, as a share of their error bound. Use -1 to move
            them to the earliest possible time, and 1 for the latest.

    Returns:
        Array with ``count`` values in the unit of the series.
    """
    off_s = bound_of(series)
    # NaN is not above 0.
    if placement and off_s > 0:
        series = replace(series, at_s=series.at_s + placement * off_s)
    grid = np.full(count, np.nan)
    middles = start_s + np.arange(count) + 0.5
    spans = series.over_s > 0
    end_s = start_s + count
    for at_s, over_s, value in zip(
        series.at_s[spans], series.over_s[spans], series.values[spans], strict=True
    ):
        slack_s = min(0.5, over_s / 2)
        if at_s - over_s >= start_s - slack_s and at_s <= end_s + slack_s:
            grid[(middles > at_s - over_s) & (middles <= at_s)] = value
    at_s = series.at_s[~spans]
    difference_s = float(np.median(np.diff(at_s))) if len(at_s) > 2 else INSTANT_HELD_S / 2
    # A reading outside the span should not be used, even if there are only a few readings.
    inside = (at_s >= start_s - EDGE_S) & (at_s <= end_s + EDGE_S)
    at_s, values = at_s[inside], series.values[~spans][inside]
    if len(at_s):
        after = np.searchsorted(at_s, middles)
        before = np.clip(after - 1, 0, len(at_s) - 1)
        after = np.clip(after, 0, len(at_s) - 1)
        nearer = np.abs(at_s[before] - middles) <= np.abs(at_s[after] - middles)
        nearest = np.where(nearer, before, after)
        near = np.abs(at_s[nearest] - middles) <= HELD_RATIO * max(difference_s, 1.0)
        grid = np.where(near, values[nearest], grid)
    return grid


def bound_of(series: TelemetrySeries) -> float:
    """Return the maximum time error for a series in seconds.

    The result is 0 if the error is not above :data:`EDGE_S`, because the grid has whole seconds. It
    is NaN when the error is not known.
    """
    bound_s = float(np.max(series.bound_s, initial=0.0))
    return 0.0 if bound_s <= EDGE_S else bound_s


def device_figures(
    telemetry: DeviceTelemetry, burst: BurstSummary
) -> tuple[DeviceSummary, tuple[DeviceSummary, ...]]:
    """Return the values for all devices together, and for each device.

    If there is no data for a device, it will have no values. Readings will not be used when their
    clock error is not known.

    Args:
        telemetry: Telemetry to use.
        burst: Burst with its window.

    Returns:
        A summary for all devices together, and a summary per device.
    """
    placed = (item for item in telemetry.series if not np.isnan(bound_of(item)))
    telemetry = replace(telemetry, series=tuple(placed))
    window = burst.window
    start_at = window.start_at if window is not None else burst.planned_start_at
    end_at = window.end_at if window is not None else burst.planned_end_at
    start_s, count = start_at.timestamp(), max(1, round((end_at - start_at).total_seconds()))
    idle_s = burst.planned_start_at.timestamp() - IDLE_S
    payload_bytes = (RECEIVED.of_burst(burst) or 0.0) / 8 * count
    grids = {device: _grids(telemetry, device, start_s, count) for device in telemetry.devices}
    idles = {device: _grids(telemetry, device, idle_s, int(IDLE_S)) for device in telemetry.devices}
    moved = _moved(telemetry, start_s, count)
    shares = _shares(grids)
    results = [
        _summary(
            device,
            _placed(telemetry, _figures(grids[device], idles[device]), moved, device),
            cores=_cores(telemetry, device),
            traffic=_DeviceTraffic(
                seconds=count, payload_bytes=payload_bytes, share_ratio=shares.get(device)
            ),
        )
        for device in telemetry.devices
    ]
    costs = [item.cpu_s for item in results]
    complete_s = sum(cost for cost in costs if cost is not None) if None not in costs else None
    together = _figures(_together(grids), _together(idles))
    return DeviceSummary(
        device=ALL_DEVICES,
        cpu_s=figure(complete_s),
        cpu_s_per_gigabyte=figure(_per_gigabyte(complete_s, payload_bytes)),
        **_placed(telemetry, together, [_together(item) for item in moved]),
    ), tuple(results)


def seconds_of_devices(
    telemetry: DeviceTelemetry, start_s: float, count: int
) -> dict[Quantity, Floats]:
    """Return the values of all devices together for every second.

    Args:
        telemetry: Telemetry to use.
        start_s: Grid start in epoch seconds.
        count: Number of seconds on the grid.

    Returns:
        Array of ``count`` values by quantity, in its unit. NaN is unknown.
    """
    grids = {device: _grids(telemetry, device, start_s, count) for device in telemetry.devices}
    return {quantity: instances[""] for quantity, instances in _together(grids).items()}


# Grids by quantity and instance.
_Grids = dict[Quantity, dict[str, Floats]]


def _moved(telemetry: DeviceTelemetry, start_s: float, count: int) -> list[dict[str, _Grids]]:
    """Return device grids for every placement, or an empty list without a time error."""
    unsure = {series.quantity for series in telemetry.series if bound_of(series) > 0}
    if not unsure:
        return []
    reported = [series for series in telemetry.series if series.quantity in unsure]
    telemetry = replace(telemetry, series=tuple(reported))
    return [
        {
            device: _grids(telemetry, device, start_s, count, placement)
            for device in telemetry.devices
        }
        for placement in np.linspace(-1.0, 1.0, PLACEMENTS_COUNT).tolist()
    ]


def _placed(
    telemetry: DeviceTelemetry,
    figures: dict[str, DeviceFigure],
    moved: Sequence[Any],
    device: str | None = None,
) -> dict[str, DeviceFigure]:
    """Add the limits for all placements, and drop values that cannot be placed.

    Args:
        telemetry: Telemetry to use.
        figures: Values by quantity, for the most likely placement.
        moved: Grids for every placement, by quantity, or by device and quantity.
        device: Device name, or ``None`` for all devices together.
    """
    results: dict[str, DeviceFigure] = {}
    for name, seen in figures.items():
        bounds = [
            bound_of(series)
            for series in telemetry.of(Quantity(name))
            if device in (None, series.device)
        ]
        bound_s = float(np.max(bounds, initial=0.0))
        if not bound_s:
            results[name] = seen
            continue
        grids = [item if device is None else item[device] for item in moved]
        folded = [_figures(item, {}).get(name) for item in grids]
        placed_values = [item for item in folded if item is not None]
        if len(placed_values) < len(folded):
            # All readings might be outside the window, so we have no value to use.
            continue
        results[name] = seen.model_copy(
            update={
                "bound_s": figure(bound_s) or 0.0,
                "at_least": _extreme(placed_values, min),
                "at_most": _extreme(placed_values, max),
            }
        )
    return results


def _extreme(
    figures: Sequence[DeviceFigure], choose: Callable[[Iterable[float]], float]
) -> DevicePlacement:
    """Return the smallest or largest value for each statistic."""
    return DevicePlacement(
        **{
            name: choose(getattr(item, name) for item in figures)
            for name in ("mean", "p95", "min", "max")
        }
    )


def certain(device: DeviceSummary) -> DeviceSummary:
    """Return a copy with the smallest possible values, to use as evidence against a device."""
    results: dict[str, DeviceFigure] = {}
    for quantity in Quantity:
        seen: DeviceFigure | None = getattr(device, quantity)
        if seen is not None and seen.at_least is not None:
            least = seen.at_least.model_dump()
            results[quantity.value] = seen.model_copy(update={**least, "busiest": None})
    return device.model_copy(update=results)


def _grids(
    telemetry: DeviceTelemetry, device: str, start_s: float, count: int, placement: float = 0.0
) -> _Grids:
    """Return known seconds by quantity and instance."""
    results: dict[Quantity, dict[str, Floats]] = {}
    for series in telemetry.series:
        if series.device != device:
            continue
        grid = seconds_of(series, start_s, count, placement)
        instances = results.setdefault(series.quantity, {})
        was = instances.get(series.instance)
        # If another source reports the same value, it is only used to fill gaps in the first.
        instances[series.instance] = grid if was is None else np.where(np.isnan(was), grid, was)
    return results


def _across(quantity: Quantity, grids: Sequence[Floats]) -> Floats:
    """Combine several grids. If a second is unknown in any grid, it will be unknown."""
    fold: Any = _FUNCTIONS[KINDS[quantity].across]
    folded: Floats = fold(np.array(grids), axis=0)
    return folded


def _of_device(quantity: Quantity, instances: dict[str, Floats]) -> Floats:
    """Return values for the device itself. If there are none, combine its instances."""
    current = instances.get("")
    return current if current is not None else _across(quantity, list(instances.values()))


def _together(
    devices: dict[str, dict[Quantity, dict[str, Floats]]],
) -> dict[Quantity, dict[str, Floats]]:
    """Combine grids for all devices as if there were a single device."""
    return {
        quantity: {
            "": _across(
                quantity,
                [_of_device(quantity, reported[quantity]) for reported in devices.values()],
            )
        }
        for quantity in Quantity
        if devices and all(quantity in reported for reported in devices.values())
    }


def _figures(
    grids: dict[Quantity, dict[str, Floats]], idle: dict[Quantity, dict[str, Floats]]
) -> dict[str, DeviceFigure]:
    results: dict[str, DeviceFigure] = {}
    for quantity in Quantity:
        if quantity not in grids:
            continue
        seconds = _of_device(quantity, grids[quantity])
        known = seconds[~np.isnan(seconds)]
        if not len(known):
            continue
        before = _of_device(quantity, idle[quantity]) if quantity in idle else known[:0]
        before = before[~np.isnan(before)]
        parts = [grid[~np.isnan(grid)] for name, grid in grids[quantity].items() if name]
        means = [float(part.mean()) for part in parts if len(part)]
        results[quantity.value] = DeviceFigure(
            mean=figure(float(known.mean())) or 0.0,
            p95=figure(float(np.quantile(known, 0.95))) or 0.0,
            min=figure(float(known.min())) or 0.0,
            max=figure(float(known.max())) or 0.0,
            idle=figure(float(before.mean())) if len(before) else None,
            busiest=figure(max(means)) if len(means) > 1 else None,
            instances_count=len(grids[quantity]),
            covered_ratio=figure(len(known) / len(seconds)) or 0.0,
        )
    return results


@dataclass(frozen=True, slots=True, kw_only=True)
class _DeviceTraffic:
    """Traffic in the window: duration, payload of the fleet, and the share of one device."""

    seconds: int
    payload_bytes: float
    share_ratio: float | None


def _summary(
    device: str,
    figures: dict[str, DeviceFigure],
    *,
    cores: int | None,
    traffic: _DeviceTraffic,
) -> DeviceSummary:
    busy, share = figures.get(Quantity.CPU), traffic.share_ratio
    cpu_s = None if busy is None or cores is None else busy.mean * cores * traffic.seconds
    # A single device carries all traffic. If there are several, use their shares, if available.
    part = traffic.payload_bytes if share is None else traffic.payload_bytes * share
    return DeviceSummary(
        device=device,
        share_ratio=figure(share),
        cores_count=cores,
        cpu_s=figure(cpu_s),
        cpu_s_per_gigabyte=figure(_per_gigabyte(cpu_s, part)),
        **figures,
    )


def _per_gigabyte(cpu_s: float | None, payload_bytes: float) -> float | None:
    return None if cpu_s is None or not payload_bytes else cpu_s / payload_bytes * 1e9


def _cores(telemetry: DeviceTelemetry, device: str) -> int | None:
    """Return the configured number of cores, or count the cores that have telemetry."""
    reported = (telemetry.cores_count or {}).get(device)
    if reported is not None:
        return reported
    named = {item.instance for item in telemetry.of(Quantity.CPU) if item.device == device}
    return len(named - {""}) or None


def _shares(grids: dict[str, dict[Quantity, dict[str, Floats]]]) -> dict[str, float]:
    """Return each device's traffic share, using seconds that are known for all devices."""
    if len(grids) < 2:
        return {}
    for quantity in SHARES:
        if not all(quantity in grids[device] for device in grids):
            continue
        carried = np.array([_of_device(quantity, grids[device][quantity]) for device in grids])
        known = carried[:, ~np.isnan(carried).any(axis=0)]
        total = float(known.sum())
        if total > 0:
            return {
                device: float(row.sum()) / total for device, row in zip(grids, known, strict=True)
            }
    return {}


# Findings about the telemetry itself ------------------------------------------------------------

# Seconds before and after the bursts in which to report problems with telemetry.
_MARGIN_S: Final = 60.0


class _IssueText(NamedTuple):
    """Finding for a kind of telemetry problem.

    Attributes:
        severity: Function that creates the finding.
        weight: Weight of the finding.
        text: What was observed and what it means, after the name of the device.
        next_step: What to do, or None if nothing.
    """

    severity: Callable[..., Finding]
    weight: float
    text: str
    next_step: str | None


_ISSUES: Final = {
    IssueKind.SILENT: _IssueText(
        warning,
        57,
        "did not answer, so its values of that time are unknown",
        "If the traffic stopped at that time too, read the logs of the device. Otherwise check "
        "that its agent runs, and that its access rules allow the coordinator",
    ),
    IssueKind.UNREADABLE: _IssueText(
        warning,
        57,
        "could not be read, so its values are unknown",
        "Correct the address, credentials or path that the error names (`broadside doctor` reads "
        "the source again)",
    ),
    IssueKind.RESTARTED: _IssueText(
        warning,
        69,
        "or its agent restarted, so its counts of that time are unknown",
        "Read the log of the device to find the cause of the restart",
    ),
    IssueKind.WENT_BACK: _IssueText(
        warning,
        56,
        "has a counter that decreased without wrapping, so its values of that time are unknown",
        "Find out who cleared the counter",
    ),
    IssueKind.TOO_SLOW: _IssueText(
        warning,
        56,
        "has a counter that can wrap between two readings, so its values are not used",
        "Read it more often (`poll_s`), or use its 64-bit counter",
    ),
    IssueKind.WRAPPED: _IssueText(note, 16, "has a counter that wrapped and was corrected", None),
    IssueKind.CLOCK: _IssueText(
        warning,
        55,
        "has a clock with a known offset, which was corrected",
        "Synchronise the clock of the device by NTP. If it reports old values, use a newer one",
    ),
    IssueKind.STAMPS: _IssueText(
        warning,
        58,
        "has time stamps that contradict each other, so they are not used",
        "Synchronise the clock of the device by NTP, or omit `at_path`",
    ),
    IssueKind.UNPLACED: _IssueText(
        warning,
        58,
        "has readings that cannot be placed in time against the bursts, so they prove nothing",
        "Export one more minute before and after the run, or set the error of its clock "
        "(`clock_bound_s`)",
    ),
    IssueKind.PARTIAL: _IssueText(
        warning,
        59,
        "gave incomplete answers, which are not used",
        "Repair the store or page that the text names, then run again",
    ),
    IssueKind.MISSING: _IssueText(
        note, 15, "does not provide a requested metric", "Choose another `profile`"
    ),
}


def telemetry_findings(
    telemetry: DeviceTelemetry | None, begun_at: datetime, ended_at: datetime
) -> Iterator[Finding]:
    """Yield a finding for each kind of telemetry problem during the bursts.

    Args:
        telemetry: Telemetry to check. When it is ``None``, there are no findings.
        begun_at: Start of the first burst.
        ended_at: End of the last burst.
    """
    if telemetry is None:
        return
    from_s, before_s = begun_at.timestamp() - _MARGIN_S, ended_at.timestamp() + _MARGIN_S
    by_kind: dict[IssueKind, list[TelemetryIssue]] = {}
    for issue in telemetry.issues:
        if issue.to_s >= from_s and issue.from_s < before_s:
            by_kind.setdefault(issue.kind, []).append(issue)
    for kind, issues in sorted(by_kind.items()):
        item = _ISSUES[kind]
        reported = "; ".join(map(_describe, issues[:3]))
        more = f"; and {len(issues) - 3} more" if len(issues) > 3 else ""
        devices = ", ".join(dict.fromkeys(issue.device for issue in issues))
        yield item.severity(
            id=f"telemetry-{kind}",
            weight=item.weight,
            sentence=f"{devices} {item.text}: {reported}{more}.",
            next_step=item.next_step,
        )


def _describe(issue: TelemetryIssue) -> str:
    from_at, to_at = (
        f"{datetime.fromtimestamp(at_s, UTC):%H:%M:%S}" for at_s in (issue.from_s, issue.to_s)
    )
    when = f"{from_at}" if from_at == to_at else f"{from_at} to {to_at}"
    times = "" if issue.count == 1 else f", {issue.count} times"
    return f"{issue.device} at {when} UTC{times} ({issue.text})"


def with_device_cpu(canary: CanarySummary, telemetry: DeviceTelemetry) -> CanarySummary:
    """Return a copy with the mean CPU of all devices at each step, where it is known.

    Args:
        canary: Results of the canaries.
        telemetry: Telemetry of the devices.
    """
    reported = telemetry.of(Quantity.CPU)
    if not reported or not canary.steps:
        return canary
    every_s = round(canary.every_s)
    start_s, count = canary.steps[0].at.timestamp(), every_s * len(canary.steps)
    grid = np.array([seconds_of(series, start_s, count) for series in reported]).mean(axis=0)
    means = grid.reshape(-1, every_s).mean(axis=1)
    steps = (
        step.model_copy(update={"device_cpu_ratio": figure(float(mean))})
        for step, mean in zip(canary.steps, means, strict=True)
    )
    return canary.model_copy(update={"steps": tuple(steps)})
