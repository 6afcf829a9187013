"""Tests for report texts that need processes, sockets or real time."""

from dataclasses import replace

from broadside.coordinator.views.report.build import build
from broadside.coordinator.views.report.stored_source import Source, gather
from broadside.exchange.engines import engines
from broadside.exchange.fabric import Fabric
from broadside.exchange.messages import Protocol, Traffic
from tests.unit.coordinator.stored_run import store_run
from tests.unit.coordinator.views.report.test_setup_sections import (
    NOW,
    PLANT,
    TRAFFICS,
    section_text,
)


def with_traffic(source: Source, traffic: Traffic) -> Source:
    spec = source.plan.spec.model_copy(update={"traffic": traffic})
    return replace(source, plan=source.plan.model_copy(update={"spec": spec}))


async def test_sections_describe_the_engine_of_the_run(fabric: Fabric) -> None:
    source = await gather(fabric.records, await store_run(fabric, PLANT), NOW)
    for traffic in TRAFFICS:
        text = section_text(build(with_traffic(source, traffic)), "method", "deviations")
        engine = engines()[traffic.engine]
        assert engine.statement(traffic).rstrip(".") in text
        programs = {p.name for e in engines().values() for p in (*e.client_programs,)}
        # "connections" is also a common word.
        for other in programs - {p.name for p in engine.client_programs} - {"connections"}:
            assert other not in text, (traffic.engine, other)
        assert ("without TLS" in text) == (traffic.engine != "https"), traffic.engine
        assert ("UDP datagrams" in text) == (traffic.protocol is Protocol.UDP)
        assert ("released by a start gate" in text) == (engine.gated and not engine.waits_itself)
        has_requests = "latency" in engine.measures(traffic)
        assert ("times to the last byte are" in text) == has_requests
