"""Stored inputs of a verdict, so that it can be computed again byte for byte."""

from broadside.coordinator.core.judge.verdict_inputs import RunContext, VerdictInputs
from broadside.coordinator.core.run_spec import Plan
from broadside.coordinator.runs.guard_records import read_guards
from broadside.coordinator.runs.reading_store import read_telemetry
from broadside.coordinator.runs.run_documents import (
    read_counter,
    read_fleet,
    read_outages,
    read_overlapping_bursts,
)
from broadside.exchange.messages import Control
from broadside.exchange.records import Records


async def read_inputs(records: Records, plan: Plan, control: Control | None) -> VerdictInputs:
    """Return the inputs of a verdict as they are stored now.

    Args:
        records: Records to read from.
        plan: The whole plan.
        control: Control row of the run, or None.
    """
    run_id = plan.run_id
    return VerdictInputs(
        control=control,
        device_counter=await read_counter(records, run_id),
        context=RunContext(
            fleet=await read_fleet(records, run_id),
            troubles=await read_outages(records, run_id),
            neighbours=(await read_overlapping_bursts(records, run_id)).bursts,
            telemetry=await read_telemetry(records, run_id),
        ),
        guards=await read_guards(records, plan, control),
    )
