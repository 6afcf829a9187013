"""API requests that launch, change, schedule or compare runs."""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any

from pydantic import Field, StringConstraints

from broadside.coordinator import prices, scenarios
from broadside.coordinator.core.plan.price import Prices
from broadside.coordinator.core.plan.schedule import MissedPolicy, Overlap, Schedule, localise
from broadside.coordinator.core.run_spec import RunSpec
from broadside.exchange.messages import Integer, Message, RunId, UtcDatetime, WallClock


class LaunchRequest(Message):
    """Scenario or run specification to launch, with overrides.

    Attributes:
        scenario: Name of a scenario. Give either this or `spec`.
    """

    scenario: str | None = Field(default=None, examples=["smoke"])
    spec: Mapping[str, Any] | None = Field(
        default=None, description="run specification, instead of a scenario"
    )
    overrides: Mapping[str, Any] = Field(
        default={},
        description="fields of the run specification, by the names and with the units that "
        "`--set` takes",
        examples=[{"pairs_count": 8, "traffic.streams_count": 8, "burst": "30s"}],
    )
    by: str = Field(default="api", max_length=100, description="user who launches the run")

    def resolve(self) -> RunSpec:
        """Return the requested specification.

        Raises:
            ScenarioError: The specification is wrong, or not exactly one form is given.
        """
        if (self.scenario is None) == (self.spec is None):
            raise scenarios.BadScenario("scenario, spec: give one of the two")
        if self.spec is not None:
            return scenarios.build(self.spec, self.overrides)
        return scenarios.load(self.scenario or "", self.overrides, files=False)


class RunChange(Message):
    """Change of a run as a JSON merge patch (RFC 7396)."""

    labels: Mapping[
        Annotated[str, Field(min_length=1, max_length=100)],
        Annotated[str, Field(max_length=200)] | None,
    ] = Field(max_length=50, description="new values by name; null removes a label")


class CancelRequest(Message):
    """User who cancels a run, and the reason.

    Attributes:
        by: Name of the user.
        reason: Reason, which is shown with the run.
    """

    by: str = Field(default="api", max_length=100)
    reason: str = Field(default="asked to", max_length=500)


class EstimateRequest(LaunchRequest):
    """Run to estimate, as for a launch. Nothing is launched.

    Attributes:
        scenario: Name of a scenario. Give either this or `spec`.
    """

    prices: Mapping[str, Any] | None = Field(
        default=None, description="prices that replace those of the coordinator"
    )

    def table(self, configured: Prices) -> Prices:
        """Return the prices to use.

        Raises:
            BadPrices: The prices in the request are wrong.
        """
        return configured if self.prices is None else prices.override(self.prices)


class ScheduleRequest(LaunchRequest):
    """Run and launch times of a schedule. Times without an offset are in ``timezone``.

    Attributes:
        scenario: Name of a scenario. Give either this or `spec`.
        name: Name of the schedule.
        timezone: IANA time zone for local times.
        runs_max_count: Maximum number of runs. None means no limit.
        overlap: Action if the last run has not ended.
        missed: Action for a missed start time.
    """

    name: Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9-]{0,34}[a-z0-9])?$")]
    cron: str | None = Field(
        default=None,
        max_length=200,
        description="minute hour day month weekday, or six fields with seconds first",
        examples=["0 2 * * 6"],
    )
    at: WallClock | None = Field(default=None, description="one time, instead of cron")
    timezone: str = Field(default="UTC", max_length=100, examples=["Europe/Amsterdam"])
    until_at: WallClock | None = Field(default=None, description="no launch after this time")
    runs_max_count: Integer | None = Field(default=None, ge=1, le=1_000_000)
    overlap: Overlap = Overlap.SKIP
    missed: MissedPolicy = MissedPolicy.SKIP
    missed_limit_s: Integer = Field(
        default=3600, ge=60, le=2_592_000, description="limit for a late launch, in s"
    )

    def schedule(self, *, by: str, now: datetime) -> Schedule:
        """Build the schedule.

        Args:
            by: User who creates it.
            now: Creation time.

        Returns:
            The schedule, not stored yet. Its times are in UTC.

        Raises:
            BadSchedule: The times are wrong.
            ScenarioError: The specification is wrong.
        """
        at, until_at = (
            None if wall is None else localise(wall.replace(microsecond=0), self.timezone, field)
            for wall, field in ((self.at, "at"), (self.until_at, "until"))
        )
        return Schedule(
            name=self.name,
            spec=self.resolve(),
            cron=self.cron,
            at=at,
            timezone=self.timezone,
            until_at=until_at,
            runs_max_count=self.runs_max_count,
            overlap=self.overlap,
            missed=self.missed,
            missed_limit_s=self.missed_limit_s,
            created_by=by,
            created_at=now,
            from_at=now,
            settled_at=now,
        )


class Selection(Message):
    """Bursts of one or more runs, optionally within a time range.

    Attributes:
        name: Name of the group. If None, it is made from the runs.
        run_ids: Ids of the runs.
        from_at: Only bursts that start after this time.
        before_at: Only bursts that end before or at this time.
    """

    name: str | None = Field(default=None, max_length=200)
    run_ids: tuple[RunId, ...] = Field(min_length=1, max_length=200)
    from_at: UtcDatetime | None = None
    before_at: UtcDatetime | None = None


class CompareRequest(Message):
    """Two groups of bursts.

    Attributes:
        a: First group.
        b: Second group.
    """

    a: Selection
    b: Selection
    label: Annotated[str, Field(max_length=41)] | None = Field(
        default=None, description="label or device field under test"
    )
