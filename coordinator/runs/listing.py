"""Lists of runs, and sums over them, from the list's own rows: no run is opened for either."""

import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

from coordinator.core.figures import FIGURE, RECEIVED
from coordinator.core.summary import RunSummary
from coordinator.views.cursors import make_cursor, parse_cursor
from exchange.messages import Message, UtcDatetime
from exchange.records import Records, RunHeader, RunOutcome

_ROWS_LOOKED_AT: Final = 5_000  # rows that one page looks through for what fits
AGGREGATED_MAX_COUNT: Final = 100_000  # runs that one sum is over, at most
GROUPS_MAX_COUNT: Final = 1_000
_LABEL: Final = "label:"


class BadGrouping(Exception):
    """What runs are to be grouped by is nothing that they have."""


class ListedState(StrEnum):
    """Where a run stands, as far as its row in the list says."""

    OPEN = "open"  # no verdict yet
    FINISHED = "finished"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFilter:
    """Which runs; None and empty: all."""

    scenario: str | None = None
    by: str | None = None
    labels: Mapping[str, str] | None = None
    state: ListedState | None = None
    verdict: str | None = None
    from_at: datetime | None = None  # created at or after
    before_at: datetime | None = None  # created before

    def fits(self, header: RunHeader) -> bool:
        outcome = header.outcome
        return (
            self.scenario in (None, header.scenario)
            and self.by in (None, header.created_by)
            and all(header.labels.get(k) == v for k, v in (self.labels or {}).items())
            and self.state in (None, state_of(header))
            and self.verdict in (None, outcome and outcome.verdict)
        )


def labels_of(said: Iterable[str]) -> Mapping[str, str]:
    """Labels from ``name:value`` each. Raises :class:`BadGrouping`."""
    if not all(":" in part for part in said):
        raise BadGrouping("label: give name:value")
    return dict(part.partition(":")[::2] for part in said)


def state_of(header: RunHeader) -> ListedState:
    if header.outcome is None:
        return ListedState.OPEN
    return ListedState.CANCELLED if header.outcome.cancelled else ListedState.FINISHED


def outcome_of(summary: RunSummary, *, cancelled: bool) -> RunOutcome:
    """What the list of runs is told of a verdict."""
    return RunOutcome(
        cancelled=cancelled,
        verdict=summary.verdict.value,
        ended_at=summary.computed_at,
        scale=summary.scale,
        limiter=summary.limiter.value,
        **{name: FIGURE[name].of_run(summary) for name in RunOutcome.model_fields.keys() & FIGURE},
    )


async def list_runs(
    records: Records, wanted: RunFilter, *, limit: int, cursor: str | None = None
) -> tuple[Sequence[RunHeader], str | None]:
    """Runs that fit, newest first, and the cursor of what follows.

    A page may be short, even empty, and yet have a successor: one page looks through a bounded
    number of rows. Raises :class:`~coordinator.views.cursors.BadCursor`.
    """
    key_from = None if cursor is None else parse_cursor(cursor, 1)[0]
    found: list[RunHeader] = []
    looked_at = 0
    async for key, header in records.private.scan_runs(
        key_from=key_from, before_at=wanted.before_at
    ):
        if wanted.from_at is not None and header.created_at < wanted.from_at:
            return found, None
        if len(found) == limit or looked_at == _ROWS_LOOKED_AT:
            return found, make_cursor(key)
        looked_at += 1
        if wanted.fits(header):
            found.append(header)
    return found, None


class RateSpread(Message):
    """A rate over runs, at real scale: as measured times the run's scale. Payload, received."""

    runs_count: int  # that have the figure
    mean_bits_per_second: float
    median_bits_per_second: float
    min_bits_per_second: float
    max_bits_per_second: float


class RatioSpread(Message):
    """A share over runs."""

    runs_count: int
    mean_ratio: float
    median_ratio: float
    min_ratio: float
    max_ratio: float


class RunGroup(Message):
    """Runs that have one thing in common."""

    group: str | None  # None: they lack the label
    runs_count: int
    open_count: int  # of those, without a verdict yet
    cancelled_count: int
    verdicts: Mapping[str, int]  # how many runs ended with each
    received: RateSpread | None = None
    completeness: RatioSpread | None = None
    first_at: UtcDatetime  # created
    last_at: UtcDatetime


class RunGroups(Message):
    """Sums over many runs."""

    group_by: str
    runs_count: int
    truncated: bool  # there are more runs or groups than were summed; narrow the range
    groups: tuple[RunGroup, ...]


async def aggregate_runs(records: Records, wanted: RunFilter, group_by: str) -> RunGroups:
    """Runs that fit, by ``scenario``, ``day`` (UTC, of creation) or ``label:<name>``.

    Raises :class:`BadGrouping`.
    """
    group_of = _grouping(group_by)
    groups: defaultdict[str | None, list[RunHeader]] = defaultdict(list)
    count, truncated = 0, False
    async for _, header in records.private.scan_runs(before_at=wanted.before_at):
        if wanted.from_at is not None and header.created_at < wanted.from_at:
            break
        if not wanted.fits(header):
            continue
        group = group_of(header)
        if count == AGGREGATED_MAX_COUNT or (
            group not in groups and len(groups) == GROUPS_MAX_COUNT
        ):
            truncated = True
            break
        groups[group].append(header)
        count += 1
    return RunGroups(
        group_by=group_by,
        runs_count=count,
        truncated=truncated,
        groups=tuple(
            _group(name, groups[name])
            for name in sorted(groups, key=lambda name: (name is None, name or ""))
        ),
    )


def _grouping(group_by: str) -> Callable[[RunHeader], str | None]:
    if group_by == "scenario":
        return lambda header: header.scenario
    if group_by == "day":
        return lambda header: f"{header.created_at.astimezone(UTC):%Y-%m-%d}"
    name = group_by.removeprefix(_LABEL)
    if group_by.startswith(_LABEL) and name:
        return lambda header: header.labels.get(name)
    raise BadGrouping(f"group_by {group_by[:60]!r}: scenario, day or label:<name>")


def _group(name: str | None, headers: Sequence[RunHeader]) -> RunGroup:
    outcomes = [header.outcome for header in headers if header.outcome is not None]
    created = [header.created_at for header in headers]
    received = [
        rate * outcome.scale
        for outcome in outcomes
        if (rate := RECEIVED.of_run(outcome)) is not None
    ]
    return RunGroup(
        group=name,
        runs_count=len(headers),
        open_count=len(headers) - len(outcomes),
        cancelled_count=sum(outcome.cancelled for outcome in outcomes),
        verdicts=dict(sorted(Counter(outcome.verdict for outcome in outcomes).items())),
        received=RateSpread.model_validate(_spread(received, "bits_per_second"))
        if received
        else None,
        completeness=RatioSpread.model_validate(
            _spread([outcome.completeness_ratio for outcome in outcomes], "ratio")
        )
        if outcomes
        else None,
        first_at=min(created),
        last_at=max(created),
    )


def _spread(values: Iterable[float], unit: str) -> dict[str, float]:
    known = list(values)
    return {
        "runs_count": len(known),
        f"mean_{unit}": statistics.fmean(known),
        f"median_{unit}": statistics.median(known),
        f"min_{unit}": min(known),
        f"max_{unit}": max(known),
    }
