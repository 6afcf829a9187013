"""What the runs made of imports have in common: specification, state and summary. Pure.

Nothing derived is stored of an import: plan aside, all is computed from its values, so that a
recomputed summary is the same text.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from broadside.coordinator import scenarios
from broadside.coordinator.core.live.status import BurstPhase, BurstStatus, RunState, RunStatus
from broadside.coordinator.core.measure.evidence import FirewallLedger
from broadside.coordinator.core.measure.series import MeasuredBurst
from broadside.coordinator.core.plan.spec import PERIOD_MAX_S, Burst, Plan, RunSpec
from broadside.coordinator.core.summary import Finding
from broadside.coordinator.imports.import_requests import Note
from broadside.exchange.messages import Endpoint, Outcome, peer_address

PORT_ASSUMED: Final = 5201  # iperf3's own; recordings and tables do not keep it
_SETTABLE: Final = ("objective.", "device.", "traffic.", "scale", "description")


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What an import shows, short of its verdict."""

    bursts: tuple[MeasuredBurst, ...]
    ledger: FirewallLedger | None = None
    findings: tuple[Finding, ...] = ()  # beside those of any run's summary
    open_reason: str | None = None  # why more may be missing than the bursts show: never a pass


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedState:
    """What there is of one burst, before anything is measured."""

    pairs_planned: int
    outcomes: Mapping[Outcome, int]  # of results that there are


def build_spec(
    values: Mapping[str, Any], overrides: Mapping[str, Any], *, burst_s: int, period_s: float
) -> RunSpec:
    """A specification that an import's bursts fit; their own instants stand in the plan.

    Raises :class:`~broadside.coordinator.scenarios.BadScenario`.
    """
    for field in overrides:
        if not scenarios.field_of(field).startswith(_SETTABLE):
            raise scenarios.BadScenario(
                f"{field}: an import decides it; what can be set are fields of objective, device "
                "and traffic, and scale"
            )
    spec = scenarios.build({**values, "burst_s": burst_s, "period_s": PERIOD_MAX_S}, overrides)
    fits_s = max(period_s, spec.least_period_s)  # a launch needs it
    return spec.model_copy(update={"period_s": round(min(PERIOD_MAX_S, fits_s))})


def identifier(text: str) -> str:
    """Any name as an agent's id."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip(".-_")[:63].strip(".-_") or "unnamed"


def endpoint(server: str | None) -> Endpoint:
    """A server as a file names it: an address or a name, maybe with a port.

    A name stands as the agent's; its address is not known, which IP spells as the unspecified one.
    """
    address, _, port = (server or "unknown").partition(":")
    number = int(port) if port.isascii() and port.isdigit() and 1 <= int(port) <= 65535 else 0
    return Endpoint(
        agent_id=identifier(address),
        address=peer_address(address) or "0.0.0.0",  # noqa: S104 - nobody listens there
        port=number or PORT_ASSUMED,
    )


def note_findings(notes: Sequence[Note]) -> tuple[Finding, ...]:
    """What is to be known of a file, as findings."""
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


def stand(plan: Plan, states: Sequence[ImportedState]) -> RunStatus:
    """Where an imported run stands: it is over."""
    return RunStatus(
        run_id=plan.run_id,
        scenario=plan.spec.scenario,
        state=RunState.FINISHED,
        created_at=plan.created_at,
        ends_at=plan.bursts[-1].planned_end_at,
        bursts=tuple(
            _stand_burst(burst, state) for burst, state in zip(plan.bursts, states, strict=True)
        ),
        warnings=plan.warnings,
    )


def _stand_burst(burst: Burst, state: ImportedState) -> BurstStatus:
    there = sum(state.outcomes.values())
    return BurstStatus(
        index=burst.index,
        planned_start_at=burst.planned_start_at,
        planned_end_at=burst.planned_end_at,
        phase=BurstPhase.OVER,
        pairs_planned=state.pairs_planned,
        claimed_count=there,
        armed_count=there,
        reported_count=there,
        outcomes=state.outcomes,
    )
