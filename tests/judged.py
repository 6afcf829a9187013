"""Measurement and judgement of one burst as a run of its own."""

from datetime import datetime

from broadside.coordinator.core.judge.summarise import summarise_run
from broadside.coordinator.core.measure.burst import measure_burst
from broadside.coordinator.core.measure.records.evidence import BurstEvidence, CounterRecord
from broadside.coordinator.core.run_spec import Pair, Plan, RunSpec
from broadside.coordinator.core.summary import BurstSummary
from broadside.exchange.messages import Endpoint
from tests.synthetic import Fleet


def judged_burst(
    spec: RunSpec,
    evidence: BurstEvidence,
    device_counter: CounterRecord | None,
    now: datetime,
    *,
    clocks_promised: bool = True,
) -> BurstSummary:
    """Return the summary of this burst as the only one of a run."""
    server = Endpoint(agent_id="server", address="10.2.0.4", port=5201)
    plan = Plan(
        run_id="judged",
        created_at=evidence.burst.planned_start_at,
        spec=spec,
        pairs=tuple(Pair(index=pair.pair_index, endpoint=server) for pair in evidence.pairs),
        bursts=(evidence.burst,),
        clocks_promised=clocks_promised,
    )
    return summarise_run(plan, [measure_burst(spec, evidence, now)], device_counter, now).bursts[0]


def judged_first(made: Fleet) -> BurstSummary:
    """Return the summary of a fleet's first burst."""
    return judged_burst(made.plan.spec, made.evidence[0], made.device_counter, made.now)
