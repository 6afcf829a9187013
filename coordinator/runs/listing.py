"""Lists and aggregates of runs, from the list rows alone. No run is opened."""

import math
import statistics
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from enum import StrEnum
from typing import Final
from zoneinfo import ZoneInfo

from broadside.coordinator.core.metrics import METRIC_BY_NAME, RECEIVED, RECEIVED_IP, Layer
from broadside.coordinator.core.plan.schedule import BadSchedule, check_zone
from broadside.coordinator.core.summary import RunSummary, Verdict
from broadside.coordinator.core.verdict_reason import explain_verdict
from broadside.coordinator.request_errors import BadGrouping
from broadside.exchange.messages import Message, UtcDatetime
from broadside.exchange.records import Records, RunHeader, RunOutcome

# Longest reason and next step in a row of the run list.
TEXT_MAX_CHARS: Final = 2_000
# Maximum number of rows to scan for one page.
_ROWS_LOOKED_AT: Final = 5_000
# Maximum number of runs in one aggregate.
AGGREGATED_MAX_COUNT: Final = 100_000
GROUPS_MAX_COUNT: Final = 1_000
# Minimum number of runs for an interval, as for the groups of a comparison.
_INTERVAL_FROM_COUNT: Final = 3
# Longest time from launch to first traffic: the boundary of a period and the longest lead.
_AHEAD_MAX: Final = timedelta(days=7, hours=1)
_TIMES: Final[Mapping[str, Callable[[datetime], str]]] = {
    "hour": lambda at: at.strftime("%Y-%m-%dT%H:00%z"),
    # strftime takes ten times as long.
    "day": lambda at: at.date().isoformat(),
    # ISO 8601 week.
    "week": lambda at: at.strftime("%G-W%V"),
    "month": lambda at: at.date().isoformat()[:7],
}
GROUPINGS: Final = "scenario, verdict, hour, day, week, month, label:NAME or device:FIELD"


class ListedState(StrEnum):
    """State of a run as shown in the run list.

    Attributes:
        OPEN: It has no verdict yet.
        FINISHED: It has a verdict.
        CANCELLED: It was aborted.
    """

    OPEN = "open"
    FINISHED = "finished"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFilter:
    """Filter for runs. A field with None or an empty value matches all runs.

    Attributes:
        scenario: Scenario name.
        by: User who launched the run.
        labels: Labels that the run needs to have.
        state: State of the run.
        verdict: Verdict of the run.
        from_at: Earliest start of traffic, inclusive.
        before_at: Latest start of traffic, exclusive.
    """

    scenario: str | None = None
    by: str | None = None
    labels: Mapping[str, str] | None = None
    state: ListedState | None = None
    verdict: str | None = None
    from_at: datetime | None = None
    before_at: datetime | None = None

    def fits(self, header: RunHeader) -> bool:
        """Return True if the run matches the filter."""
        outcome = header.outcome
        return (
            (self.scenario is None or self.scenario == header.scenario)
            and (self.by is None or self.by == header.created_by)
            and (not self.labels or self.labels.items() <= header.labels.items())
            and (self.state is None or self.state == state_of(header))
            and (self.verdict is None or (outcome and outcome.verdict) == self.verdict)
            and (self.from_at is None or traffic_at(header) >= self.from_at)
            and (self.before_at is None or traffic_at(header) < self.before_at)
        )

    def is_past(self, header: RunHeader) -> bool:
        """Return True if this run and all runs created before it are too old."""
        return self.from_at is not None and header.created_at < self.from_at - _AHEAD_MAX


def traffic_at(header: RunHeader) -> datetime:
    """Return the time of the run's first traffic, also for imports of old measurements."""
    return header.traffic_from_at or header.created_at


def labels_of(texts: Iterable[str]) -> Mapping[str, str]:
    """Parse labels of the form ``name=value``.

    Raises:
        BadGrouping: A label has no equals sign.
    """
    if not all("=" in part for part in texts):
        raise BadGrouping("label: give name=value")
    return dict(part.partition("=")[::2] for part in texts)


