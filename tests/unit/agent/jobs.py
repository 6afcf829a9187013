"""Jobs, settings and engine readings to use in agent tests."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from broadside.agent.agent_settings import AgentSettings
from broadside.agent.engine_process import ProcessExit
from broadside.exchange.engines.port import EngineResult, StartBasis
from broadside.exchange.messages import EngineReport, Flow, FlowTotals, Interval, Job, Role, Side

INSTANT_AT = datetime(2026, 11, 20, 12, 0, 0, tzinfo=UTC)
INSTANT_S = INSTANT_AT.timestamp()


def make_job(**changes: Any) -> Job:
    """Return a job to send forward for 10 s over loopback."""
    fields: dict[str, Any] = {
        "run_id": "run-1",
        "burst_index": 0,
        "pair_index": 2,
        "endpoint": {"agent_id": "server-1", "address": "10.2.1.3", "port": 5201},
        "traffic": {"streams_count": 8},
        "planned_start_at": INSTANT_AT,
        "duration_s": 10,
    }
    return Job.model_validate(fields | changes)


def make_settings(**changes: Any) -> AgentSettings:
    return AgentSettings(**({"role": Role.CLIENT, "agent_id": "client-1"} | changes))


def make_reading(**changes: Any) -> EngineResult:
    """Return the reading for a successful forward test with 2 s."""
    reading = EngineResult(
        report=EngineReport(
            engine="iperf3",
            direction="forward",
            duration_s=2,
            totals=(FlowTotals(flow=Flow.UP, sent_bytes=2000, received_bytes=1990),),
        ),
        side=Side.CLIENT,
        intervals={
            Flow.UP: (
                Interval(start_s=0, end_s=1, transferred_bytes=1000),
                Interval(start_s=1, end_s=2, transferred_bytes=1000),
            )
        },
        first_data_at_s=INSTANT_S + 0.01,
        start_basis=StartBasis.ARRIVALS,
        started_at_s=INSTANT_S,
        client_address=None,
    )
    return replace(reading, **changes)


def make_exit(**changes: Any) -> ProcessExit:
    exit_ = ProcessExit(
        exit_code=0, stderr="", started_at_s=INSTANT_S - 5, ended_at_s=INSTANT_S + 2.1
    )
    return replace(exit_, **changes)
