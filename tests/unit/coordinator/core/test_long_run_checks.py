from datetime import datetime, timedelta

import pytest

from broadside.coordinator import scenarios
from broadside.coordinator.core.long_run_checks import (
    control_warning,
    keeps_control_alive,
    silent_controls_count,
)
from broadside.coordinator.core.plan.planner import Infeasible, plan
from broadside.coordinator.core.run_spec import RunSpec
from broadside.coordinator.runs.leases import first_lease_until
from broadside.exchange.messages import EngineReport, JobReport, Role, StartMethod
from tests.unit.coordinator.core.records import job_report
from tests.unit.coordinator.presences import NOW, fleet, presence

SOAK = RunSpec(scenario="soak", pairs_count=2, bursts_count=4, burst_s=1740, period_s=1800)


@pytest.mark.parametrize(
    ("version", "gate", "expected"),
    [
        ("3.12", True, True),
        ("3.12", False, False),
        ("3.18", False, False),
        ("3.19", False, True),
        ("3.22+", False, False),
        ("4.0", False, True),
        (None, False, False),
    ],
)
def test_iperf3_versions_with_control_keepalive(
    version: str | None, gate: bool, expected: bool
) -> None:
    assert keeps_control_alive(version, gate=gate) is expected


def test_warns_of_idle_control_connection_before_launch() -> None:
    old = [presence(Role.CLIENT, 1, engine_version="3.12", gate=False)]
    warned = control_warning(SOAK, old)
    assert warned is not None
    assert "iperf3 3.12 without the start gate" in warned
    assert "1740 s" in warned
    short = SOAK.model_copy(update={"burst_s": 200})
    assert control_warning(short, old) is None
    assert control_warning(SOAK, [presence(Role.CLIENT, 1)]) is None
    launched = plan(SOAK, [*fleet(2)[2:], *old, presence(Role.CLIENT, 2)], NOW, "run-1")
    assert any("control connections" in warning for warning in launched.warnings)


def test_counts_idle_control_connections_after_the_run() -> None:
    [burst, *_] = plan(SOAK, fleet(2), NOW, "run-1").bursts

    def report(method: StartMethod, version: str) -> JobReport:
        engine = EngineReport(engine="iperf3", version=version)
        return job_report(0, NOW, start_method=method, engine=engine)

    reports = [
        report(StartMethod.TIMED_EXEC, "3.12"),
        report(StartMethod.TIMED_EXEC, "3.20"),
        report(StartMethod.GATE, "3.12"),
    ]
    assert silent_controls_count(SOAK, burst, reports) == 1
    brief = burst.model_copy(update={"duration_s": 30})
    assert silent_controls_count(SOAK, brief, reports) == 0


def test_rejects_unattended_end_before_the_last_burst() -> None:
    needed_s = 3 * 1800 + 1740 + SOAK.lead_s + 1
    fits = SOAK.model_copy(update={"unattended_s": needed_s})
    planned = plan(fits, fleet(2), NOW, "run-1")
    assert planned.bursts[-1].planned_end_at <= NOW + timedelta(seconds=needed_s)
    early = SOAK.model_copy(update={"unattended_s": needed_s - 60})
    with pytest.raises(Infeasible, match="unattended_s: the hard end"):
        plan(early, fleet(2), NOW, "run-1")


def test_unattended_end_does_not_depend_on_planning_time() -> None:
    end_at = NOW + timedelta(hours=3)
    requested = RunSpec.model_validate(
        SOAK.model_dump() | {"unattended_until_at": end_at.isoformat()}
    )
    for after_s in (0, 10):
        planned = plan(requested, fleet(2), NOW + timedelta(seconds=after_s), "run-1")
        assert first_lease_until(planned) == end_at


@pytest.mark.parametrize(
    ("end_at", "pattern"),
    [
        (NOW + timedelta(hours=1), "is before the end of the last burst"),
        (NOW + timedelta(days=7, seconds=1), "more than a week after the launch"),
    ],
)
def test_rejects_unattended_end_outside_limits(end_at: datetime, pattern: str) -> None:
    requested = SOAK.model_copy(update={"unattended_until_at": end_at})
    with pytest.raises(Infeasible, match=f"unattended_until_at: .*{pattern}.*; set an end after"):
        plan(requested, fleet(2), NOW, "run-1")


def test_rejects_two_unattended_ends() -> None:
    overrides = {"unattended_s": 604_800, "unattended_until_at": "2026-11-27T12:00Z"}
    with pytest.raises(scenarios.BadScenario, match="set only one of them"):
        scenarios.load("soak", overrides)


def test_rejects_unattended_end_after_more_than_a_week() -> None:
    with pytest.raises(ValueError, match="unattended_s"):
        RunSpec(scenario="soak", unattended_s=8 * 86_400)


def test_warns_that_unattended_run_does_not_stop_at_budget() -> None:
    fits = SOAK.model_copy(update={"unattended_until_at": NOW + timedelta(days=1)})
    for budget, warned in ((None, False), (5000, True)):
        requested = fits.model_copy(update={"budget_usd": budget})
        warnings = plan(requested, fleet(2), NOW, "run-1").warnings
        assert any("an unattended run is not stopped" in warning for warning in warnings) is warned
