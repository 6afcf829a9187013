"""Tests to compare what an engine used to what was requested."""

from broadside.coordinator.core.measure.requested_vs_effective import settings
from broadside.exchange.messages import EngineReport, Traffic

REQUESTED = Traffic(streams_count=4)


def test_lists_requested_and_effective_streams() -> None:
    fields = {
        setting.field: setting
        for setting in settings(REQUESTED, 30, EngineReport(engine="iperf3", streams_count=3))
    }
    assert (fields["streams_count"].requested, fields["streams_count"].effective) == (4, (3,))
    assert fields["streams_count"].differing == (3,)


def test_unreported_setting_is_not_a_difference() -> None:
    for engine in (None, EngineReport(engine=REQUESTED.engine)):
        fields = {setting.field: setting for setting in settings(REQUESTED, 30, engine)}
        assert fields["streams_count"].effective == ()
        assert not any(setting.differing for setting in fields.values())


def test_compares_all_processes_with_the_request() -> None:
    parts = tuple(EngineReport(engine=REQUESTED.engine, duration_s=setting) for setting in (30, 29))
    complete = EngineReport(engine=REQUESTED.engine, processes=parts)
    fields = {setting.field: setting for setting in settings(REQUESTED, 30, complete)}
    assert fields["duration_s"].effective == (30, 29)
    assert fields["duration_s"].differing == (29,)
    assert fields["processes_count"].effective == (2,)