def state_of(header: RunHeader) -> ListedState:
    """Return the state of a run in the list."""
    if header.outcome is None:
        return ListedState.OPEN
    return ListedState.CANCELLED if header.outcome.cancelled else ListedState.FINISHED


def outcome_of(
    summary: RunSummary, *, cancelled: bool, cost_usd: float | None = None, charged: bool = False
) -> RunOutcome:
    """Return the outcome of a run for the run list.

    Args:
        summary: The verdict.
        cancelled: True if the run was cancelled.
        cost_usd: Cost in USD, or None if unknown.
        charged: True if Azure bills this cost.
    """
    explained = explain_verdict(summary)
    return RunOutcome(
        reason=explained.reason[:TEXT_MAX_CHARS],
        next_step=explained.next_step[:TEXT_MAX_CHARS],
        target_layer=summary.target_layer.value,
        cancelled=cancelled,
        cost_usd=cost_usd,
        charged=charged,
        verdict=summary.verdict.value,
        ended_at=summary.computed_at,
        scale=summary.scale,
        bottleneck=summary.bottleneck.value,
        **{
            name: METRIC_BY_NAME[name].of_run(summary)
            for name in RunOutcome.model_fields.keys() & METRIC_BY_NAME
        },
    )


async def list_runs(
    records: Records, wanted: RunFilter, *, limit: int, cursor: str | None = None
) -> tuple[Sequence[RunHeader], str | None]:
    """Return a page of runs that match a filter, newest first.

    A page may be short or empty although more pages follow, because one page scans a limited number
    of rows.

    Args:
        records: Records to use for access to the tables.
        wanted: The filter.
        limit: Maximum number of runs on the page.
        cursor: Cursor of the page, or None for the first page.

    Returns:
        The runs, and the cursor of the next page or None at the end.
    """
    matches: list[RunHeader] = []
    looked_at = 0
    async for key, header in records.private.scan_runs(key_from=cursor):
        if wanted.is_past(header):
            return matches, None
        if len(matches) == limit or looked_at == _ROWS_LOOKED_AT:
            return matches, key
        looked_at += 1
        if wanted.fits(header):
            matches.append(header)
    return matches, None


class RateSpread(Message):
    """Distribution of the received rate over runs, measured rate times scale.

    It is at the layer of the objective. If the runs have different ones, it is payload.

    Attributes:
        layer: Layer of the rates.
        runs_count: Runs with this metric.
        mean_bits_per_second: Mean in bit/s.
        half_width_bits_per_second: Half of the 95 % interval of the mean in bit/s. None below three
            runs.
        median_bits_per_second: Median in bit/s.
        min_bits_per_second: Smallest rate in bit/s.
        max_bits_per_second: Largest rate in bit/s.
    """

    layer: Layer = Layer.PAYLOAD
    runs_count: int
    mean_bits_per_second: float
    half_width_bits_per_second: float | None = None
    median_bits_per_second: float
    min_bits_per_second: float
    max_bits_per_second: float


class RatioSpread(Message):
    """Distribution of a ratio over runs.

    Attributes:
        mean_ratio: Mean.
        median_ratio: Median.
        min_ratio: Smallest value.
        max_ratio: Largest value.
    """

    runs_count: int
    mean_ratio: float
    median_ratio: float
    min_ratio: float
    max_ratio: float


class CostSum(Message):
    """Sum of the costs of runs, at real scale.

    Attributes:
        runs_count: Number of runs with a known cost.
        charged_usd: Cost in US dollars of the runs that Azure bills.
        uncharged_usd: Cost in US dollars that the other runs, such as lab runs, would have had.
    """

    runs_count: int
    charged_usd: float
    uncharged_usd: float


