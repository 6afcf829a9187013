"""What an engine says that it did is held, field by field, against what was asked of it."""

from broadside.coordinator.core.measure.requested_vs_effective import settings
from broadside.exchange.messages import EngineReport, Traffic

ASKED = Traffic(streams_count=4)


def test_streams_that_an_engine_tells_stand_beside_those_asked() -> None:
    fields = {
        setting.field: setting
        for setting in settings(ASKED, 30, EngineReport(engine="iperf3", streams_count=3))
    }
    assert (fields["streams_count"].requested, fields["streams_count"].effective) == (4, (3,))
    assert fields["streams_count"].differing == (3,)


def test_what_an_engine_does_not_tell_is_no_difference() -> None:
    for engine in (None, EngineReport(engine=ASKED.engine)):
        fields = {setting.field: setting for setting in settings(ASKED, 30, engine)}
        assert fields["streams_count"].effective == ()
        assert not any(setting.differing for setting in fields.values())


def test_each_process_is_held_against_what_was_asked() -> None:
    parts = tuple(EngineReport(engine=ASKED.engine, duration_s=setting) for setting in (30, 29))
    complete = EngineReport(engine=ASKED.engine, processes=parts)
    fields = {setting.field: setting for setting in settings(ASKED, 30, complete)}
    assert fields["duration_s"].effective == (30, 29)
    assert fields["duration_s"].differing == (29,)
    assert fields["processes_count"].effective == (2,)
