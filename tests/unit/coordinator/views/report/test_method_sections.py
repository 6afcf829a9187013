"""Tests for the sections on methods and deviations."""

from dataclasses import replace

from broadside.coordinator.views.report.build import build
from broadside.exchange.engines import traffic_of
from broadside.exchange.fabric import Fabric
from tests.synthetic import Plant
from tests.unit.coordinator.views.report.test_build import sourced


async def test_report_shows_deviation_from_requested_streams(fabric: Fabric) -> None:
    plant = Plant(pairs=3, bursts=1)
    source = await sourced(fabric, plant)
    reports = dict(source.ends[0].reports)
    wrong = reports[0].engine
    assert wrong is not None
    streams_count = source.plan.spec.traffic.streams_count
    lines = [
        wrong.model_copy(update={"streams_count": count})
        for count in (streams_count, streams_count, 1)
    ]
    for index, engine in enumerate(lines):
        reports[index] = reports[index].model_copy(update={"engine": engine})
    object.__setattr__(source.ends[0], "reports", reports)
    rows = next(p for p in build(source).sections if p.id == "planned").tables[0].rows
    streams = next(row for row in rows if row[0] == "streams per pair")
    assert streams[1] == str(streams_count)
    assert streams[3] == "NO: 2 of 3"


async def test_report_names_the_ramps_of_the_load(fabric: Fabric) -> None:
    source = await sourced(fabric, Plant(pairs=2, bursts=1))
    ramps = {"ramp_up_s": 5, "ramp_down_s": 7}
    traffic = traffic_of(engine="connections", direction="forward", options=ramps)
    spec = source.plan.spec.model_copy(update={"traffic": traffic})
    ramped = replace(source, plan=source.plan.model_copy(update={"spec": spec}))
    for one, text in (
        (source, "there is no ramp-down"),
        (ramped, "Ramp-up 5 s, sustain 18 s, ramp-down 7 s. All pairs start and stop together."),
    ):
        section = next(part for part in build(one).sections if part.id == "deviations")
        profile = next(row for row in section.tables[0].rows if row[0] == "Traffic load profile")
        assert text in profile[2]