class RunGroup(Message):
    """Aggregate of the runs in one group.

    Attributes:
        group: Name of the group: a period, or the value of the label. None for runs without the
            label.
        bursts_count: Number of planned bursts. None if no run reports it.
        open_count: Number of runs without a verdict yet.
        cancelled_count: Number of runs that were aborted.
        verdicts: Number of runs by verdict.
        received: Rates of the runs with a pass, fail or measured verdict.
        received_inconclusive: Rates of the inconclusive runs, which prove no rate.
        completeness: Completeness of the runs.
        worst_residual_ratio: Largest absolute residual of any run, with its sign.
        cost: Cost of the runs.
        first_at: Start of traffic of the first run.
        last_at: Start of traffic of the last run.
    """

    group: str | None
    runs_count: int
    bursts_count: int | None
    open_count: int
    cancelled_count: int
    verdicts: Mapping[str, int]
    received: RateSpread | None = None
    received_inconclusive: RateSpread | None = None
    completeness: RatioSpread | None = None
    worst_residual_ratio: float | None = None
    cost: CostSum | None = None
    first_at: UtcDatetime
    last_at: UtcDatetime


class RunGroups(Message):
    """Aggregates of many runs.

    Attributes:
        group_by: Name of the grouping.
        timezone: IANA time zone of the periods.
        truncated: True if there are more runs or groups than were aggregated. Use a shorter time
            range to get them.
        groups: Groups in order.
    """

    group_by: str
    timezone: str
    runs_count: int
    truncated: bool
    groups: tuple[RunGroup, ...]


async def aggregate_runs(
    records: Records, wanted: RunFilter, group_by: str, timezone: str = "UTC"
) -> RunGroups:
    """Aggregate the runs that match a filter by group.

    Args:
        records: Records to use for access to the tables.
        wanted: The filter.
        group_by: One of :data:`GROUPINGS`.
        timezone: Time zone for grouping the start of traffic by hour, day, week or month.

    Returns:
        Groups in the order of their names, and whether runs were left out because there are too
        many.

    Raises:
        BadGrouping: The grouping or the time zone is invalid.
    """
    try:
        check_zone(timezone)
    except BadSchedule as error:
        raise BadGrouping(str(error)) from None
    group_of = _grouping(group_by, UTC if timezone == "UTC" else ZoneInfo(timezone))
    groups: defaultdict[str | None, _Sums] = defaultdict(_Sums)
    count, truncated = 0, False
    async for _, header in records.private.scan_runs():
        if wanted.is_past(header):
            break
        if not wanted.fits(header):
            continue
        group = group_of(header)
        if count == AGGREGATED_MAX_COUNT or (
            group not in groups and len(groups) == GROUPS_MAX_COUNT
        ):
            truncated = True
            break
        groups[group].add(header)
        count += 1
    return RunGroups(
        group_by=group_by,
        timezone=timezone,
        runs_count=count,
        truncated=truncated,
        groups=tuple(
            groups[name].to_group(name)
            for name in sorted(groups, key=lambda name: (name is None, name or ""))
        ),
    )


def _grouping(group_by: str, zone: tzinfo) -> Callable[[RunHeader], str | None]:
    if format_time := _TIMES.get(group_by):
        return lambda header: format_time(traffic_at(header).astimezone(zone))
    if group_by == "scenario":
        return lambda header: header.scenario
    if group_by == "verdict":
        return lambda header: header.outcome.verdict if header.outcome else None
    kind, _, name = group_by.partition(":")
    if name and kind == "label":
        return lambda header: header.labels.get(name)
    if name and kind == "device":
        return lambda header: header.device.get(name)
    raise BadGrouping(f"group_by {group_by[:60]!r}: give {GROUPINGS}")


