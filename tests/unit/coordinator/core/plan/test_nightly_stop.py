"""Nightly stop of a range, and its text at the launch."""

from datetime import UTC, datetime, time

import pytest
from pydantic import ValidationError

from broadside.coordinator.coordinator_settings import CoordinatorSettings
from broadside.coordinator.core.plan.nightly_stop import NightlyStop
from broadside.coordinator.core.plan.planner import PlanContext, plan
from broadside.coordinator.core.run_spec import RunSpec
from tests.unit.coordinator.presences import NOW, fleet

NEW_YORK = NightlyStop(time(20, 0), "America/New_York")


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        # 15:00 and 20:00 in New York, in winter.
        ("2026-11-27T20:00", "2026-11-28T01:00"),
        ("2026-11-28T01:00", "2026-11-29T01:00"),
        # In summer, one hour earlier in UTC.
        ("2026-07-01T20:00", "2026-07-02T00:00"),
        # The clock goes back in the night of 1 November.
        ("2026-11-01T00:30", "2026-11-02T01:00"),
    ],
)
def test_next_stop_is_in_the_evening_of_the_region(now: str, expected: str) -> None:
    assert NEW_YORK.next_after(at(now)) == at(expected)


@pytest.mark.parametrize("zone", ["Pacific/Auckland", "America/Los_Angeles", "Asia/Kolkata", "UTC"])
def test_next_stop_is_within_a_day_and_an_hour(zone: str) -> None:
    stop = NightlyStop(time(20, 0), zone)
    for hour in range(0, 24 * 366, 7):
        now = datetime.fromtimestamp(1_767_225_600 + 3600 * hour, UTC)
        ahead_s = (stop.next_after(now) - now).total_seconds()
        assert 0 < ahead_s <= 25 * 3600


def test_text_states_how_much_time_is_left() -> None:
    now = at("2026-11-27T20:00")
    text = NEW_YORK.describe(now, at("2026-11-27T23:55"))
    assert text == (
        "nightly stop: all VMs stop at 20:00 America/New_York (2026-11-28 01:00Z), 1 h 5 min after "
        "the last burst"
    )
    late = NEW_YORK.describe(now, at("2026-11-28T01:30"))
    assert "30 min before the last burst ends; launch after it" in late


def test_planner_shows_the_stop_at_every_launch() -> None:
    spec = RunSpec.model_validate({"scenario": "test", "pairs_count": 2})
    shown = plan(spec, fleet(2), NOW, "r", PlanContext(nightly_stop=NEW_YORK))
    assert any(line.startswith("nightly stop: all VMs stop at 20:00") for line in shown.warnings)
    assert not any("nightly" in line for line in plan(spec, fleet(2), NOW, "r").warnings)


def test_setting_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROADSIDE_NIGHTLY_STOP", "20:00 America/New_York")
    assert CoordinatorSettings().nightly_stop == NEW_YORK


@pytest.mark.parametrize("text", ["20:00", "8pm UTC", "24:00 UTC", "20:00 Mars/Olympus", ""])
def test_invalid_setting_is_rejected(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("BROADSIDE_NIGHTLY_STOP", text)
    with pytest.raises(ValidationError):
        CoordinatorSettings()
