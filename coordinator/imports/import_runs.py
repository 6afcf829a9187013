"""Specification, state and summary of imported runs. Pure.

Apart from the plan, no derived value is stored. The summary is computed from the imported values,
so a recomputed summary is identical.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from broadside.coordinator import scenarios
from broadside.coordinator.core.live.status import BurstPhase, BurstStatus, RunState, RunStatus
from broadside.coordinator.core.measure.grid.series import BurstMeasurement
from broadside.coordinator.core.measure.records.evidence import CounterRecord
from broadside.coordinator.core.run_spec import PERIOD_MAX_S, Burst, Plan, RunSpec
from broadside.coordinator.core.summary import Finding
from broadside.coordinator.imports.import_requests import Note
from broadside.exchange.messages import Endpoint, JobReport, Outcome, peer_address

# We use the default port of iperf3, because recordings and tables do not contain the port.
PORT_ASSUMED: Final = 5201
_SETTABLE: Final = ("objective.", "device.", "traffic.", "scale", "description")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Measurements of an import, without the verdict.

    Attributes:
        bursts: The measured bursts.
        device_counter: Firewall counter data, or None.
        findings: Findings to add to those that every summary has.
        open_reason: Reason why data may be missing, or None. With a reason, the run cannot pass.
    """

    bursts: tuple[BurstMeasurement, ...]
    device_counter: CounterRecord | None = None
    findings: tuple[Finding, ...] = ()
    open_reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedState:
    """State of an imported burst before it is measured.

    Attributes:
        pairs_planned: How many pairs are planned.
        outcomes: Number of available results by outcome.
    """

    pairs_planned: int
    outcomes: Mapping[Outcome, int]


def build_spec(
    values: Mapping[str, Any], overrides: Mapping[str, Any], *, burst_s: int, period_s: float
) -> RunSpec:
    """Build a run specification for imported bursts. Their start times are in the plan.

    Args:
        values: Fields that follow from the import.
        overrides: Fields that the user overrides.
        burst_s: Burst length in seconds.
        period_s: Burst period in seconds.

    Returns:
        The specification. Its period is shortened if the bursts would exceed the limit of a run.

    Raises:
        BadScenario: A field cannot be set, or a value is wrong.
    """
    for field in overrides:
        if not scenarios.field_of(field).startswith(_SETTABLE):
            raise scenarios.BadScenario(
                f"{field}: follows from the import and cannot be set; --set takes fields of "
                "objective, device and traffic, scale and description"
            )
    spec = scenarios.build({**values, "burst_s": burst_s, "period_s": PERIOD_MAX_S}, overrides)
    # The specification of a launch needs at least this period.
    fits_s = max(period_s, spec.least_period_s)
    return spec.model_copy(update={"period_s": round(min(PERIOD_MAX_S, fits_s))})


def identifier(text: str) -> str:
    """Convert a name to a valid agent id."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip(".-_")[:63].strip(".-_") or "unnamed"


def endpoint(server: str | None) -> Endpoint:
    """Parse a server, given as address or name with an optional port.

    A name becomes the agent id. Its address is unknown and is represented by 0.0.0.0.
    """
    address, _, port = (server or "unknown").partition(":")
    number = int(port) if port.isascii() and port.isdigit() and 1 <= int(port) <= 65535 else 0
    return Endpoint(
        agent_id=identifier(address),
        address=peer_address(address) or "0.0.0.0",  # noqa: S104 - placeholder, nothing listens there
        port=number or PORT_ASSUMED,
    )


def note_findings(notes: Sequence[Note]) -> tuple[Finding, ...]:
    """Convert notes about a file to findings."""
    return tuple(
        Finding(
            id=note.id,
            kind="context",
            severity="note",
            weight=15 - number / 100,
            sentence=note.sentence,
            next_step=note.next_step,
        )
        for number, note in enumerate(notes)
    )


def job_report(
    plan: Plan, burst: Burst, pair_index: int, agent_id: str, outcome: Outcome
) -> JobReport:
    """Return the report of a pair, to be completed.

    Args:
        plan: The run's plan.
        burst: The burst.
        pair_index: Index of the pair.
        agent_id: Agent id of the client.
        outcome: Outcome of the test.
    """
    return JobReport(
        job_id=f"{plan.run_id}.{burst.index:05d}.{pair_index:05d}",
        run_id=plan.run_id,
        burst_index=burst.index,
        pair_index=pair_index,
        agent_id=agent_id,
        outcome=outcome,
        planned_start_at=burst.planned_start_at,
        reported_at=burst.planned_end_at,
    )


def run_status(plan: Plan, states: Sequence[ImportedState]) -> RunStatus:
    """Return the status of an imported run, which is finished.

    Args:
        plan: The run's plan.
        states: State of each burst in the plan.
    """
    return RunStatus(
        run_id=plan.run_id,
        scenario=plan.spec.scenario,
        state=RunState.FINISHED,
        created_at=plan.created_at,
        ends_at=plan.bursts[-1].planned_end_at,
        bursts=tuple(
            _burst_status(burst, state) for burst, state in zip(plan.bursts, states, strict=True)
        ),
        warnings=plan.warnings,
    )


def _burst_status(burst: Burst, state: ImportedState) -> BurstStatus:
    count = sum(state.outcomes.values())
    return BurstStatus(
        index=burst.index,
        planned_start_at=burst.planned_start_at,
        planned_end_at=burst.planned_end_at,
        phase=BurstPhase.OVER,
        pairs_planned=state.pairs_planned,
        claimed_count=count,
        armed_count=count,
        reported_count=count,
        outcomes=state.outcomes,
    )