class _Sums:
    """Running sums of one group, with a few numbers per run."""

    def __init__(self) -> None:
        self.runs_count = 0
        self.cancelled_count = 0
        self.verdicts: Counter[str] = Counter()
        self.bursts_count: int | None = None
        # Rates of conclusive and of inconclusive runs, by whether a run is inconclusive.
        self.received = {False: _Rates(), True: _Rates()}
        self.worst_residual_ratio: float | None = None
        self.completeness = array("d")
        # Costs by whether Azure bills them.
        self.costs_usd = {True: array("d"), False: array("d")}
        self.first_at: datetime | None = None
        self.last_at: datetime | None = None

    def add(self, header: RunHeader) -> None:
        at, outcome = traffic_at(header), header.outcome
        self.runs_count += 1
        if header.bursts_count is not None:
            self.bursts_count = (self.bursts_count or 0) + header.bursts_count
        if self.first_at is None or at < self.first_at:
            self.first_at = at
        if self.last_at is None or at > self.last_at:
            self.last_at = at
        if outcome is None:
            return
        verdict = outcome.verdict
        self.cancelled_count += outcome.cancelled
        self.verdicts[verdict] += 1
        self.completeness.append(outcome.completeness_ratio)
        self.received[verdict == Verdict.INCONCLUSIVE].add(outcome)
        if (cost_usd := outcome.cost_usd) is not None:
            self.costs_usd[outcome.charged].append(cost_usd)
        residual = outcome.residual_ratio
        if residual is not None and abs(residual) >= abs(self.worst_residual_ratio or 0):
            self.worst_residual_ratio = residual

    def to_group(self, name: str | None) -> RunGroup:
        assert self.first_at is not None  # noqa: S101 - a group begins with a run
        assert self.last_at is not None  # noqa: S101
        ratios = self.completeness
        return RunGroup(
            group=name,
            runs_count=self.runs_count,
            open_count=self.runs_count - self.verdicts.total(),
            cancelled_count=self.cancelled_count,
            verdicts=dict(sorted(self.verdicts.items())),
            bursts_count=self.bursts_count,
            received=self.received[False].spread(),
            received_inconclusive=self.received[True].spread(),
            worst_residual_ratio=self.worst_residual_ratio,
            completeness=RatioSpread.model_validate(_spread(ratios, "ratio")) if ratios else None,
            cost=self._cost(),
            first_at=self.first_at,
            last_at=self.last_at,
        )

    def _cost(self) -> CostSum | None:
        charged, uncharged = self.costs_usd[True], self.costs_usd[False]
        count = len(charged) + len(uncharged)
        if not count:
            return None
        return CostSum(
            runs_count=count, charged_usd=math.fsum(charged), uncharged_usd=math.fsum(uncharged)
        )


class _Rates:
    """Received rates of runs in bit/s at real scale, as payload and at the IP layer."""

    def __init__(self) -> None:
        self._by_layer = {layer: array("d") for layer in Layer}
        self._layers: set[str] = set()

    def add(self, outcome: RunOutcome) -> None:
        """Add the rates of a run, if it received anything."""
        payload, ip = RECEIVED.of_run(outcome), RECEIVED_IP.of_run(outcome)
        if payload is None:
            return
        self._layers.add(outcome.target_layer or Layer.PAYLOAD if ip is not None else Layer.PAYLOAD)
        self._by_layer[Layer.PAYLOAD].append(payload * outcome.scale)
        if ip is not None:
            self._by_layer[Layer.IP].append(ip * outcome.scale)

    def spread(self) -> RateSpread | None:
        """Return the distribution at the layer of all runs, or of the payload."""
        layer = Layer.IP if self._layers == {Layer.IP} else Layer.PAYLOAD
        return _rates(self._by_layer[layer], layer)


def _rates(known: Sequence[float], layer: Layer) -> RateSpread | None:
    """Return the distribution of a rate, with an interval of the mean if there are enough runs."""
    from broadside.coordinator.core.measure.formulas.steady import mean_of_bursts

    if not known:
        return None
    half = None
    if len(known) >= _INTERVAL_FROM_COUNT:
        # Runs are correlated like bursts, because a device drifts over days.
        half = mean_of_bursts(known, [None] * len(known)).half_width
    spread = _spread(known, "bits_per_second")
    return RateSpread.model_validate({**spread, "half_width_bits_per_second": half, "layer": layer})


def _spread(known: Sequence[float], unit: str) -> dict[str, float]:
    return {
        "runs_count": len(known),
        f"mean_{unit}": statistics.fmean(known),
        f"median_{unit}": statistics.median(known),
        f"min_{unit}": min(known),
        f"max_{unit}": max(known),
    }
