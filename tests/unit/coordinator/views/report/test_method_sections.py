"""Tests for the sections on methods and deviations."""

from broadside.coordinator.views.report.build import build
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
